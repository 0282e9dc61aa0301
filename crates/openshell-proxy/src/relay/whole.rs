//! Bodies of HTTP/2 that are over when they are whole, and not when their sender has had enough.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// `body`, which fails where it ends before its end. The library takes a reset without an error for one.
#[derive(Debug)]
pub struct Whole {
    body: Incoming,
    is_http2: bool,
}

/// Why a body has no end.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// What the library says.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// It was given up without an error.
    #[error("the body was given up before its end")]
    GivenUp,
}

impl Whole {
    /// Of a message in HTTP/2, if it `is_http2`.
    #[must_use]
    pub fn new(body: Incoming, is_http2: bool) -> Self {
        Self { body, is_http2 }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = self.get_mut();
        Poll::Ready(match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(frame) => Some(frame.map_err(Cut::Broken)),
            None if this.is_http2 && !this.body.is_end_stream() => Some(Err(Cut::GivenUp)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
