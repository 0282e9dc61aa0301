//! Connections to upstreams: their handshakes, and the requests on them.

mod guard;

use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{
    CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_ACCEPT, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use crate::credentials::inject::CredentialedRequest;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::target::{Origin, Scheme};
use crate::reach::resolve::guard::Destination;
use crate::relay::body::searched::{RequestBody, Unsendable};
use crate::wire::http::head;
use crate::wire::io::tasks::{AbortOnDrop, ConnectionTasks};
use crate::wire::io::upstream_stream::UpstreamStream;
use crate::wire::memory::Windows;
use crate::wire::tls::originate::{UpstreamRoots, wants_certificate};
use guard::{Unanswered, UpstreamGuard};

/// A connection to an upstream, kept for the next request to the same origin.
#[derive(Debug)]
pub struct Upstream {
    established: Option<Established>,
    /// True if the connection ends after the last response.
    is_ending: bool,
    /// True if the connection has had a response.
    has_answered: bool,
    /// The tasks that drive the connection.
    tasks: ConnectionTasks,
}

/// A connection after its handshake.
#[derive(Debug)]
struct Established {
    origin: Origin,
    address: SocketAddr,
    sender: Sender,
    /// The handle of the task that drives the connection.
    driver: Arc<AbortOnDrop>,
}

/// The sending end of a connection.
#[derive(Debug)]
enum Sender {
    /// One request after the other; the second value is the count of its [`UpstreamGuard`].
    Http1(http1::SendRequest<RequestBody>, Arc<Unanswered>),
    /// Concurrent streams.
    Http2(http2::SendRequest<RequestBody>),
}

impl Established {
    fn is_open_to(&self, origin: &Origin) -> bool {
        let is_closed = match &self.sender {
            Sender::Http1(sender, _) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        };
        self.origin == *origin && !is_closed
    }
}

/// The reason why a request has no response.
#[derive(Debug)]
pub enum SendError {
    /// The connection was closed before anything was sent. Another one may carry the request, whose
    /// body this is.
    NotSent(RequestBody),
    /// The upstream has not processed the request, so the client may send it again (RFC 9113 §8.7).
    Refused,
    /// The upstream closed a connection that it had kept open, before the first byte of its answer:
    /// probably at the moment when the request was sent (RFC 9110 §9.2.2).
    Closed,
    /// The upstream failed.
    Failed(Refusal),
}

impl Upstream {
    /// Creates an upstream without a connection; `tasks` will drive a later one.
    #[must_use]
    pub fn new(tasks: ConnectionTasks) -> Self {
        Self {
            established: None,
            is_ending: false,
            has_answered: false,
            tasks,
        }
    }

    /// Returns the address of the connection, if it is open and leads to `origin` at an address
    /// that `destination` permits.
    #[must_use]
    pub fn reusable(&self, origin: &Origin, destination: &Destination) -> Option<SocketAddr> {
        let established = self
            .established
            .as_ref()
            .filter(|established| established.is_open_to(origin))?;
        destination
            .addresses()
            .contains(&established.address)
            .then_some(established.address)
    }

    /// Returns true if there is no connection.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.established.is_none()
    }

    /// Returns true if the connection is open and leads to `origin`.
    #[must_use]
    pub fn is_open_to(&self, origin: &Origin) -> bool {
        self.established
            .as_ref()
            .is_some_and(|established| established.is_open_to(origin))
    }

    /// Returns true if the connection is HTTP/2, which streams share.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.established
            .as_ref()
            .is_some_and(|established| matches!(established.sender, Sender::Http2(_)))
    }

    /// Closes an HTTP/1.1 connection whose last exchange has not ended, because the next request
    /// would have to wait for it.
    pub fn close_unless_ready(&mut self) {
        let is_ready = |established: &Established| match &established.sender {
            Sender::Http1(sender, _) => sender.is_ready(),
            Sender::Http2(_) => true,
        };
        self.established = self.established.take().filter(is_ready);
    }

    /// Returns another handle of an HTTP/2 connection, for another stream.
    #[must_use]
    pub fn clone_http2(&self) -> Option<Self> {
        let established = self.established.as_ref()?;
        let Sender::Http2(sender) = &established.sender else {
            return None;
        };
        let origin = established.origin.clone();
        let address = established.address;
        let sender = Sender::Http2(sender.clone());
        let driver = Arc::clone(&established.driver);
        let established = Some(Established {
            origin,
            address,
            sender,
            driver,
        });
        Some(Self {
            established,
            is_ending: false,
            has_answered: false,
            tasks: self.tasks.clone(),
        })
    }

    /// Makes `stream`, whose remote address is `address`, the HTTP/1.1 connection to `origin`, in
    /// place of the last one.
    ///
    /// # Errors
    /// Fails if the stream has failed already.
    pub async fn establish<S>(
        &mut self,
        origin: Origin,
        address: SocketAddr,
        stream: S,
    ) -> Result<(), Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut protocol = http1::Builder::new();
        protocol
            .preserve_header_case(true)
            .title_case_headers(true)
            .max_headers(Limits::ANSWER_LINES)
            // Other clients tolerate these. The proxy's client gets the usual form.
            .allow_spaces_after_header_name_in_responses(true)
            .allow_obsolete_multiline_headers_in_responses(true);
        let unanswered = Arc::new(Unanswered::default());
        let stream = UpstreamGuard::new(stream, Arc::clone(&unanswered));
        let (sender, connection) = protocol
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        // The request on the connection has got the error.
        let driver = Arc::new(
            self.tasks
                .add(async move { drop(connection.with_upgrades().await) }),
        );
        self.established = Some(Established {
            origin,
            address,
            sender: Sender::Http1(sender, unanswered),
            driver,
        });
        (self.is_ending, self.has_answered) = (false, false);
        Ok(())
    }

    /// Makes `stream`, whose remote address is `address`, the HTTP/1.1 connection to `origin`; for
    /// https inside TLS, which `roots` verify.
    ///
    /// # Errors
    /// Fails if the stream has failed, or the upstream's certificate is invalid.
    pub async fn connect(
        &mut self,
        origin: &Origin,
        roots: &UpstreamRoots,
        stream: UpstreamStream,
        address: SocketAddr,
    ) -> Result<(), Refusal> {
        match origin.scheme {
            Scheme::Http => self.establish(origin.clone(), address, stream).await,
            Scheme::Https => {
                let stream = roots.open(&origin.target.host, stream, false).await?;
                self.establish(origin.clone(), address, stream).await
            }
        }
    }

    /// Makes `stream`, whose remote address is `address`, the HTTP/2 connection to `origin`, with
    /// these `windows`. The receiver fires when the connection has ended.
    ///
    /// # Errors
    /// Fails if the stream has failed already.
    pub async fn establish_http2<S>(
        &mut self,
        origin: Origin,
        address: SocketAddr,
        stream: S,
        windows: &Windows,
    ) -> Result<oneshot::Receiver<()>, Refusal>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut protocol = http2::Builder::new(self.tasks.spawner());
        protocol
            .timer(TokioTimer::new())
            .initial_stream_window_size(windows.upstream_stream())
            .initial_connection_window_size(windows.upstream())
            .max_send_buf_size(windows.send())
            .max_header_list_size(Limits::ANSWER_HEAD_BYTES);
        let (sender, connection) = protocol
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let (end, ended) = oneshot::channel();
        let driver = Arc::new(self.tasks.add(async move {
            drop(connection.await);
            let _ = end.send(());
        }));
        self.established = Some(Established {
            origin,
            address,
            sender: Sender::Http2(sender),
            driver,
        });
        (self.is_ending, self.has_answered) = (false, false);
        Ok(ended)
    }

    /// Returns the tasks that drive the connection.
    #[must_use]
    pub fn tasks(&self) -> &ConnectionTasks {
        &self.tasks
    }

    /// Returns true if the connection ends after the last response. The client sees that end as it
    /// would without a proxy.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Sends `request`, which has the form of the connection's protocol. The response may switch to
    /// the protocol `requested`.
    ///
    /// # Errors
    /// Fails if the connection is closed, if the upstream refuses the request or fails, or if its
    /// response is malformed.
    pub async fn send(
        &mut self,
        request: CredentialedRequest<RequestBody>,
        requested: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, SendError> {
        let request = request.into_request();
        let Some(established) = self.established.as_mut() else {
            return Err(SendError::NotSent(request.into_body()));
        };
        let is_ready = match &mut established.sender {
            Sender::Http1(sender, _) => sender.ready().await,
            Sender::Http2(sender) => sender.ready().await,
        };
        if is_ready.is_err() {
            return Err(SendError::NotSent(request.into_body()));
        }
        let mut response = match &mut established.sender {
            Sender::Http1(sender, unanswered) => {
                unanswered.start();
                let sent = sender.try_send_request(request).await;
                unanswered.end();
                let was_closed = self.has_answered && unanswered.is_silent();
                let sent = sent.map_err(|error| send_error(error, was_closed))?;
                self.has_answered = true;
                sent
            }
            Sender::Http2(sender) => {
                let response = sender.try_send_request(request).await;
                let mut response = response.map_err(|error| send_error(error, false))?;
                head::remove_hop_by_hop(response.headers_mut());
                return Ok(response);
            }
        };
        let has_length = [TRANSFER_ENCODING, CONTENT_LENGTH]
            .iter()
            .any(|name| response.headers().contains_key(name));
        let is_delimited = has_length || response.body().is_end_stream();
        self.is_ending = head::closes(response.version(), response.headers()) || !is_delimited;
        let headers = response.headers_mut();
        let is_other = |coding: &HeaderValue| !coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if headers.get_all(TRANSFER_ENCODING).iter().any(is_other) {
            let what = "it has a transfer coding other than chunked";
            return Err(SendError::Failed(Refusal::upstream_malformed(what)));
        }
        // A transfer coding overrides the length (RFC 9112 §6.3).
        if headers.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        let switched = headers.get(UPGRADE).cloned();
        head::remove_hop_by_hop(headers);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS
            && !is_solicited(&response, requested, switched.as_ref())
        {
            return Err(SendError::Failed(Refusal::unsolicited_upgrade()));
        }
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }
}

/// Returns true if the `response` switches to the protocol that the client `requested`.
fn is_solicited(
    response: &Response<Incoming>,
    requested: Option<&HeaderValue>,
    switched: Option<&HeaderValue>,
) -> bool {
    let Some((requested, switched)) = requested.zip(switched) else {
        return false;
    };
    if head::is_websocket(requested) && !response.headers().contains_key(SEC_WEBSOCKET_ACCEPT) {
        return false;
    }
    let switched = switched.as_bytes().trim_ascii();
    let mut offered = requested.as_bytes().split(|byte| *byte == b',');
    offered.any(|protocol| protocol.trim_ascii().eq_ignore_ascii_case(switched))
}

fn failed(error: hyper::Error) -> Refusal {
    Refusal::upstream_unreachable(error.to_string())
}

/// Converts the error of a request. If the connection `was_closed`, it was a kept one that ended
/// before the first byte of the answer.
fn send_error(mut error: TrySendError<Request<RequestBody>>, was_closed: bool) -> SendError {
    match error.take_message() {
        Some(request) => SendError::NotSent(request.into_body()),
        None => match error.into_error() {
            // The fault is in the client's own body, so the client is told of it.
            error if error.source().is_some_and(|cause| cause.is::<Unsendable>()) => {
                SendError::Failed(Refusal::bad_request(
                    "the body of the request is malformed, or ended before its end",
                ))
            }
            error if is_refused_stream(&error) => SendError::Refused,
            error if wants_certificate(&error) => {
                SendError::Failed(Refusal::upstream_wants_certificate())
            }
            error if was_closed && (error.is_incomplete_message() || is_reset(&error)) => {
                SendError::Closed
            }
            error if error.is_parse() => {
                SendError::Failed(Refusal::upstream_malformed(defect(&error)))
            }
            // The library dropped the request, for example one that waited for a stream when GOAWAY
            // arrived. Its head may have been sent.
            error if error.is_user() => SendError::Failed(Refusal::upstream_unreachable(
                "the upstream ended its connection".to_owned(),
            )),
            error => SendError::Failed(failed(error)),
        },
    }
}

/// Returns true if the upstream has reset the connection.
fn is_reset(error: &hyper::Error) -> bool {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionReset)
}

/// Returns the defect of an answer that the library cannot read.
fn defect(error: &hyper::Error) -> &'static str {
    if error.is_parse_too_large() {
        "its head is too large"
    } else if error.is_parse_status() {
        "its status is not a number of three digits"
    } else if error.is_parse_version_h2() || error.to_string().contains("version") {
        "it does not begin with HTTP/1.1 or HTTP/1.0"
    } else {
        "a line of its head is not a header"
    }
}

/// Returns true if the stream was refused by itself, or by a GOAWAY whose last stream is lower.
fn is_refused_stream(error: &hyper::Error) -> bool {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| match cause.reason() {
        Some(h2::Reason::REFUSED_STREAM) => true,
        Some(h2::Reason::NO_ERROR) => cause.is_go_away() && cause.is_remote(),
        _ => false,
    })
}

#[cfg(test)]
mod tests;
