//! Bodies of HTTP/2 that are over when they are whole, and not when their sender has had enough.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::Executor as _;
use tokio::time::timeout;

use crate::io::tasks::Spawner;
use crate::limits::Limits;

/// `body`, which fails where it ends before its end. The library takes a reset without an error for one.
#[derive(Debug)]
pub struct CompleteBody {
    /// There until it is dropped.
    body: Option<Incoming>,
    is_http2: bool,
    /// Who reads what nobody wants to.
    rest: Option<Spawner>,
}

/// Why a body has no end.
#[derive(Debug, thiserror::Error)]
pub enum IncompleteBody {
    /// What the library says.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// It was given up without an error.
    #[error("the body was given up before its end")]
    Cancelled,
}

impl CompleteBody {
    /// Of a message in HTTP/2, if it `is_http2`.
    #[must_use]
    pub fn new(body: Incoming, is_http2: bool) -> Self {
        Self { body: Some(body), is_http2, rest: None }
    }

    /// Of a request in HTTP/2. What is left of it when it is dropped is still read for a moment, by whom `rest` finds: its stream
    /// ends with it, and some clients take no answer from a stream that ends while they send. It is one of its connection's meanwhile.
    #[must_use]
    pub fn of_stream(body: Incoming, rest: Spawner) -> Self {
        Self { body: Some(body), is_http2: true, rest: Some(rest) }
    }
}

impl Body for CompleteBody {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        Poll::Ready(match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(frame) => Some(frame.map_err(IncompleteBody::Broken)),
            None if this.is_http2 && !body.is_end_stream() => Some(Err(IncompleteBody::Cancelled)),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for CompleteBody {
    fn drop(&mut self) {
        if let (Some(mut body), Some(rest)) = (self.body.take(), &self.rest)
            && !body.is_end_stream()
        {
            rest.execute(async move {
                let read = async {
                    let mut left = Limits::LINGER_BYTES;
                    while let Some(Ok(frame)) = body.frame().await {
                        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                        if left == 0 {
                            return;
                        }
                    }
                };
                let _ = timeout(Limits::LINGER, read).await;
            });
        }
    }
}
