//! The proxy's ingress: reads, authorizes and answers requests; a permitted CONNECT yields a
//! connection.

pub mod connect;
pub mod door;
pub mod forward;
pub mod named;
pub mod socks;

use std::os::fd::AsFd;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioTimer;
use openshell_events::reason::ReasonCode;
use openshell_events::words::Door;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{Instrument as _, debug_span};

use crate::decide::identify::Identity;
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::doors::proxy::Proxy;
use crate::ground::limits::Limits;
use crate::ground::socket::ClientStream;
use crate::ground::target::{Origin, Scheme, Target};
use crate::inference;
use crate::inference::serve::Models;
use crate::policy_local;
use crate::policy_local::serve::PolicyClient;
use crate::relay::exchange::ExchangeError;
use crate::relay::http1::{Driver, Released, Session, connection, protocol as http1_protocol};
use crate::relay::services::Services;
use crate::report::closing::Closing;
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::{ResponseBody, full};
use crate::wire::http::head;
use crate::wire::io::metered::{Meter, Metered};
use door::{Connected, Ingress, Opened};

/// Serves the requests of one client, which `identity` identifies; returns its connection once a
/// CONNECT is permitted. The client's first byte shows whether it speaks SOCKS5.
pub async fn serve(proxy: &Proxy, client: ClientStream, identity: &Identity) -> Option<Connected> {
    let services = &*proxy.services;
    let mut first = [0; CONNECT.len()];
    // A client that sends nothing gets no decision.
    timeout(Limits::HEAD_DEADLINE, client.peek(&mut first))
        .await
        .ok()?
        .ok()?;
    if first.starts_with(&[socks::VERSION]) {
        return Box::pin(socks::serve(proxy, client, identity)).await;
    }
    let is_connect = first == *CONNECT;
    let largest = if is_connect {
        Limits::CONNECT_HEAD_BYTES
    } else {
        Limits::READ_HEAD_BYTES
    };
    let (session, driver) = connection(client.as_fd().try_clone_to_owned().ok());
    let (opener, mut opened) = mpsc::channel(1);
    let meter = Arc::default();
    let ingress = Ingress::new(proxy, identity, &client, Door::Connect);
    let requests = HttpIngress {
        ingress,
        session: &session,
        opener,
        meter: &meter,
        policy: None,
    };
    let client = Metered::new(client, &meter);
    let protocol = protocol(largest);
    let released = match requests.drive(driver, client, &protocol).await {
        Ok(released) => released,
        Err(refusal) => {
            let is_large = is_connect && refusal.code() == ReasonCode::RequestTooLarge;
            let refusal = if is_large {
                Refusal::connect_head_too_large()
            } else {
                refusal
            };
            Record::new(&services.audit, "request".to_owned(), None)
                .finish(Outcome::Refused(&refusal));
            return None;
        }
    };
    let opened = opened.try_recv().ok()?;
    let closing = ingress.closing(&opened);
    let Some(Released { stream, surplus }) = released else {
        // The client has not read the response.
        closing.left();
        return None;
    };
    Some(Connected {
        client: stream.into_inner(),
        surplus,
        opened,
        closing,
    })
}

/// Serves the requests of a client that is connected to the host by which programs ask about the
/// policy.
pub async fn serve_policy(
    proxy: &Proxy,
    client: ClientStream,
    identity: &Identity,
    policy: &PolicyClient,
    closing: &Closing,
) {
    let (session, driver) = connection(client.as_fd().try_clone_to_owned().ok());
    // No request opens a tunnel.
    let (opener, _) = mpsc::channel(1);
    let requests = HttpIngress {
        ingress: Ingress::new(proxy, identity, &client, Door::Name),
        session: &session,
        opener,
        meter: closing.meter(),
        policy: Some(policy),
    };
    let client = Metered::new(client, closing.meter());
    let served = requests.drive(driver, client, &http1_protocol()).await;
    if let Err(refusal) = served {
        let request = format!("CONNECT {}", policy.origin.target);
        let target = Some(policy.origin.target.clone());
        let mut record = Record::new(&proxy.services.audit, request, target);
        record.called_by(policy.asker.caller().clone());
        record.finish(Outcome::Refused(&refusal));
    }
}

/// Refuses a client because there are too many connections at once.
pub async fn refuse_excess(proxy: Arc<Proxy>, client: ClientStream) {
    let services = &*proxy.services;
    let answer = |request: Request<Incoming>| async move {
        let record = match *request.method() {
            Method::CONNECT => connect::intake(&services.audit, None, &request).0,
            _ => forward::intake(&services.audit, None, &request).0,
        };
        Some(refuse(
            services,
            &Refusal::limit_reached("too many connections at once"),
            record,
        ))
    };
    let (_session, driver) = connection(None);
    let _ = driver
        .serve(
            services,
            client,
            &protocol(Limits::CONNECT_HEAD_BYTES),
            answer,
        )
        .await;
}

/// The first bytes of a request for a tunnel.
const CONNECT: &[u8; 8] = b"CONNECT ";

/// Returns the HTTP/1.1 settings of the proxy's own listener: a head has at most `largest` bytes
/// and must arrive in time; a half-closed client still gets its response.
fn protocol(largest: usize) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::HEAD_DEADLINE)
        .max_buf_size(largest)
        .max_headers(Limits::READ_HEAD_LINES)
        .half_close(true)
        .auto_date_header(false)
        .preserve_header_case(true)
        .title_case_headers(true);
    protocol
}

/// The ingress of one client connection that carries HTTP requests.
struct HttpIngress<'p> {
    ingress: Ingress<'p>,
    session: &'p Session,
    /// Takes the other end of a tunnel, which opens with the response.
    opener: mpsc::Sender<Opened>,
    /// Counts the client's bytes.
    meter: &'p Arc<Meter>,
    /// The client, if it is connected to the host by which programs ask about the policy.
    policy: Option<&'p PolicyClient>,
}

impl<'p> HttpIngress<'p> {
    /// Serves `client`, like [`Driver::serve`].
    async fn drive(
        &self,
        driver: Driver,
        client: Metered<ClientStream>,
        protocol: &http1::Builder,
    ) -> Result<Option<Released<Metered<ClientStream>>>, Refusal> {
        let services = &self.ingress.proxy.services;
        let answer = |request| self.answer(request);
        driver.serve(services, client, protocol, answer).await
    }

    async fn answer(&self, request: Request<Incoming>) -> Option<Response<ResponseBody>> {
        if let Some(policy) = self.policy {
            let host = &self.ingress.proxy.policy_local;
            let services = &self.ingress.proxy.services;
            let answer = host.answer_inside(services, request, policy, self.session);
            return Some(Box::pin(answer).await);
        }
        let services = &*self.ingress.proxy.services;
        let audit = &services.audit;
        let names = self.ingress.proxy.names.as_deref();
        let (record, answered) = if request.method() == Method::CONNECT {
            let (mut record, target) = connect::intake(audit, names, &request);
            // A CONNECT that is not the first request of its connection, or whose first bytes came
            // in pieces, was read with the limit of other requests.
            let is_large =
                head::bytes(request.uri(), request.headers()) > Limits::CONNECT_HEAD_BYTES;
            let answered = match target {
                _ if is_large => Err(Refusal::connect_head_too_large()),
                Ok(target) if policy_local::is_host(&target) => {
                    return Some(self.wrong_scheme(record));
                }
                Ok(target) => {
                    let socket = self.session.socket();
                    self.ingress.open(target, socket, &mut record).await
                }
                Err(refusal) => Err(refusal),
            };
            (record, answered.map(|opened| self.established(opened)))
        } else {
            let (mut record, origin) = forward::intake(audit, names, &request);
            let answered = match origin {
                Ok(Origin {
                    scheme: Scheme::Https,
                    target,
                }) if inference::is_target(&target) => match self.models(target, &mut record) {
                    Ok(models) => {
                        return Some(Box::pin(models.answer(self.session, request, record)).await);
                    }
                    Err(refusal) => Err(refusal),
                },
                Ok(origin) if policy_local::is_host(&origin.target) => {
                    return Some(self.ask_policy(request, &origin, record).await);
                }
                Ok(origin) => {
                    let span = debug_span!("request", request = record.request());
                    match Box::pin(self.forward(request, origin, &mut record))
                        .instrument(span)
                        .await
                    {
                        Ok(response) => Ok(response),
                        Err(error) => {
                            let is_silent = matches!(error, ExchangeError::Closed);
                            let response = refuse(services, &error.into_refusal(), record);
                            return Some(response).filter(|_| !is_silent);
                        }
                    }
                }
                Err(refusal) => Err(refusal),
            };
            (record, answered)
        };
        Some(match answered {
            Ok(response) => {
                record.finish(Outcome::Allowed);
                response
            }
            Err(refusal) => refuse(services, &refusal, record),
        })
    }

    /// Answers a forwarded request to the host by which programs ask about the policy.
    async fn ask_policy(
        &self,
        request: Request<Incoming>,
        origin: &Origin,
        mut record: Record,
    ) -> Response<ResponseBody> {
        if !policy_local::is_origin(origin) {
            return self.wrong_scheme(record);
        }
        record.came_by(self.ingress.by(Door::Forward).way);
        if let Some(caller) = self.ingress.caller() {
            record.called_by(caller);
        }
        let Proxy {
            services,
            policy_local,
            ..
        } = self.ingress.proxy;
        match self.ingress.asker() {
            Ok(asker) => {
                let socket = self.session.socket();
                let answer = policy_local.answer(services, request, asker, socket, record);
                Box::pin(answer).await
            }
            Err(refusal) => refuse(services, &refusal, record),
        }
    }

    /// Refuses a request to the host by which programs ask about the policy that is none of HTTP.
    fn wrong_scheme(&self, mut record: Record) -> Response<ResponseBody> {
        record.came_by(self.ingress.way);
        if let Some(caller) = self.ingress.caller() {
            record.called_by(caller);
        }
        let refusal = Refusal::bad_request(policy_local::WRONG_SCHEME);
        record.finish(Outcome::Refused(&refusal));
        policy_local::answer::wrong_scheme().map(full)
    }

    /// Prepares to serve a forwarded request for a model.
    fn models(&self, target: Target, record: &mut Record) -> Result<Models<'p>, Refusal> {
        let services = &self.ingress.proxy.services;
        let caller = self.ingress.caller();
        if let Some(caller) = &caller {
            record.called_by(caller.clone());
        }
        let inference = self.ingress.proxy.inference.as_deref();
        let inference = inference.ok_or(Refusal::inference_not_configured())?;
        self.ingress.identity.as_ref().map_err(Clone::clone)?;
        Ok(Models {
            services,
            inference,
            caller,
            target,
        })
    }
}

fn refuse(services: &Services, refusal: &Refusal, record: Record) -> Response<ResponseBody> {
    let guidance = &services.guidance;
    let response = reply::refused(refusal, record.subject(), guidance).map(full);
    record.finish(Outcome::Refused(refusal));
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

    use super::{refuse_excess, serve};
    use crate::decide::identify::Identity;
    use crate::denial::refusal::Refusal;
    use crate::ground::limits::Limits;
    use crate::testing;

    fn nobody() -> Identity {
        Err(Refusal::caller_unknown("nobody".to_owned()))
    }

    /// Writes `said` and nothing else, and reads until the proxy ends the connection.
    async fn spoken(mut client: TcpStream, said: &[u8]) -> String {
        let mut heard = String::new();
        client.write_all(said).await.unwrap();
        client.shutdown().await.unwrap();
        client.read_to_string(&mut heard).await.unwrap();
        heard
    }

    /// Sends `request`, which must be refused, to the proxy. The answer must begin with `status`,
    /// and `codes` are all decisions. Egress panics if it is reached.
    async fn check(request: &str, status: &str, codes: &[&str]) {
        let (services, audit) =
            testing::services("{host: 8.8.8.8, port: 80}, {host: 8.8.8.8, port: 443}");
        let (client, near) = testing::tcp().await;
        let proxy = testing::proxy(&services);
        let identity = nobody();
        let served = serve(&proxy, near, &identity);
        let (connected, heard) = tokio::join!(served, spoken(client, request.as_bytes()));
        assert!(connected.is_none(), "{request}");
        assert!(heard.starts_with(status), "{request}: {heard}");
        assert_eq!(audit.decisions(), codes, "{request}");
    }

    #[tokio::test]
    async fn a_program_that_is_not_identified_is_refused_before_egress_at_each_door() {
        let unknown = "HTTP/1.1 403 caller_unknown\r\n";
        check(
            "CONNECT 8.8.8.8:443 HTTP/1.1\r\n\r\n",
            unknown,
            &["caller_unknown"],
        )
        .await;
        check(
            "GET http://8.8.8.8/ HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n",
            unknown,
            &["caller_unknown"],
        )
        .await;
        check(
            "GET https://8.8.8.8/ HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n",
            unknown,
            &["caller_unknown"],
        )
        .await;
    }

    #[tokio::test]
    async fn models_that_are_not_configured_are_refused_at_each_door() {
        let status = "HTTP/1.1 503 inference_not_configured\r\n";
        check(
            "CONNECT inference.local:443 HTTP/1.1\r\n\r\n",
            status,
            &["inference_not_configured"],
        )
        .await;
        let forwarded =
            "GET https://inference.local/v1/models HTTP/1.1\r\nHost: inference.local\r\n\r\n";
        check(forwarded, status, &["inference_not_configured"]).await;
    }

    #[tokio::test]
    async fn models_at_another_port_or_in_clear_text_are_a_host_like_any_other() {
        let unknown = "HTTP/1.1 403 caller_unknown\r\n";
        check(
            "CONNECT inference.local:80 HTTP/1.1\r\n\r\n",
            unknown,
            &["caller_unknown"],
        )
        .await;
        let forwarded =
            "GET http://inference.local:443/v1/models HTTP/1.1\r\nHost: inference.local\r\n\r\n";
        check(forwarded, unknown, &["caller_unknown"]).await;
    }

    #[tokio::test]
    async fn a_target_that_is_malformed_is_refused_and_its_client_is_not_looked_for() {
        for request in [
            "CONNECT 8.8.8.8 HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 8.8.8.8\r\n\r\n",
        ] {
            check(request, "HTTP/1.1 400 bad_request\r\n", &["bad_request"]).await;
        }
    }

    #[tokio::test]
    async fn a_head_that_is_no_head_is_one_decision() {
        check(
            "SSH-2.0-client\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\n",
            &["bad_request"],
        )
        .await;
        let large = format!(
            "GET http://8.8.8.8/ HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(2 * Limits::READ_HEAD_BYTES)
        );
        check(
            &large,
            "HTTP/1.1 431 Request Header Fields Too Large\r\n",
            &["request_too_large"],
        )
        .await;
        let large = format!(
            "\r\nCONNECT 8.8.8.8:443 HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(Limits::CONNECT_HEAD_BYTES)
        );
        check(
            &large,
            "HTTP/1.1 431 request_too_large\r\n",
            &["request_too_large"],
        )
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_end_in_time_is_refused() {
        let (services, audit) = testing::services("");
        let (mut client, near) = testing::tcp().await;
        client
            .write_all(b"GET http://8.8.8.8/ HTTP/1.1\r\nX: ")
            .await
            .unwrap();
        let begin = Instant::now();
        assert!(
            serve(&testing::proxy(&services), near, &nobody())
                .await
                .is_none()
        );
        assert!(begin.elapsed() >= Limits::HEAD_DEADLINE);
        assert_eq!(audit.decisions(), ["bad_request"]);
    }

    #[tokio::test]
    async fn a_client_beyond_the_bound_is_told_so_and_asked_nothing_else() {
        for request in [
            "CONNECT 8.8.8.8:443 HTTP/1.1\r\n\r\n",
            "GET http://8.8.8.8/ HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            let (services, audit) = testing::services("");
            let (client, near) = testing::tcp().await;
            let excess = refuse_excess(testing::proxy(&services), near);
            let ((), heard) = tokio::join!(excess, spoken(client, request.as_bytes()));
            assert!(
                heard.starts_with("HTTP/1.1 503 limit_reached\r\n"),
                "{heard}"
            );
            assert_eq!(audit.decisions(), ["limit_reached"]);
        }
    }

    #[tokio::test]
    async fn a_client_that_goes_without_a_word_is_no_decision() {
        let (services, audit) = testing::services("");
        let (client, near) = testing::tcp().await;
        drop(client);
        assert!(
            serve(&testing::proxy(&services), near, &nobody())
                .await
                .is_none()
        );
        assert!(audit.decisions().is_empty());
        assert_eq!(Arc::strong_count(&services), 1);
    }
}
