//! Bodies that fail if they end early.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::Executor as _;
use tokio::time::timeout;

use crate::ground::limits::Limits;
use crate::wire::io::tasks::Spawner;

/// A body that fails if it ends early. The HTTP library takes a reset without an error code for a
/// regular end.
#[derive(Debug)]
pub struct CompleteBody {
    /// `None` once this is dropped.
    body: Option<Incoming>,
    is_http2: bool,
    /// The spawner of the task that drains a dropped body.
    rest: Option<Spawner>,
}

/// The error of an incomplete body.
#[derive(Debug, thiserror::Error)]
pub enum IncompleteBody {
    /// An error of the HTTP library.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// The stream was reset without an error.
    #[error("the stream was reset before the end of the body")]
    Cancelled,
}

impl CompleteBody {
    /// Wraps the body of a message, which is HTTP/2 if `is_http2` is true.
    #[must_use]
    pub fn new(body: Incoming, is_http2: bool) -> Self {
        Self {
            body: Some(body),
            is_http2,
            rest: None,
        }
    }

    /// Wraps the body of an HTTP/2 request. If it is dropped early, a task of `rest` drains it for
    /// up to [`Limits::LINGER`]. Otherwise its stream would end with it, and some clients discard
    /// the response of a stream that ends while they send.
    #[must_use]
    pub fn of_stream(body: Incoming, rest: Spawner) -> Self {
        Self {
            body: Some(body),
            is_http2: true,
            rest: Some(rest),
        }
    }
}

impl Body for CompleteBody {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
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
