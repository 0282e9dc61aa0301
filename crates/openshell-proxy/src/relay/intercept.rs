//! Interception of TLS in a tunnel, on both sides.

use std::pin::pin;

use tokio::sync::OwnedSemaphorePermit;

use crate::denial::refusal::Refusal;
use crate::ground::socket::ClientStream;
use crate::reach::authorize::connection::Connection;
use crate::relay::http2::UpstreamProtocol;
use crate::relay::services::Services;
use crate::relay::{http1, http2};
use crate::report::closing::Closing;
use crate::report::record::{Outcome, Record};
use crate::wire::detect::Protocol;
use crate::wire::io::metered::Metered;
use crate::wire::io::prefixed::Prefixed;
use crate::wire::io::upstream_stream::UpstreamStream;
use crate::wire::tls::authority::HTTP2;
use crate::wire::tls::interceptor::Interceptor;
use crate::wire::tls::originate::{self, UpstreamTls};
use crate::wire::tls::terminate::{self, ClientAlpn, ClientTls, read_client_hello};

/// Both sides of a connection whose TLS is intercepted.
pub struct Intercepted {
    /// The client's side.
    pub client: ClientTls<Prefixed<Metered<ClientStream>>>,
    /// The upstream's side.
    pub upstream: UpstreamTls,
    /// A slot for HTTP/2, if that was negotiated.
    pub http2_slot: Option<OwnedSemaphorePermit>,
}

impl Intercepted {
    /// Returns the protocol that the client negotiated by ALPN; `None` without ALPN. It settles the
    /// protocol before anything is read, because an HTTP/2 server may speak first.
    #[must_use]
    pub fn negotiated(&self) -> Option<Protocol> {
        match terminate::protocol(&self.client)? {
            HTTP2 => Some(Protocol::Http2),
            _ => Some(Protocol::Http1),
        }
    }

    /// Returns the protocol of the upstream.
    #[must_use]
    pub fn upstream_protocol(&self) -> UpstreamProtocol {
        match (
            terminate::protocol(&self.client),
            originate::protocol(&self.upstream),
        ) {
            (_, Some(HTTP2)) => UpstreamProtocol::Http2,
            // A client that speaks HTTP/2 without ALPN has prior knowledge of its upstream.
            (None, None) => UpstreamProtocol::Unknown,
            _ => UpstreamProtocol::Http1,
        }
    }
}

/// Terminates the TLS of `client`, and opens TLS to `upstream`. A refusal is noted in `closing`;
/// one that comes after the client's handshake is also sent inside its TLS.
pub async fn intercept(
    services: &Services,
    interceptor: &Interceptor,
    client: Prefixed<Metered<ClientStream>>,
    upstream: UpstreamStream,
    connection: &Connection,
    closing: &Closing,
) -> Option<Intercepted> {
    let record = || {
        Record::of(
            &services.audit,
            connection.caller(),
            connection.target().clone(),
        )
    };
    let (client, upstream, slot) =
        match handshakes(services, interceptor, client, upstream, connection).await {
            Ok(handshakes) => handshakes,
            Err(refusal) => {
                closing.stopped(&refusal);
                record().finish(Outcome::Refused(&refusal));
                return None;
            }
        };
    let is_http2 = terminate::protocol(&client) == Some(HTTP2);
    match upstream {
        // The slot is released if the client speaks HTTP/1.1.
        Ok(upstream) => Some(Intercepted {
            client,
            upstream,
            http2_slot: slot.filter(|_| is_http2),
        }),
        Err(refusal) => {
            closing.stopped(&refusal);
            if is_http2 {
                http2::refuse(services, client, &refusal, record()).await
            } else {
                http1::refuse(services, client, &refusal, record()).await
            }
            None
        }
    }
}

/// The client's TLS, the upstream's TLS or its refusal, and a slot for HTTP/2.
type Handshakes = (
    ClientTls<Prefixed<Metered<ClientStream>>>,
    Result<UpstreamTls, Refusal>,
    Option<OwnedSemaphorePermit>,
);

/// Performs both handshakes concurrently.
async fn handshakes(
    services: &Services,
    interceptor: &Interceptor,
    client: Prefixed<Metered<ClientStream>>,
    upstream: UpstreamStream,
    connection: &Connection,
) -> Result<Handshakes, Refusal> {
    let host = &connection.target().host;
    let authority = interceptor.authority()?;
    let hello = read_client_hello(client).await?;
    // Without a slot, clients that offer both protocols get HTTP/1.1.
    let slot = if hello.alpn == ClientAlpn::Http1 {
        None
    } else {
        interceptor.http2_slot()
    };
    let mut originated = pin!(services.egress.roots.open(host, upstream, slot.is_some()));
    let mut early = None;
    // A client that offers both gets the protocol that the upstream negotiates.
    if hello.alpn == ClientAlpn::Either {
        early = Some((&mut originated).await);
    }
    let speaks_http2 = |upstream: &UpstreamTls| originate::protocol(upstream) == Some(HTTP2);
    let is_http2 = early
        .as_ref()
        .is_none_or(|upstream| upstream.as_ref().map_or(true, speaks_http2));
    let program = connection.caller().program.executable.as_str();
    let mut terminated =
        pin!(hello.terminate(authority, host, slot.is_some() && is_http2, program));
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use openshell_events::words::{Door, EndedBy};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsAcceptor;

    use super::{
        Intercepted, Interceptor, Prefixed, Protocol, Refusal, Services, UpstreamProtocol,
        UpstreamTls, intercept,
    };
    use crate::testing::{self, Remembered};
    use crate::wire::tls::authority::Authority;
    use crate::wire::tls::originate::UpstreamRoots;

    /// A sandbox whose CA is `own`, and an upstream whose CA is `other`.
    struct Authorities {
        own: UpstreamRoots,
        interceptor: Interceptor,
        other: Authority,
    }

    impl Authorities {
        fn create() -> Self {
            let own = Authority::create().unwrap();
            let other = Authority::create().unwrap();
            Self {
                own: UpstreamRoots::new(vec![own.pem().into()]),
                interceptor: Interceptor::new(Some(own)),
                other,
            }
        }

        /// Creates services that trust the upstream.
        fn trusting(&self) -> (Arc<Services>, Arc<Remembered>) {
            let (mut services, audit) = testing::services("{host: web.test, port: 443}");
            let roots = UpstreamRoots::new(vec![self.other.pem().into()]);
            Arc::get_mut(&mut services).unwrap().egress.roots = roots;
            (services, audit)
        }

        /// Intercepts the TLS between a client that trusts `roots`, and an upstream. Each offers
        /// HTTP/2 if it `may`.
        async fn intercepted(
            &self,
            services: &Services,
            roots: &UpstreamRoots,
            [client_may, upstream_may]: [bool; 2],
        ) -> (Option<Intercepted>, Result<(UpstreamTls, Vec<u8>), Refusal>) {
            let (client, near) = testing::tcp().await;
            let (far, upstream) = testing::tcp().await;
            let connection = testing::connection(services, "web.test:443");
            let host = &connection.target().host;
            let acceptor = TlsAcceptor::from(self.other.server(host, upstream_may).unwrap());
            let near = Prefixed::new(Bytes::new(), super::Metered::new(near, &Default::default()));
            let closing = testing::closing(services, &connection, Door::Connect);
            let intercepted = Box::pin(intercept(
                services,
                &self.interceptor,
                near,
                far.into(),
                &connection,
                &closing,
            ));
            let accepted = Box::pin(acceptor.accept(upstream));
            let client = Box::pin(async {
                let mut client = roots.open(host, client.into(), client_may).await?;
                client
                    .write_all(b"GET /a HTTP/1.1\r\nHost: web.test\r\n\r\n")
                    .await
                    .unwrap();
                client.shutdown().await.unwrap();
                Ok(client)
            });
            let (intercepted, upstream, client) = tokio::join!(intercepted, accepted, client);
            let mut heard = Vec::new();
            let client = match client {
                Ok(mut client) if intercepted.is_none() => {
                    client.read_to_end(&mut heard).await.unwrap();
                    Ok((client, heard))
                }
                client => client.map(|client| (client, heard)),
            };
            drop(upstream);
            closing.finish();
            (intercepted, client)
        }
    }

    #[tokio::test]
    async fn both_sides_speak_the_best_protocol_that_both_have() {
        use UpstreamProtocol::{Http1, Http2};
        let authorities = Authorities::create();
        let (services, audit) = authorities.trusting();
        for (may, agreed, speaks) in [
            ([true, true], Protocol::Http2, Http2),
            ([true, false], Protocol::Http1, Http1),
            ([false, true], Protocol::Http1, Http1),
            ([false, false], Protocol::Http1, Http1),
        ] {
            let (intercepted, _) = authorities
                .intercepted(&services, &authorities.own, may)
                .await;
            let intercepted = intercepted.unwrap();
            assert_eq!(
                (intercepted.negotiated(), intercepted.upstream_protocol()),
                (Some(agreed), speaks),
                "{may:?}"
            );
            assert_eq!(
                intercepted.http2_slot.is_some(),
                agreed == Protocol::Http2,
                "{may:?}"
            );
        }
        assert!(audit.decisions().is_empty());
    }

    #[tokio::test]
    async fn http_1_is_spoken_where_there_is_no_slot_for_http_2() {
        let authorities = Authorities::create();
        let (services, _) = authorities.trusting();
        let all: Vec<_> = std::iter::from_fn(|| authorities.interceptor.http2_slot()).collect();
        let (intercepted, _) = authorities
            .intercepted(&services, &authorities.own, [true, true])
            .await;
        assert_eq!(intercepted.unwrap().negotiated(), Some(Protocol::Http1));
        drop(all);
    }

    #[tokio::test]
    async fn a_client_is_told_inside_its_tls_that_its_upstream_is_not_trusted() {
        let authorities = Authorities::create();
        let (services, audit) = testing::services("{host: web.test, port: 443}");
        let (intercepted, client) = authorities
            .intercepted(&services, &authorities.own, [false, false])
            .await;
        let heard = client.unwrap().1;
        assert!(intercepted.is_none());
        assert!(
            heard.starts_with(b"HTTP/1.1 502 upstream_tls_invalid\r\n"),
            "{}",
            heard.escape_ascii()
        );
        assert_eq!(
            (audit.decisions(), audit.ended_by()),
            (vec!["upstream_tls_invalid"], vec![EndedBy::Upstream])
        );
    }

    #[tokio::test]
    async fn a_client_that_does_not_trust_the_ca_is_one_decision() {
        let authorities = Authorities::create();
        let (services, audit) = authorities.trusting();
        let (intercepted, client) = authorities
            .intercepted(&services, &UpstreamRoots::default(), [false, false])
            .await;
        assert!(intercepted.is_none() && client.is_err());
        assert_eq!(
            (audit.decisions(), audit.ended_by()),
            (vec!["client_tls_failed"], vec![EndedBy::Client])
        );
    }
}
