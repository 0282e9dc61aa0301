//! HTTP/2 by prior knowledge (RFC 9113 §3.3): no request is sent to an upstream before its SETTINGS
//! confirms the protocol.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;

use crate::wire::io::delegate::delegate_async_write;

/// The length of a frame head (RFC 9113 §4.1), and the type of a server's first frame (§3.4).
const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;

/// A stream that fails unless it begins with SETTINGS.
#[derive(Debug)]
pub struct SettingsCheck<S> {
    stream: S,
    /// The part of the first frame's head that was read.
    first: Vec<u8>,
    confirm: watch::Sender<bool>,
}

impl<S> SettingsCheck<S> {
    /// Wraps `stream`; the receiver turns true when the head of SETTINGS has arrived.
    #[must_use]
    pub fn new(stream: S) -> (Self, watch::Receiver<bool>) {
        let (confirm, confirmed) = watch::channel(false);
        (
            Self {
                stream,
                first: Vec::new(),
                confirm,
            },
            confirmed,
        )
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SettingsCheck<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self {
            stream,
            first,
            confirm,
        } = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(stream).poll_read(cx, buf))?;
        if first.len() < FRAME_HEAD {
            let came = buf.filled().get(before..).unwrap_or_default();
            first.extend(came.iter().take(FRAME_HEAD - first.len()));
            if first.get(3).is_some_and(|kind| *kind != SETTINGS) {
                return Poll::Ready(Err(io::Error::other(
                    "the upstream does not answer in HTTP/2",
                )));
            }
            if first.len() == FRAME_HEAD {
                confirm.send_replace(true);
            }
        }
        Poll::Ready(Ok(()))
    }
}

delegate_async_write!(SettingsCheck);
