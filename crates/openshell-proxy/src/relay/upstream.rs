//! The upstream connection that the requests of one client go through.

use std::net::SocketAddr;

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use crate::context::Limits;
use crate::http::head;
use crate::intake::{Scheme, Target};
use crate::refusal::Refusal;
use crate::resolve::guard::Destination;

/// The upstream connection of one client, kept for its next request to the same origin.
#[derive(Debug, Default)]
pub struct Upstream {
    kept: Option<Kept>,
    /// Whether it ends with the last answer.
    is_ending: bool,
    /// Drives it; ends with this value.
    driver: JoinSet<()>,
}

#[derive(Debug)]
struct Kept {
    origin: Origin,
    address: SocketAddr,
    sender: SendRequest<Incoming>,
}

/// What a connection is kept for.
pub type Origin = (Scheme, Target);

/// Why there is no answer.
#[derive(Debug)]
pub enum NotAnswered {
    /// The connection was gone before anything of the request was sent; another one may serve it.
    Unsent(Request<Incoming>),
    /// The upstream failed.
    Failed(Refusal),
}

impl Upstream {
    /// Where the kept connection leads, if it is one to `origin` at an address that `destination` permits, and still open.
    #[must_use]
    pub fn reusable(&self, origin: &Origin, destination: &Destination) -> Option<SocketAddr> {
        let kept = self.kept.as_ref().filter(|kept| kept.origin == *origin && !kept.sender.is_closed())?;
        destination.addresses().contains(&kept.address).then_some(kept.address)
    }

    /// Keeps `stream`, a connection to `origin`, instead of what was kept before.
    ///
    /// # Errors
    /// The stream has failed already.
    pub async fn keep<S>(&mut self, origin: Origin, address: SocketAddr, stream: S) -> Result<(), Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut protocol = http1::Builder::new();
        protocol.preserve_header_case(true).title_case_headers(true).max_headers(Limits::ANSWER_LINES);
        let handshake = protocol.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?;
        self.driver.abort_all();
        while self.driver.try_join_next().is_some() {}
        // How it ends, the request on it hears.
        self.driver.spawn(async move { drop(connection.with_upgrades().await) });
        self.kept = Some(Kept { origin, address, sender });
        self.is_ending = false;
        Ok(())
    }

    /// Whether it ends with the last answer, as its client would see without a proxy.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Sends `request` on the kept connection. An answer that switches protocols is one only if that was `asked` for.
    ///
    /// # Errors
    /// The upstream is gone, with the request if nothing of it was sent; or it answers with what is no HTTP.
    pub async fn send(
        &mut self,
        request: Request<Incoming>,
        asked: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, NotAnswered> {
        let failed = |error: hyper::Error| Refusal::UpstreamUnreachable(error.to_string());
        let Some(kept) = self.kept.as_mut() else { return Err(NotAnswered::Unsent(request)) };
        if kept.sender.ready().await.is_err() {
            return Err(NotAnswered::Unsent(request));
        }
        let sent = kept.sender.try_send_request(request).await;
        let mut response = sent.map_err(|mut error| match error.take_message() {
            Some(request) => NotAnswered::Unsent(request),
            None => NotAnswered::Failed(failed(error.into_error())),
        })?;
        let has_length = [TRANSFER_ENCODING, CONTENT_LENGTH].iter().any(|name| response.headers().contains_key(name));
        let is_delimited = has_length || response.body().is_end_stream();
        self.is_ending = head::closes(response.version(), response.headers()) || !is_delimited;
        let headers = response.headers_mut();
        if headers.get_all(TRANSFER_ENCODING).iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let what = "the answer has a transfer coding besides chunked".to_owned();
            return Err(NotAnswered::Failed(Refusal::UpstreamUnreachable(what)));
        }
        // Where both say how long a message is, the coding does (RFC 9112 §6.3).
        if headers.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        let switched = headers.get(UPGRADE).cloned();
        head::remove_hop_by_hop(headers);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let agrees = |(asked, switched): (&HeaderValue, &HeaderValue)| {
                asked.as_bytes().eq_ignore_ascii_case(switched.as_bytes())
            };
            if !asked.zip(switched.as_ref()).is_some_and(agrees) {
                return Err(NotAnswered::Failed(Refusal::UnsolicitedUpgrade));
            }
        }
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }
}
