//! Interception of TLS in a tunnel, on both sides.

use std::pin::pin;

use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::authorize::connection::Connection;
use crate::denial::refusal::Refusal;
use crate::detect::Protocol;
use crate::io::prefixed::Prefixed;
use crate::record::{Outcome, Record};
use crate::relay::http2::UpstreamProtocol;
use crate::relay::services::Services;
use crate::relay::{http1, http2};
use crate::tls::authority::HTTP2;
use crate::tls::interceptor::Interceptor;
use crate::tls::originate::{self, UpstreamTls};
use crate::tls::terminate::{self, ClientAlpn, ClientTls, read_client_hello};

/// Both sides of a connection whose TLS is intercepted.
pub struct Intercepted {
    /// The client's side.
    pub client: ClientTls<Prefixed<TcpStream>>,
    /// The upstream's side.
    pub upstream: UpstreamTls,
    /// A slot for HTTP/2, if that was negotiated.
    pub http2_slot: Option<OwnedSemaphorePermit>,
}

impl Intercepted {
    /// The protocol that the client negotiated by ALPN, which settles it before anything is read: an HTTP/2 server may
    /// speak first. `None` without ALPN.
    #[must_use]
    pub fn negotiated(&self) -> Option<Protocol> {
        match terminate::protocol(&self.client)? {
            HTTP2 => Some(Protocol::Http2),
            _ => Some(Protocol::Http1),
        }
    }

    /// The protocol of the upstream.
    #[must_use]
    pub fn upstream_protocol(&self) -> UpstreamProtocol {
        match (terminate::protocol(&self.client), originate::protocol(&self.upstream)) {
            (_, Some(HTTP2)) => UpstreamProtocol::Http2,
            // A client that speaks HTTP/2 without ALPN has prior knowledge of its upstream.
            (None, None) => UpstreamProtocol::Unknown,
            _ => UpstreamProtocol::Http1,
        }
    }
}

/// Terminates the TLS of `client`, and opens TLS to `upstream`. A refusal after the client's handshake is sent inside
/// its TLS.
pub async fn intercept(
    services: &Services,
    interceptor: &Interceptor,
    client: Prefixed<TcpStream>,
    upstream: TcpStream,
    connection: &Connection,
) -> Option<Intercepted> {
    let record = || Record::of(&services.audit, &connection.callers(), connection.target().clone());
    let (client, upstream, slot) = match handshakes(services, interceptor, client, upstream, connection).await {
        Ok(handshakes) => handshakes,
        Err(refusal) => {
            record().finish(Outcome::Refused(&refusal));
            return None;
        }
    };
    let is_http2 = terminate::protocol(&client) == Some(HTTP2);
    match upstream {
        // The slot is released if the client speaks HTTP/1.1.
        Ok(upstream) => Some(Intercepted { client, upstream, http2_slot: slot.filter(|_| is_http2) }),
        Err(refusal) => {
            match is_http2 {
                true => http2::refuse(services, client, &refusal, record()).await,
                false => http1::refuse(services, client, &refusal, record()).await,
            }
            None
        }
    }
}

/// The client's TLS, the upstream's or its refusal, and a slot for HTTP/2.
type Handshakes = (ClientTls<Prefixed<TcpStream>>, Result<UpstreamTls, Refusal>, Option<OwnedSemaphorePermit>);

/// Performs both handshakes concurrently.
async fn handshakes(
    services: &Services,
    interceptor: &Interceptor,
    client: Prefixed<TcpStream>,
    upstream: TcpStream,
    connection: &Connection,
) -> Result<Handshakes, Refusal> {
    let host = &connection.target().host;
    let authority = interceptor.authority()?;
    let hello = read_client_hello(client).await?;
    // Without a slot, clients that offer both protocols get HTTP/1.1.
    let slot = if hello.alpn == ClientAlpn::Http1 { None } else { interceptor.http2_slot() };
    let mut originated = pin!(services.egress.roots.open(host, upstream, slot.is_some()));
    let mut early = None;
    // A client that offers both gets the protocol that the upstream negotiates.
    if hello.alpn == ClientAlpn::Either {
        early = Some((&mut originated).await);
    }
    let speaks_http2 = |upstream: &UpstreamTls| originate::protocol(upstream) == Some(HTTP2);
    let is_http2 = early.as_ref().is_none_or(|upstream| upstream.as_ref().map_or(true, speaks_http2));
    let mut terminated = pin!(hello.terminate(authority, host, slot.is_some() && is_http2));
    // A failed handshake of the client ends both.
    let terminated = loop {
        tokio::select! {
            terminated = &mut terminated => break terminated,
            upstream = &mut originated, if early.is_none() => early = Some(upstream),
        }
    };
    let (client, other_host) = terminated?;
    let upstream = match (other_host, early) {
        (Some(other), _) => Err(Refusal::authority_mismatch(other)),
        (None, Some(upstream)) => upstream,
        (None, None) => originated.await,
    };
    Ok((client, upstream, slot))
}
