//! A permitted plain-HTTP request, sent on in origin form, and its answer.

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, VIA,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::intake::Target;
use crate::refusal::Refusal;
use crate::resolve::guard::Destination;

/// The upstream connection of one client, kept for its next request to the same target.
#[derive(Debug, Default)]
pub struct Upstream {
    kept: Option<Kept>,
    /// Drives it; ends with this value.
    driver: JoinSet<()>,
}

#[derive(Debug)]
struct Kept {
    target: Target,
    address: SocketAddr,
    sender: SendRequest<Incoming>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum NotAnswered {
    /// The connection was gone before anything of the request was sent; another one may serve it.
    Unsent(Request<Incoming>),
    /// The upstream failed.
    Failed(Refusal),
}

impl Upstream {
    /// Where the kept connection leads, if it is one to `target` at an address that `destination` permits, and still open.
    #[must_use]
    pub fn reusable(&self, target: &Target, destination: &Destination) -> Option<SocketAddr> {
        let kept = self.kept.as_ref().filter(|kept| kept.target == *target && !kept.sender.is_closed())?;
        destination.addresses().contains(&kept.address).then_some(kept.address)
    }

    /// Keeps `stream`, a connection to `target`, instead of what was kept before.
    ///
    /// # Errors
    /// The stream has failed already.
    pub async fn keep(&mut self, target: Target, address: SocketAddr, stream: TcpStream) -> Result<(), Refusal> {
        let handshake = http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| Refusal::UpstreamUnreachable(error.to_string()))?;
        self.driver.abort_all();
        while self.driver.try_join_next().is_some() {}
        // How it ends, the request on it hears.
        self.driver.spawn(async move { drop(connection.await) });
        self.kept = Some(Kept { target, address, sender });
        Ok(())
    }

    /// Sends `request` on the kept connection.
    ///
    /// # Errors
    /// The upstream is gone, with the request if nothing of it was sent; or it answers with what is no HTTP.
    pub async fn send(&mut self, request: Request<Incoming>) -> Result<Response<Incoming>, NotAnswered> {
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
        // Nobody asked for it: what asks is not passed on.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let what = "the upstream switched protocols unasked".to_owned();
            return Err(NotAnswered::Failed(Refusal::UpstreamUnreachable(what)));
        }
        let headers = response.headers_mut();
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            let what = "the answer has a transfer coding besides chunked".to_owned();
            return Err(NotAnswered::Failed(Refusal::UpstreamUnreachable(what)));
        }
        // Where both say how long a message is, the coding does (RFC 9112 §6.3).
        if headers.contains_key(TRANSFER_ENCODING) {
            headers.remove(CONTENT_LENGTH);
        }
        remove_hop_by_hop(headers);
        *response.version_mut() = Version::HTTP_11;
        Ok(response)
    }
}

/// `request` as the upstream gets it: in origin form, for the host that was judged, without what is meant for this proxy, and
/// framed anew.
#[must_use]
pub fn rewrite(mut request: Request<Incoming>, target: &Target) -> Request<Incoming> {
    // What is not written is the root, which the library would leave out.
    let written = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let path = if written.starts_with('/') { written.to_owned() } else { format!("/{written}") };
    let path = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    *request.uri_mut() = path;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    remove_hop_by_hop(headers);
    // The client library frames what it sends, and waits for nobody's leave to.
    // What is empty keeps its length, which some servers insist on.
    if headers.get(CONTENT_LENGTH).is_none_or(|length| length != "0") {
        headers.remove(CONTENT_LENGTH);
    }
    headers.remove(EXPECT);
    let host = if target.port == 80 { target.without_port() } else { target.to_string() };
    // A host and a port are always a field value.
    if let Ok(host) = HeaderValue::from_str(&host) {
        headers.insert(HOST, host);
    }
    headers.entry(VIA).or_insert(HeaderValue::from_static("1.1 openshell-sandbox"));
    request
}

/// Removes what concerns one connection alone (RFC 9110 §7.6.1), and what is addressed to a proxy.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    const HOP_BY_HOP: [&str; 8] = [
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-authentication-info",
        "te",
        "upgrade",
        "http2-settings",
    ];
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // What says where the message goes and ends is nobody's to take away.
        .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
}
