//! Serves connections to `inference.local`: routes each request, sends it to a backend, and streams
//! the response back.

use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use openshell_policy::inference::Backend;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tracing::{Instrument as _, debug_span};

use crate::denial::guidance::Guidance;
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::ground::limits::Limits;
use crate::ground::peer::Caller;
use crate::ground::shares::Share;
use crate::ground::target::{Origin, Scheme, Target};
use crate::inference::api::{self, ApiCall};
use crate::inference::backend::{BackendRequest, BackendSource, connect, origin};
use crate::inference::mock;
use crate::inference::model;
use crate::inference::route::{Inference, Route};
use crate::inference::stream::{Report, Streamed};
use crate::inference::usage::Meter;
use crate::relay::exchange::{Exchange, ExchangeError, Outbound};
use crate::relay::http1::{self, Session};
use crate::relay::services::Services;
use crate::report::record::{Outcome, Record};
use crate::wire::http::body::{ResponseBody, boxed, full};
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;

/// A server for one client's requests for models.
#[derive(Debug)]
pub struct Models<'c> {
    /// The services that exchanges use.
    pub services: &'c Services,
    /// The routes.
    pub inference: &'c Inference,
    /// The calling program, if it was identified; no decision depends on it.
    pub caller: Option<Caller>,
    /// The requested host and port.
    pub target: Target,
}

/// The error of a route.
enum RouteError {
    /// The backend of the route was not reached; the next route is tried.
    Unreachable(Refusal),
    /// The request failed, or was refused.
    Failed(Refusal),
}

/// The response of a route.
struct Routed {
    route: Arc<Route>,
    call: ApiCall,
    /// Estimated tokens of the request, counted when it was sent.
    cost: u64,
    response: RouteResponse,
}

enum RouteResponse {
    /// A canned response.
    Mock(Response<Bytes>),
    /// The response of a backend.
    Backend(Response<ResponseBody>),
}

impl Models<'_> {
    /// Serves the requests of `client`, whose TLS is terminated; `socket` is that of its
    /// connection.
    pub async fn serve<C>(&self, client: C, socket: Option<OwnedFd>)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (session, driver) = http1::connection(socket);
        let origin = Origin {
            scheme: Scheme::Https,
            target: self.target.clone(),
        };
        let answer = |request: Request<Incoming>| {
            let method = request.method().as_str();
            let path = request.uri().path();
            let target = self.target.clone();
            let record = Record::http(&self.services.audit, method, path, Scheme::Https, target);
            let mut record = record.inside(session.count());
            if let Some(caller) = &self.caller {
                record.called_by(caller.clone());
            }
            let (parts, body) = request.into_parts();
            let checked =
                head::check_authority(&parts, &origin).map(|()| Request::from_parts(parts, body));
            let session = &session;
            async move {
                match checked {
                    Ok(request) => Some(Box::pin(self.answer(session, request, record)).await),
                    Err(refusal) => Some(refused(&refusal, record)),
                }
            }
        };
        let protocol = http1::protocol();
        let mut served = pin!(driver.serve(self.services, client, &protocol, answer));
        let served = tokio::select! {
            biased;
            served = &mut served => served,
            () = self.preconnect(&session) => served.await,
        };
        if let Err(refusal) = served {
            let request = format!("CONNECT {}", self.target);
            let target = Some(self.target.clone());
            let mut record = Record::new(&self.services.audit, request, target);
            if let Some(caller) = &self.caller {
                record.called_by(caller.clone());
            }
            record.finish(Outcome::Refused(&refusal));
        }
    }

    /// Connects to the backend of the first route while the client prepares its request.
    async fn preconnect(&self, session: &Session) {
        let table = self.inference.table();
        if let Some(route) = table.first()
            && let Some(origin) = origin(route)
        {
            let mut kept = session.upstream.lock().await;
            if kept.upstream.is_unused() {
                // The request will dial again and report the failure.
                let _ = connect(self.services, route, &origin, &mut kept.upstream).await;
            }
        }
    }

    /// Responds to `request`, and finishes its `record`.
    pub async fn answer(
        &self,
        session: &Session,
        request: Request<Incoming>,
        mut record: Record,
    ) -> Response<ResponseBody> {
        record.intercepted();
        let span = debug_span!("request", request = record.request());
        let Routed {
            route,
            call,
            cost,
            response,
        } = match self
            .route(session, request, &mut record)
            .instrument(span)
            .await
        {
            Ok(routed) => routed,
            Err(refusal) => return refused(&refusal, record),
        };
        match response {
            RouteResponse::Mock(response) => {
                let mut meter = Meter::default();
                meter.read(response.body());
                route.settle(cost, meter.usage().total());
                record.record_usage(meter.usage(), "");
                record.finish(Outcome::Allowed);
                response.map(full)
            }
            RouteResponse::Backend(response) => {
                let (mut head, body) = in_form(call, response).into_parts();
                // Clients expect the standard reason phrase.
                head.extensions.remove::<ReasonPhrase>();
                let body = Streamed::new(
                    &head,
                    body,
                    Report {
                        record,
                        route,
                        call,
                        cost,
                    },
                );
                Response::from_parts(head, boxed(body))
            }
        }
    }

    /// Sends `request` to the first route that serves it and is reachable.
    async fn route(
        &self,
        session: &Session,
        request: Request<Incoming>,
        record: &mut Record,
    ) -> Result<Routed, Refusal> {
        let (parts, body) = request.into_parts();
        let (call, target) = self.call(&parts, record)?;
        let table = self.inference.table();
        if table.is_empty() {
            return Err(Refusal::inference_without_routes());
        }
        if table.serving(call.interface).next().is_none() {
            return Err(Refusal::inference_no_route());
        }
        let (body, held) = match call.method() {
            Method::GET if !body.is_end_stream() => {
                return Err(Refusal::bad_request("a GET may not have a body"));
            }
            Method::GET => (Bytes::new(), None),
            _ => {
                let read = self.read(body, table.max_request_bytes);
                let read = timeout(Limits::INFERENCE_BODY, read).await;
                read.map_err(|_| Refusal::bad_request(LATE))??
            }
        };
        let services = &self.services;
        let leaks = services.leaks.watch(&services.vault.load(), record, None);
        if let Some(leaks) = leaks {
            let searched = leaks.whole_of(body.clone(), record.program()).await;
            searched.map_err(Refusal::of_model)?;
        }
        let mut unreachable = None;
        for route in table.serving(call.interface) {
            record.routed(&route.name, call.interface.as_str(), call.kind);
            let request = BackendRequest {
                route,
                call,
                head: &parts,
                target: &target,
            };
            match self.send(session, &request, body.clone(), record).await {
                Ok(response) => {
                    drop(held);
                    return Ok(Routed {
                        route: Arc::clone(route),
                        call,
                        cost: cost(call, &body),
                        response,
                    });
                }
                Err(RouteError::Failed(refusal)) => return Err(refusal),
                Err(RouteError::Unreachable(refusal)) => {
                    tracing::warn!("inference route {}: {}", route.name, refusal.reason());
                    unreachable = Some(refusal);
                }
            }
        }
        Err(unreachable.unwrap_or(Refusal::inference_no_route()))
    }

    /// Checks the head of a request; returns its call and its target.
    fn call(
        &self,
        parts: &Parts,
        record: &mut Record,
    ) -> Result<(ApiCall, RequestTarget), Refusal> {
        head::check_method(&parts.method)?;
        head::check_size(parts)?;
        head::check_framing(&parts.headers)?;
        let target =
            RequestTarget::canonical(&parts.method, &parts.uri, false).map_err(Refusal::target)?;
        record.asks_for(target.path());
        let Some(call) = api::call(&parts.method, target.path()) else {
            let is_upgrade = parts.headers.contains_key(UPGRADE)
                && api::call(&Method::POST, target.path()).is_some();
            return Err(if is_upgrade {
                Refusal::upgrade_refused()
            } else {
                Refusal::inference_path_not_allowed()
            });
        };
        if !parts
            .headers
            .get_all(CONTENT_TYPE)
            .iter()
            .all(|kind| model::is_utf8(kind.as_bytes()))
        {
            return Err(Refusal::unsupported_encoding());
        }
        Ok((call, target))
    }

    /// Returns whose share of the memory a request takes: that of its program, or the one for all
    /// programs that the policy does not list.
    fn sharer(&self) -> &str {
        let program = self.caller.as_ref().map(|caller| &*caller.program);
        let listed =
            program.filter(|program| self.services.authorizer.policy.load().lists(program));
        listed.map_or("", |program| &program.executable)
    }

    /// Reads the body of a request of at most `most` bytes, within the memory for all such
    /// requests.
    async fn read(
        &self,
        mut body: Incoming,
        most: usize,
    ) -> Result<(Bytes, Option<Share>), Refusal> {
        let too_large = || Refusal::inference_request_too_large(most);
        if body.size_hint().lower() > most as u64 {
            return Err(too_large());
        }
        // If the length is known, all memory is acquired at once, so that no waiting request holds
        // a part of it.
        let mut room = body
            .size_hint()
            .exact()
            .and_then(|length| usize::try_from(length).ok())
            .unwrap_or(64 * 1024);
        let share = (kib(most) as usize).max(Limits::INFERENCE_KIB / 2);
        let taken = self.inference.memory.take(self.sharer(), kib(room), share);
        let taken = timeout(Limits::INFERENCE_WAIT, taken)
            .await
            .ok()
            .and_then(Result::ok);
        let mut held = taken.ok_or_else(too_many)?;
        let mut read = BytesMut::with_capacity(room);
        loop {
            let frame = timeout(Limits::INFERENCE_SILENCE, body.frame()).await;
            let Some(frame) = frame.map_err(|_| Refusal::bad_request(LATE))? else {
                break;
            };
            let malformed = |_| {
                Refusal::bad_request(
                    "the body of the request is malformed, or ended before its end",
                )
            };
            let Ok(data) = frame.map_err(malformed)?.into_data() else {
                continue;
            };
            if read.len() + data.len() > most {
                return Err(too_large());
            }
            if read.len() + data.len() > room {
                let more = room.max(data.len());
                held.grow(kib(more)).map_err(|_| too_many())?;
                room += more;
            }
            read.extend_from_slice(&data);
        }
        Ok((read.freeze(), Some(held)))
    }

    /// Sends `request` with `body` to the backend of its route.
    async fn send(
        &self,
        session: &Session,
        request: &BackendRequest<'_>,
        body: Bytes,
        record: &mut Record,
    ) -> Result<RouteResponse, RouteError> {
        let route = request.route;
        // A refund needs the same estimate.
        let streams = model::asks_for_stream(&body);
        let cost = cost(request.call, &body);
        let body = request.rewritten(body).await.map_err(RouteError::Failed)?;
        route.spend(cost).map_err(|limit| {
            RouteError::Failed(Refusal::inference_budget_exhausted(&route.name, limit))
        })?;
        let (Backend::Server { base, .. }, Some(origin)) = (&route.backend, origin(route)) else {
            tracing::warn!(
                "inference route {} does not lead to a model, because its endpoint is mock://",
                route.name
            );
            return Ok(RouteResponse::Mock(mock::answer(
                request.call,
                &route.model,
                streams,
            )));
        };
        let failed = |why: String| RouteError::Failed(Refusal::inference_failed(&why));
        let outbound = Outbound::own(request.build(&origin, base, body).map_err(failed)?);
        let mut kept = session.upstream.lock().await;
        let mut source = BackendSource::new(self.services, route, origin, &mut kept.upstream);
        let exchange = Exchange {
            services: self.services,
            upgrades: None,
            client: None,
            held: None,
        };
        match exchange.run(&mut source, outbound, record).await {
            Ok(response) => source
                .checked(response)
                .map(RouteResponse::Backend)
                .map_err(failed),
            Err(error) => {
                if !error.was_sent() {
                    route.refund(cost);
                }
                Err(source.error(error))
            }
        }
    }
}

impl BackendSource<'_> {
    /// Converts the `error` of an exchange.
    fn error(&self, error: ExchangeError) -> RouteError {
        let unavailable = Refusal::inference_unavailable;
        match error {
            ExchangeError::Refused(refusal) => RouteError::Failed(refusal),
            ExchangeError::Unreachable(refusal) => {
                RouteError::Unreachable(unavailable(refusal.reason()))
            }
            ExchangeError::Lost | ExchangeError::NotSent => RouteError::Unreachable(unavailable(
                &format!("{}: it closed the connection at once", self.backend()),
            )),
            ExchangeError::Failed(refusal) => {
                RouteError::Failed(Refusal::inference_failed(refusal.reason()))
            }
            ExchangeError::Closed => RouteError::Failed(Refusal::inference_failed(
                ExchangeError::Closed.into_refusal().reason(),
            )),
            ExchangeError::TimedOut(limit) => RouteError::Failed(Refusal::inference_timeout(limit)),
        }
    }
}

fn refused(refusal: &Refusal, record: Record) -> Response<ResponseBody> {
    // Requests for models are no matter of the policy.
    let response = reply::refused(refusal, record.subject(), &Guidance::default()).map(full);
    record.finish(Outcome::Refused(refusal));
    response
}

/// Returns the estimated tokens of a request for `call` with `body`.
fn cost(call: ApiCall, body: &Bytes) -> u64 {
    if call.is_free() {
        0
    } else {
        request_tokens(body.len())
    }
}

/// Returns the `response` to `call` in a form that its clients read, because a server that does not
/// count tokens may answer with a web page.
fn in_form(call: ApiCall, response: Response<ResponseBody>) -> Response<ResponseBody> {
    let kind = response
        .headers()
        .get(CONTENT_TYPE)
        .map(|kind| kind.as_bytes().to_ascii_lowercase());
    let is_json = kind.is_some_and(|kind| kind.starts_with(b"application/json"));
    if !call.is_free() || response.status() != StatusCode::NOT_FOUND || is_json {
        return response;
    }
    let message = "the server of the model does not count tokens";
    let content =
        json!({"type": "error", "error": {"type": "not_found_error", "message": message}});
    let mut answer = Response::new(full(Bytes::from(content.to_string())));
    *answer.status_mut() = StatusCode::NOT_FOUND;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

const LATE: &str = "the body of the request did not arrive in time";

/// Returns the KiB of memory for a body of `bytes`, which counts twice for its rewritten form.
fn kib(bytes: usize) -> u32 {
    u32::try_from((2 * bytes).div_ceil(1024)).unwrap_or(u32::MAX)
}

/// Estimates the tokens of a request of `bytes` bytes, until its response tells their number.
fn request_tokens(bytes: usize) -> u64 {
    bytes as u64 / 4
}

fn too_many() -> Refusal {
    Refusal::limit_reached("too many requests for models at once")
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::num::NonZeroU64;

    use openshell_policy::inference::Budget;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::net::{TcpListener, TcpStream};

    use super::{Inference, Models, Route};
    use crate::ground::limits::Limits;
    use crate::inference::route::RouteTable;
    use crate::testing;

    const KEY: &str = "sesame-open-0123";
    const MOCK: &str = "mock://";

    /// Returns a route to `backend` with a budget of `max_requests`.
    fn route(backend: &str, max_requests: Option<u64>) -> Route {
        let max_requests = max_requests.and_then(NonZeroU64::new);
        testing::route(
            backend,
            Budget {
                max_requests,
                max_tokens: None,
            },
            KEY,
        )
    }

    fn inference(routes: impl IntoIterator<Item = Route>) -> Inference {
        Inference::new(RouteTable::new(routes, 64))
    }

    /// Returns a chat completion request with `body` of the content type `kind`, for `host`.
    fn post(host: &str, kind: &str, body: &str) -> String {
        let length = body.len();
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer \
             mine\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    }

    fn chat(body: &str) -> String {
        post("inference.local", "application/json", body)
    }

    /// Returns everything that a client which sends `said` receives, and all decisions.
    async fn served(inference: &Inference, said: &str) -> (String, Vec<&'static str>) {
        let (services, audit) = testing::services("");
        let (client, near) = duplex(64 * 1024);
        let target = testing::target("inference.local:443");
        let models = Models {
            services: &services,
            inference,
            caller: None,
            target,
        };
        let ((), heard) = tokio::join!(models.serve(near, None), spoken(client, said));
        (heard, audit.decisions())
    }

    async fn spoken(mut client: DuplexStream, said: &str) -> String {
        let mut heard = String::new();
        client.write_all(said.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        client.read_to_string(&mut heard).await.unwrap();
        heard
    }

    #[track_caller]
    fn assert_refused((heard, decisions): (String, Vec<&'static str>), status: u16, code: &str) {
        assert!(
            heard.starts_with(&format!("HTTP/1.1 {status} {code}\r\n")),
            "{heard}"
        );
        assert_eq!(decisions, [code]);
    }

    /// Starts a backend that answers the first request of its first connection with `answer`.
    /// Returns its address, and a task that ends with what it has heard.
    async fn backend(answer: &'static str) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            answered(&mut stream, answer).await
        });
        (at(address), heard)
    }

    async fn answered(stream: &mut TcpStream, answer: &str) -> String {
        let mut heard = Vec::new();
        while !heard.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut heard).await.unwrap(), 0);
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(heard).unwrap()
    }

    fn at(address: SocketAddr) -> String {
        format!("http://{address}/v1")
    }

    #[tokio::test]
    async fn a_request_that_no_model_serves_is_refused_with_the_reason() {
        let one = || inference([route(MOCK, None)]);
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: inference.local\r\n\r\n");
        assert_refused(
            served(&inference([]), &chat("{}")).await,
            503,
            "inference_not_configured",
        );
        assert_refused(
            served(&one(), &get("/v1/models")).await,
            400,
            "inference_no_route",
        );
        assert_refused(
            served(&one(), &get("/v1/other")).await,
            403,
            "inference_path_not_allowed",
        );
        assert_refused(
            served(&one(), &post("other.test", "application/json", "{}")).await,
            421,
            "authority_mismatch",
        );
        let upgrade = "GET /v1/chat/completions HTTP/1.1\r\nHost: inference.local\r\nUpgrade: \
                       websocket\r\n\r\n";
        assert_refused(served(&one(), upgrade).await, 426, "upgrade_refused");
    }

    #[tokio::test]
    async fn a_head_that_is_malformed_is_one_decision() {
        let (heard, decisions) =
            served(&inference([route(MOCK, None)]), "SSH-2.0-client\r\n\r\n").await;
        assert!(heard.starts_with("HTTP/1.1 400 Bad Request"), "{heard}");
        assert_eq!(decisions, ["bad_request"]);
    }

    #[tokio::test]
    async fn a_body_that_is_not_json_in_utf_8_is_refused() {
        let one = || inference([route(MOCK, None)]);
        assert_refused(
            served(&one(), &chat("model=x")).await,
            415,
            "unsupported_encoding",
        );
        let other = post("inference.local", "application/json; charset=utf-16", "{}");
        assert_refused(served(&one(), &other).await, 415, "unsupported_encoding");
        let two = r#"{"model": "a", "Model": "b", "model": "c"}"#;
        assert_refused(served(&one(), &chat(two)).await, 400, "bad_request");
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() {
        let one = || inference([route(MOCK, None)]);
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(64));
        assert_refused(
            served(&one(), &chat(&large)).await,
            413,
            "request_too_large",
        );
        let chunked = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: inference.local\r\nTransfer-Encoding: \
             chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
            large.len()
        );
        assert_refused(served(&one(), &chunked).await, 413, "request_too_large");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_is_refused_in_a_while_and_one_without_room_too() {
        let (services, audit) = testing::services("");
        let (mut client, near) = duplex(64 * 1024);
        let target = testing::target("inference.local:443");
        let inference = inference([route(MOCK, None)]);
        let models = Models {
            services: &services,
            inference: &inference,
            caller: None,
            target,
        };
        client
            .write_all(&chat("{}").as_bytes()[..chat("{}").len() - 1])
            .await
            .unwrap();
        models.serve(near, None).await;
        assert_eq!(audit.decisions(), ["bad_request"]);
        let all = u32::try_from(Limits::INFERENCE_KIB).unwrap();
        let _held = inference
            .memory
            .take("/other", all, Limits::INFERENCE_KIB)
            .await
            .unwrap();
        assert_refused(served(&inference, &chat("{}")).await, 503, "limit_reached");
    }

    #[tokio::test(start_paused = true)]
    async fn programs_that_no_policy_lists_leave_half_of_the_memory_to_the_others() {
        let (services, audit) = testing::services("{host: web.test, port: 80}");
        let inference = inference([route(MOCK, None)]);
        let half = Limits::INFERENCE_KIB / 2;
        let _held = inference
            .memory
            .take("", u32::try_from(half).unwrap(), half)
            .await
            .unwrap();
        let listed = testing::connection(&services, "web.test:80")
            .caller()
            .clone();
        for caller in [None, Some(listed)] {
            let (client, near) = duplex(64 * 1024);
            let target = testing::target("inference.local:443");
            let models = Models {
                services: &services,
                inference: &inference,
                caller,
                target,
            };
            let said = chat("{}");
            tokio::join!(models.serve(near, None), spoken(client, &said));
        }
        assert_eq!(audit.decisions(), ["limit_reached", "allowed"]);
    }

    #[tokio::test]
    async fn a_budget_that_is_used_up_is_refused_and_the_connection_goes_on() {
        let one = inference([route(MOCK, Some(1))]);
        let (heard, decisions) = served(&one, &[chat("{}"), chat("{}"), chat("{}")].concat()).await;
        assert_eq!(
            decisions,
            [
                "allowed",
                "inference_budget_exhausted",
                "inference_budget_exhausted"
            ]
        );
        assert_eq!(
            heard
                .matches("HTTP/1.1 429 inference_budget_exhausted")
                .count(),
            2,
            "{heard}"
        );
    }

    #[tokio::test]
    async fn the_next_route_is_asked_where_one_cannot_be_reached() {
        let closed = at(testing::closed_address().await);
        let (heard, decisions) = served(
            &inference([route(&closed, None), route(MOCK, None)]),
            &chat("{}"),
        )
        .await;
        assert_eq!(decisions, ["allowed"]);
        assert!(
            heard.starts_with("HTTP/1.1 200") && heard.contains("openshell mock backend"),
            "{heard}"
        );
    }

    #[tokio::test]
    async fn a_request_that_reached_no_backend_costs_nothing() {
        let closed = inference([route(&at(testing::closed_address().await), Some(1))]);
        for _ in 0..2 {
            assert_refused(
                served(&closed, &chat("{}")).await,
                503,
                "inference_unavailable",
            );
        }
    }

    #[tokio::test]
    async fn a_backend_gets_the_routes_model_and_key_and_not_the_clients() {
        let (address, heard) =
            backend("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: x\r\n\r\n{}").await;
        let (answer, decisions) = served(
            &inference([route(&address, None)]),
            &chat(r#"{"model": "mine"}"#),
        )
        .await;
        assert_eq!(decisions, ["allowed"]);
        assert!(
            answer.contains("\r\n{}\r\n") && !answer.to_ascii_lowercase().contains("server:"),
            "{answer}"
        );
        let heard = heard.await.unwrap();
        assert!(
            heard.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"),
            "{heard}"
        );
        assert!(
            heard.contains(&format!("Bearer {KEY}\r\n")) && heard.contains("model-of-the-route"),
            "{heard}"
        );
        assert!(!heard.contains("mine"), "{heard}");
    }

    #[tokio::test]
    async fn a_key_that_comes_back_is_masked() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: \
                      16\r\n\r\nsesame-open-0123";
        let (address, _heard) = backend(answer).await;
        let (answer, _) = served(&inference([route(&address, None)]), &chat("{}")).await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && !answer.contains(KEY),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_redirection_is_not_followed_and_not_passed_on() {
        let (address, heard) = backend(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: \
                     http://other.test/\r\nContent-Length: 0\r\n\r\n",
        )
        .await;
        let first = route(&address, None);
        let (answer, decisions) = served(&inference([first, route(MOCK, None)]), &chat("{}")).await;
        heard.await.unwrap();
        assert!(!answer.contains("other.test"), "{answer}");
        assert_refused((answer, decisions), 502, "inference_error");
    }

    #[tokio::test]
    async fn a_backend_that_fails_once_it_has_the_request_is_not_followed_by_another_route() {
        let (address, _heard) = backend("HTTP/1.1 ").await;
        let routes = inference([route(&address, None), route(MOCK, None)]);
        assert_refused(served(&routes, &chat("{}")).await, 502, "inference_error");
    }
}
