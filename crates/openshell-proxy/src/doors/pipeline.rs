//! The pipeline of one connection, from its first request to its last byte.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use openshell_events::words::Door;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use crate::decide::identify::Identity;
use crate::decide::permit::{Inspection, Permit};
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::doors::ingress;
use crate::doors::ingress::door::{Connected, ModelsClient, Opened, PolicyConnection};
use crate::doors::proxy::Proxy;
use crate::ground::limits::Limits;
use crate::ground::socket::ClientStream;
use crate::ground::target::{Scheme, Target};
use crate::ground::trace::Stopwatch;
use crate::inference::serve::Models;
use crate::reach::authorize::connection::Connection;
use crate::reach::authorize::pause::Pause;
use crate::reach::dial::Dialed;
use crate::relay::http1::{self, denial_of_revoked, report_refused};
use crate::relay::http2::UpstreamProtocol;
use crate::relay::intercept::{Intercepted, intercept};
use crate::relay::opaque::{self, AnswerSearch, ClientSearch, Mask, OpaqueSearch, StreamEnd};
use crate::relay::services::Services;
use crate::relay::tunnel::HttpTunnel;
use crate::report::closing::Closing;
use crate::report::record::{Outcome, Record};
use crate::wire::detect::{Detected, Protocol, detect};
use crate::wire::io::lingering::Linger;
use crate::wire::io::metered::{Meter, Metered, Side};
use crate::wire::io::prefixed::Prefixed;
use crate::wire::io::upstream_stream::UpstreamStream;
use crate::wire::tls::terminate::read_client_hello;

/// The door at which a client came.
#[derive(Debug)]
pub enum Entry {
    /// The proxy's own door, which reads requests.
    Proxy,
    /// The door of a name; holds the target.
    Name(Target),
}

/// Serves one client, which `identity` identifies: answers its requests, and relays a permitted
/// connection until it ends.
pub async fn serve(proxy: Arc<Proxy>, client: ClientStream, identity: Identity, entry: Entry) {
    // Boxed, so that the memory for reading heads is freed before the relay, which may last for
    // hours.
    let connected = match entry {
        Entry::Proxy => Box::pin(ingress::serve(&proxy, client, &identity)).await,
        Entry::Name(target) => {
            Box::pin(ingress::named::serve(&proxy, client, &identity, target)).await
        }
    };
    let Some(Connected {
        client,
        surplus,
        opened,
        closing,
    }) = connected
    else {
        return;
    };
    let (dialed, mut watch) = match opened {
        Opened::Upstream(dialed, watch) => (dialed, watch),
        Opened::Models(models) => {
            let served = Box::pin(serve_models(&proxy, client, surplus, models, closing));
            return served.await;
        }
        Opened::PolicyLocal(opened) => {
            let PolicyConnection {
                client: of_policy,
                quota: _quota,
            } = opened;
            let served = ingress::serve_policy(&proxy, client, &identity, &of_policy, &closing);
            Box::pin(served).await;
            return closing.finish();
        }
    };
    drop(identity);
    let connection = Arc::clone(watch.connection());
    let lasted = Stopwatch::start();
    let pause = Pause::default();
    {
        let mut relayed = pin!(relay(
            &proxy,
            client,
            surplus,
            dialed,
            &connection,
            &closing
        ));
        tokio::select! {
            biased;
            refusal = watch.revoked(&proxy.services.authorizer, &pause) => {
                closing.refused(&refusal, denial_of_revoked(&proxy.services, &connection, &refusal));
                if connection.notify_shutdown() {
                    let _ = tokio::time::timeout(2 * Limits::GOAWAY_GRACE, relayed).await;
                }
            }
            relayed = pause.over(relayed.as_mut()) => if let Err(refusal) = relayed {
                // What is found in bytes of the established connection is a separate decision.
                if refusal.is_of_bytes() {
                        report_refused(&proxy.services, &connection, &refusal);
                        closing.stopped(&refusal);
                    } else { closing.refused(&refusal, denial_of_revoked(&proxy.services, &connection, &refusal)) }
            },
        }
    }
    closing.finish();
    debug!(us = lasted.micros(), "ended");
}

/// Serves a client's requests for models, inside TLS with the sandbox's certificate.
async fn serve_models(
    proxy: &Proxy,
    client: ClientStream,
    surplus: Bytes,
    models: ModelsClient,
    closing: Closing,
) {
    let services = &*proxy.services;
    let ModelsClient {
        caller,
        target,
        quota: _quota,
    } = models;
    let Some(inference) = &proxy.inference else {
        return;
    };
    let socket = client.as_fd().try_clone_to_owned().ok();
    closing.meter().add_from_client(surplus.len());
    let client = Metered::new(client, closing.meter());
    let method = format!("CONNECT {target}");
    let mut record = Record::new(&services.audit, method, Some(target.clone()));
    if let Some(caller) = &caller {
        record.called_by(caller.clone());
    }
    let terminated = async {
        let authority = proxy.interceptor.authority()?;
        let hello = read_client_hello(Prefixed::new(surplus, client)).await?;
        let program = caller
            .as_ref()
            .map_or("", |caller| caller.program.executable.as_str());
        hello
            .terminate(authority, &target.host, false, program)
            .await
    };
    match terminated.await {
        Ok((client, None)) => {
            record.left_to_requests();
            let models = Models {
                services,
                inference,
                caller,
                target,
            };
            let served = Box::pin(models.serve(client, socket));
            served.await;
        }
        Ok((client, Some(other))) => {
            let refusal = Refusal::authority_mismatch(other);
            closing.stopped(&refusal);
            http1::refuse(services, client, &refusal, record).await;
        }
        Err(refusal) => {
            closing.stopped(&refusal);
            record.finish(Outcome::Refused(&refusal));
        }
    }
    closing.finish();
}

/// Relays a connection according to the protocol detected in it, with the inspection that its
/// permit requires.
async fn relay(
    proxy: &Proxy,
    mut client: ClientStream,
    surplus: Bytes,
    dialed: Dialed,
    connection: &Arc<Connection>,
    closing: &Closing,
) -> Result<(), Refusal> {
    let services = &proxy.services;
    let meter = closing.meter();
    let Dialed {
        stream: mut upstream,
        address,
        quota: _quota,
    } = dialed;
    let permit = connection.permit();
    if let Inspection::Passthrough = permit.inspection() {
        let ends = OpaqueEnds {
            client,
            from_client: surplus,
            upstream,
            from_upstream: Bytes::new(),
        };
        return Box::pin(pass(services, connection, ends, closing)).await;
    }
    let may_be_opaque = permit.rules().is_none();
    let found = Box::pin(detect(&mut client, surplus, &mut upstream, may_be_opaque)).await;
    let Detected {
        protocol,
        from_client,
        from_upstream,
    } = match found {
        Ok(found) => found,
        Err(error) => {
            undetected(&error, &client, meter);
            return Ok(());
        }
    };
    debug!(?protocol, "detected");
    // The policy may have changed while the client was silent.
    let permit = connection.permit();
    match (protocol, permit.inspection()) {
        (Protocol::Tls, _) => {
            meter.add_from_client(from_client.len());
            let client = Prefixed::new(from_client, Metered::new(client, meter));
            Box::pin(relay_tls(
                proxy, client, upstream, address, connection, closing,
            ))
            .await
        }
        (Protocol::Http1 | Protocol::Http2, _) => {
            meter.add_from_client(from_client.len());
            let ends = Ends {
                socket: client.as_fd().try_clone_to_owned().ok(),
                client: Prefixed::new(from_client, Metered::new(client, meter)),
                upstream: Prefixed::new(from_upstream, upstream),
                address,
                upstream_protocol: UpstreamProtocol::Unknown,
                slot: None,
            };
            let tunnel = HttpTunnel::new(services, connection, Scheme::Http);
            Box::pin(relay_http(proxy, &tunnel, protocol, ends)).await
        }
        (Protocol::Malformed, _) | (Protocol::Other, Inspection::Judged(_)) => {
            drop(upstream);
            let answer = refuse_opaque(services, connection, &permit, closing);
            match closing.door() {
                // This client sent no request to the proxy, and does not speak HTTP.
                Some(Door::Name) => ingress::named::reset(&client),
                _ => Box::pin(end_with(client, &answer)).await,
            }
            Ok(())
        }
        (Protocol::Other, Inspection::Passthrough | Inspection::Unjudged) => {
            let ends = OpaqueEnds {
                client,
                from_client,
                upstream,
                from_upstream,
            };
            Box::pin(pass(services, connection, ends, closing)).await
        }
    }
}

/// The two ends of a connection whose bytes have no meaning here, each with what was read of it.
struct OpaqueEnds {
    client: ClientStream,
    from_client: Bytes,
    upstream: UpstreamStream,
    from_upstream: Bytes,
}

/// Relays the bytes between two ends.
async fn pass(
    services: &Services,
    connection: &Arc<Connection>,
    ends: OpaqueEnds,
    closing: &Closing,
) -> Result<(), Refusal> {
    let search = start_opaque(services, connection, true).await?;
    let OpaqueEnds {
        client,
        from_client,
        upstream,
        from_upstream,
    } = ends;
    let meter = closing.meter();
    let end = opaque::relay(client, from_client, upstream, from_upstream, search, meter);
    noted(closing, end.await)
}

/// Ends a connection that one side has ended before its protocol was detected.
fn undetected(error: &io::Error, client: &ClientStream, meter: &Meter) {
    match error.kind() {
        io::ErrorKind::ConnectionReset => ingress::named::reset(client),
        // The client has ended it without sending anything.
        io::ErrorKind::UnexpectedEof => meter.note_end(Side::Client),
        _ => {}
    }
}

/// Intercepts TLS, and relays the connection inside it.
async fn relay_tls(
    proxy: &Proxy,
    client: Prefixed<Metered<ClientStream>>,
    upstream: UpstreamStream,
    address: SocketAddr,
    connection: &Arc<Connection>,
    closing: &Closing,
) -> Result<(), Refusal> {
    let services = &proxy.services;
    let socket = client.as_fd().try_clone_to_owned().ok();
    let watch = Stopwatch::start();
    let intercepted = Box::pin(intercept(
        services,
        &proxy.interceptor,
        client,
        upstream,
        connection,
        closing,
    ))
    .await;
    let Some(mut intercepted) = intercepted else {
        return Ok(());
    };
    let upstream_protocol = intercepted.upstream_protocol();
    let may_be_opaque = connection.permit().rules().is_none();
    let found = Box::pin(inside(&mut intercepted, may_be_opaque)).await;
    let Ok(Detected {
        protocol,
        from_client,
        from_upstream,
    }) = found
    else {
        return Ok(());
    };
    debug!(?protocol, upstream = ?upstream_protocol, us = watch.micros(), "TLS intercepted");
    let Intercepted {
        client,
        upstream,
        http2_slot: slot,
    } = intercepted;
    let permit = connection.permit();
    match (protocol, permit.inspection()) {
        (Protocol::Http1 | Protocol::Http2, _) => {
            let ends = Ends {
                client: Prefixed::new(from_client, client),
                socket,
                upstream: Prefixed::new(from_upstream, upstream),
                address,
                upstream_protocol,
                slot,
            };
            let tunnel = HttpTunnel::new(services, connection, Scheme::Https);
            Box::pin(relay_http(proxy, &tunnel, protocol, ends)).await
        }
        (Protocol::Tls | Protocol::Malformed, _) | (Protocol::Other, Inspection::Judged(_)) => {
            drop(upstream);
            let answer = refuse_opaque(services, connection, &permit, closing);
            end_with(client, &answer).await;
            Ok(())
        }
        (Protocol::Other, Inspection::Passthrough | Inspection::Unjudged) => {
            let search = start_opaque(services, connection, false).await?;
            let client = Prefixed::new(from_client, client);
            let upstream = Prefixed::new(from_upstream, upstream);
            noted(closing, opaque::copy(client, upstream, search).await)
        }
    }
}

/// Returns the protocol inside TLS, either as negotiated or as detected.
async fn inside(intercepted: &mut Intercepted, may_be_opaque: bool) -> io::Result<Detected> {
    if let Some(protocol) = intercepted.negotiated() {
        return Ok(Detected {
            protocol,
            from_client: Bytes::new(),
            from_upstream: Bytes::new(),
        });
    }
    let client = &mut intercepted.client;
    let upstream = &mut intercepted.upstream;
    detect(client, Bytes::new(), upstream, may_be_opaque).await
}

/// Both ends of a connection that carries HTTP.
struct Ends<C, U> {
    client: C,
    /// The client's socket.
    socket: Option<OwnedFd>,
    upstream: U,
    address: SocketAddr,
    /// The protocol that the upstream speaks.
    upstream_protocol: UpstreamProtocol,
    /// The slot for HTTP/2, if one was acquired during ALPN.
    slot: Option<OwnedSemaphorePermit>,
}

/// Relays the requests of a client that speaks `protocol`.
async fn relay_http<C, U>(
    proxy: &Proxy,
    tunnel: &HttpTunnel,
    protocol: Protocol,
    ends: Ends<C, U>,
) -> Result<(), Refusal>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Ends {
        client,
        socket,
        upstream,
        address,
        upstream_protocol,
        slot,
    } = ends;
    if protocol != Protocol::Http2 {
        tunnel.serve_http1(client, socket, upstream, address).await;
        return Ok(());
    }
    let too_many = Refusal::limit_reached("too many HTTP/2 connections at once");
    let _slot = slot
        .or_else(|| proxy.interceptor.http2_slot())
        .ok_or(too_many)?;
    drop(socket);
    tunnel
        .serve_http2(client, upstream, address, upstream_protocol)
        .await;
    Ok(())
}

/// Why a relay of bytes ends when it turns out to carry requests.
const HIDDEN_HTTP: &str = "the connection does not begin as HTTP or TLS, but holds a request or an \
                           answer of one of them, or turns to TLS (STARTTLS); to permit that, set \
                           `protocol: tcp` on the endpoint";

/// Authorizes an uninspected relay, which is `raw` if it is not inside TLS; returns the searches of
/// its bytes. A passthrough connection is only searched for placeholders.
async fn start_opaque(
    services: &Services,
    connection: &Connection,
    raw: bool,
) -> Result<OpaqueSearch, Refusal> {
    connection.start_opaque(&services.authorizer, raw).await?;
    let permit = connection.permit();
    let client = ClientSearch::new(&services.vault.load());
    if let Inspection::Passthrough = permit.inspection() {
        return Ok(OpaqueSearch {
            client,
            answers: AnswerSearch::default(),
        });
    }
    let refusal = Refusal::unsupported_protocol(HIDDEN_HTTP, permit.policy().map(str::to_owned));
    let mask = Mask::of(services, connection)?;
    let answers = AnswerSearch::default()
        .without_http(refusal.clone())
        .masking(mask);
    Ok(OpaqueSearch {
        client: client.without_requests(refusal),
        answers,
    })
}

/// Returns the refusal that has ended an uninspected connection, if one has. An I/O error of one
/// side is not a decision; the other side notices it when its connection ends.
fn noted(closing: &Closing, relayed: Result<(), StreamEnd>) -> Result<(), Refusal> {
    match relayed {
        Err(StreamEnd::Refused(refusal)) => Err(*refusal),
        Err(StreamEnd::Idle) => {
            closing.limited("neither side has sent anything for too long");
            Ok(())
        }
        Ok(()) | Err(StreamEnd::Io(_)) => Ok(()),
    }
}

/// Refuses a connection whose protocol cannot be judged, but must be; returns the answer.
fn refuse_opaque(
    services: &Services,
    connection: &Connection,
    permit: &Permit,
    closing: &Closing,
) -> Vec<u8> {
    let what = match permit.rules() {
        Some(_) => {
            "the policy has rules for the requests of this connection, but it speaks neither \
             HTTP/1.1 nor HTTP/2"
        }
        None => {
            "the connection begins as HTTP or TLS but is neither, or it has TLS inside TLS; to \
             permit that, set `protocol: tcp` on the endpoint"
        }
    };
    let refusal = Refusal::unsupported_protocol(what, permit.policy().map(str::to_owned));
    let record = Record::of(
        &services.audit,
        connection.caller(),
        connection.target().clone(),
    );
    let answer = reply::raw(&refusal, record.subject(), &services.guidance);
    closing.stopped(&refusal);
    record.finish(Outcome::Refused(&refusal));
    answer
}

/// Sends `answer` to `client` and closes the connection so that `client` can read all of it.
async fn end_with<C: AsyncRead + AsyncWrite + Unpin>(client: C, answer: &[u8]) {
    // The client may be gone already.
    let mut client = Linger::new(client, Arc::default());
    let _ = client.write_all(answer).await;
    let _ = client.shutdown().await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openshell_events::reason::ReasonCode;
    use openshell_policy::credential::{Binding, CredentialName};
    use openshell_policy::secret::Secret;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::{Bytes, Dialed, Door, Limits, Proxy, Refusal, relay};
    use crate::credentials::vault::Vault;
    use crate::testing::{self, Remembered, UPSTREAM};

    const PLAIN: &str = "{host: web.test, port: 80}";
    const SKIPPED: &str = "{host: web.test, port: 80, tls: skip}";
    const ONLY_B: &str = "{host: web.test, port: 80, protocol: rest, enforcement: enforce, rules: \
                          [{allow: {method: GET, path: /b}}]}";
    const NO_HTTP: &[u8] = b"SSH-2.0-client\r\n";
    /// The head of a TLS record that contains a ClientHello.
    const HELLO: &[u8] = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03";

    /// Everything that a connection led to.
    #[derive(Debug)]
    struct Relayed {
        outcome: Result<(), Refusal>,
        decisions: Vec<&'static str>,
        by_client: String,
        by_upstream: String,
    }

    fn proxy(endpoints: &str) -> (Arc<Proxy>, Arc<Remembered>) {
        let (services, audit) = testing::services(endpoints);
        (testing::proxy(&services), audit)
    }

    /// Writes `said`, and reads until the end.
    async fn spoken(mut end: TcpStream, said: &[u8]) -> String {
        let mut heard = Vec::new();
        end.write_all(said).await.unwrap();
        end.shutdown().await.unwrap();
        // An end that is reset keeps what it has read before.
        let _ = end.read_to_end(&mut heard).await;
        heard.escape_ascii().to_string()
    }

    /// Relays a connection of curl to web.test, whose client sends `said` and whose upstream sends
    /// `answer`; `change` runs between its permit and its first byte.
    async fn relayed_after(
        endpoints: &str,
        said: &[u8],
        answer: &[u8],
        change: impl FnOnce(&Proxy),
    ) -> Relayed {
        relayed_by(Door::Connect, endpoints, said, answer, change).await
    }

    /// Does the same for a client that came by `door`.
    async fn relayed_by(
        door: Door,
        endpoints: &str,
        said: &[u8],
        answer: &[u8],
        change: impl FnOnce(&Proxy),
    ) -> Relayed {
        let (client, near) = testing::tcp().await;
        let (far, upstream) = testing::tcp().await;
        let (proxy, audit) = proxy(endpoints);
        let connection = testing::connection(&proxy.services, "web.test:80");
        let quota = proxy.services.egress.reserve("/usr/bin/curl").unwrap();
        let dialed = Dialed {
            stream: far.into(),
            address: (UPSTREAM, 80).into(),
            quota,
        };
        change(&proxy);
        let closing = testing::closing(&proxy.services, &connection, door);
        let (outcome, by_client, by_upstream) = tokio::join!(
            relay(&proxy, near, Bytes::new(), dialed, &connection, &closing),
            spoken(client, said),
            spoken(upstream, answer)
        );
        Relayed {
            outcome,
            decisions: audit.decisions(),
            by_client,
            by_upstream,
        }
    }

    async fn relayed(endpoints: &str, said: &[u8], answer: &[u8]) -> Relayed {
        relayed_after(endpoints, said, answer, |_| ()).await
    }

    #[tokio::test]
    async fn bytes_that_rules_cannot_see_are_refused_and_none_reaches_the_upstream() {
        let relayed = relayed(ONLY_B, NO_HTTP, b"").await;
        assert_eq!(relayed.outcome, Ok(()));
        assert_eq!(relayed.decisions, ["unsupported_l7_protocol"]);
        assert!(
            relayed
                .by_client
                .starts_with("HTTP/1.1 403 unsupported_l7_protocol"),
            "{}",
            relayed.by_client
        );
        assert_eq!(relayed.by_upstream, "");
    }

    #[tokio::test]
    async fn a_client_that_asked_for_no_tunnel_is_not_answered_in_a_protocol_that_it_does_not_speak()
     {
        let refused = relayed_by(Door::Name, ONLY_B, NO_HTTP, b"", |_| ()).await;
        assert_eq!(refused.decisions, ["unsupported_l7_protocol"]);
        assert_eq!(
            (refused.by_client.as_str(), refused.by_upstream.as_str()),
            ("", "")
        );
    }

    #[tokio::test]
    async fn a_request_that_its_rules_deny_is_answered_and_none_of_it_reaches_the_upstream() {
        let relayed = relayed(ONLY_B, b"GET /a HTTP/1.1\r\nHost: web.test\r\n\r\n", b"").await;
        assert_eq!(relayed.decisions, ["request_not_in_rules"]);
        assert!(
            relayed
                .by_client
                .starts_with("HTTP/1.1 403 request_not_in_rules"),
            "{}",
            relayed.by_client
        );
        assert_eq!(relayed.by_upstream, "");
    }

    #[tokio::test]
    async fn bytes_without_rules_are_relayed_as_they_are_both_ways() {
        for endpoints in [PLAIN, SKIPPED] {
            let relayed = relayed(endpoints, NO_HTTP, b"SSH-2.0-server\r\n").await;
            assert_eq!(relayed.outcome, Ok(()), "{endpoints}");
            assert_eq!(
                relayed.by_upstream,
                NO_HTTP.escape_ascii().to_string(),
                "{endpoints}"
            );
            assert_eq!(relayed.by_client, "SSH-2.0-server\\r\\n", "{endpoints}");
        }
    }

    #[tokio::test]
    async fn tls_that_is_skipped_is_relayed_as_it_is_and_any_other_is_not_without_a_ca() {
        let skipped = relayed(SKIPPED, HELLO, b"").await;
        assert_eq!(
            (skipped.outcome, skipped.by_upstream),
            (Ok(()), HELLO.escape_ascii().to_string())
        );
        for endpoints in [PLAIN, ONLY_B] {
            let intercepted = relayed(endpoints, HELLO, b"").await;
            assert_eq!(
                intercepted.decisions,
                ["authority_unavailable"],
                "{endpoints}"
            );
            assert_eq!(
                (intercepted.by_client, intercepted.by_upstream),
                (String::new(), String::new())
            );
        }
    }

    #[tokio::test]
    async fn a_passthrough_waits_for_nothing_that_its_client_says() {
        let relayed = relayed(SKIPPED, b"", b"220 ready\r\n").await;
        assert_eq!(
            (relayed.outcome, relayed.by_client.as_str()),
            (Ok(()), "220 ready\\r\\n")
        );
    }

    #[tokio::test]
    async fn rules_that_come_before_the_first_byte_hold_for_it() {
        let change = |proxy: &Proxy| {
            proxy
                .services
                .authorizer
                .policy
                .replace(testing::snapshot(2, ONLY_B));
        };
        for endpoints in [PLAIN, SKIPPED] {
            let relayed = relayed_after(endpoints, NO_HTTP, b"", change).await;
            assert_eq!(
                relayed.outcome.unwrap_err().code(),
                ReasonCode::PolicyChanged,
                "{endpoints}"
            );
            assert_eq!(relayed.by_upstream, "", "{endpoints}");
        }
    }

    #[tokio::test]
    async fn http_2_beyond_the_slots_is_refused_and_none_of_it_reaches_the_upstream() {
        let mut slots = Vec::new();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let relayed = relayed_after(PLAIN, preface, b"", |proxy| {
            slots.extend(
                (0..Limits::HTTP2_CONNECTIONS).map(|_| proxy.interceptor.http2_slot().unwrap()),
            );
        });
        let relayed = relayed.await;
        assert_eq!(
            relayed.outcome.unwrap_err().code(),
            ReasonCode::LimitReached
        );
        assert_eq!(relayed.by_upstream, "");
    }

    #[tokio::test(start_paused = true)]
    async fn what_begins_as_http_or_tls_and_is_neither_reaches_no_upstream() {
        for said in [
            b"GET  /kv HTTP/1.1\r\nHost: other.test\r\n\r\n".as_slice(),
            b" GET /kv HTTP/1.1\r\n\r\n",
            b"GET\t/kv HTTP/1.1\r\n\r\n",
            b"get key\r\n",
            b"003egit-upload-pack /p\0host=x\0",
            b"NICK somebody\r\n",
            b"\x80\x2e\x01\x03\x01\0",
            // OpenSSL skips an empty record before a handshake, and uWSGI reads any first word.
            b"\x14\x03\x01\0\0\x16\x03\x01\0\x05",
            b"@GET /kv HTTP/1.1\r\nHost: other.test\r\n\r\n",
            b"\0GET /kv HTTP/1.1\r\n\r\n",
        ] {
            for endpoints in [PLAIN, ONLY_B] {
                let relayed = relayed_after(endpoints, said, b"", |_| ()).await;
                assert_eq!(
                    relayed.by_upstream,
                    "",
                    "{endpoints} {}",
                    said.escape_ascii()
                );
            }
        }
    }

    #[tokio::test]
    async fn what_ends_in_a_request_line_reaches_no_upstream() {
        for said in [
            b"GET /kv".as_slice(),
            b"GET ",
            b"\r\nGET /kv HTTP/1.1\r",
            b"PRI * HTTP/2.0\r\n",
        ] {
            let (proxy, audit) = proxy(PLAIN);
            let (mut client, near) = testing::tcp().await;
            let (far, upstream) = testing::tcp().await;
            let connection = testing::connection(&proxy.services, "web.test:80");
            let quota = proxy.services.egress.reserve("/usr/bin/curl").unwrap();
            let dialed = Dialed {
                stream: far.into(),
                address: (UPSTREAM, 80).into(),
                quota,
            };
            let closing = testing::closing(&proxy.services, &connection, Door::Connect);
            client.write_all(said).await.unwrap();
            client.shutdown().await.unwrap();
            relay(&proxy, near, Bytes::new(), dialed, &connection, &closing)
                .await
                .unwrap();
            assert_eq!(spoken(upstream, b"").await, "", "{}", said.escape_ascii());
            assert_eq!(audit.decisions(), ["unsupported_l7_protocol"]);
        }
    }

    #[tokio::test]
    async fn an_answer_in_http_or_tls_to_what_is_neither_does_not_arrive() {
        for answer in [
            b"HTTP/1.0 200 OK\r\n\r\nsecret".as_slice(),
            b"\x16\x03\x03\0\x7a\x02\0\0\x76",
        ] {
            let relayed = relayed(PLAIN, NO_HTTP, answer).await;
            assert_eq!(
                relayed.outcome.unwrap_err().code(),
                ReasonCode::UnsupportedL7Protocol
            );
            assert_eq!(relayed.by_client, "");
            let skipped = relayed_after(SKIPPED, NO_HTTP, answer, |_| ()).await;
            assert_eq!(skipped.by_client, answer.escape_ascii().to_string());
        }
    }

    #[tokio::test]
    async fn a_secret_in_the_bytes_of_an_answer_is_masked_but_where_the_policy_has_bytes() {
        let keys = |proxy: &Proxy| {
            let key = |name, secret: &str| {
                let binding = Binding {
                    hosts: None,
                    path: None,
                };
                (
                    CredentialName::parse(name).unwrap(),
                    Secret::new(secret.as_bytes().to_vec()),
                    binding,
                )
            };
            // A short one is in a cipher by chance.
            proxy
                .services
                .vault
                .replace(Vault::new([key("KEY", "sesame-open"), key("PIN", "1234")]));
        };
        for (endpoints, heard) in [
            (PLAIN, "\\x00***********1234\\x01"),
            (SKIPPED, "\\x00sesame-open1234\\x01"),
        ] {
            let relayed = relayed_after(endpoints, NO_HTTP, b"\0sesame-open1234\x01", keys).await;
            assert_eq!(
                (relayed.outcome, relayed.by_client.as_str()),
                (Ok(()), heard),
                "{endpoints}"
            );
        }
    }

    #[tokio::test]
    async fn a_placeholder_in_bytes_that_are_not_read_is_refused_and_does_not_leave() {
        let key = |proxy: &Proxy| {
            let name = CredentialName::parse("KEY").unwrap();
            let binding = Binding {
                hosts: None,
                path: None,
            };
            proxy.services.vault.replace(Vault::new([(
                name,
                Secret::new(b"sesame-open".to_vec()),
                binding,
            )]));
        };
        for endpoints in [PLAIN, SKIPPED] {
            let auth = b"*2\r\n$4\r\nAUTH\r\n$25\r\nopenshell:resolve:env:KEY\r\n";
            let relayed = relayed_after(endpoints, auth, b"", key).await;
            assert_eq!(
                relayed.outcome.unwrap_err().code(),
                ReasonCode::CredentialNotReplaceable,
                "{endpoints}"
            );
            assert_eq!(relayed.by_upstream, "", "{endpoints}");
        }
    }
}
