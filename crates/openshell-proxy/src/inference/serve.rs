//! A connection to `inference.local`: each request routed, sent and answered as its backend answers.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, UPGRADE};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Uri};
use openshell_policy::inference::{Backend, HOST};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::connect::connect_to;
use crate::context::Context;
use crate::credentials::echo::scrubbed;
use crate::credentials::release::release;
use crate::credentials::vault::Vault;
use crate::http::head;
use crate::http::reply::{self, Body};
use crate::http::target::RequestTarget;
use crate::inference::api::{self, Call};
use crate::inference::model::{self, BodyError};
use crate::inference::route::{Inference, Route};
use crate::inference::stream::{Report, Streamed};
use crate::inference::usage::Meter;
use crate::inference::{headers, mock};
use crate::limits::Limits;
use crate::peer::Caller;
use crate::record::{Outcome, Record};
use crate::refusal::{InferenceFault, Refusal};
use crate::relay::http::{inside, keep};
use crate::relay::session::Session;
use crate::relay::upstream::{NotAnswered, Origin, Outgoing, Upstream};
use crate::target::{Scheme, Target};

/// Whether `target` is where models are.
#[must_use]
pub fn is_target(target: &Target) -> bool {
    target.port == Scheme::Https.default_port() && target.host.to_string() == HOST
}

/// The models, for one client.
#[derive(Debug)]
pub struct Models<'c> {
    /// What all connections share.
    pub ctx: &'c Context,
    /// The routes.
    pub inference: &'c Inference,
    /// Who asks, if that is known; nothing depends on it.
    pub caller: Option<Caller>,
    /// What the client calls them.
    pub target: Target,
}

/// Why a route gives no answer.
enum NotAsked {
    /// Its backend was not reached; another may be.
    Unreached(Refusal),
    /// It failed, or was refused.
    Failed(Refusal),
}

impl Models<'_> {
    /// Serves the requests of `client`, whose TLS is opened, and whose socket is `socket`.
    pub async fn serve<C>(&self, client: C, socket: Option<OwnedFd>)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let session = Session::new(socket);
        let answer = |request: Request<Incoming>| {
            let (method, path, target) = (request.method().as_str(), request.uri().path(), self.target.clone());
            let mut record = Record::http(&self.ctx.audit, method, path, Scheme::Https, target).inside(session.count());
            self.caller.iter().for_each(|caller| record.called_by(caller.clone()));
            let checked = {
                let (parts, body) = request.into_parts();
                let checked = head::check_authority(&parts, Scheme::Https, &self.target);
                checked.map(|()| Request::from_parts(parts, body))
            };
            let session = &session;
            async move {
                match checked {
                    Ok(request) => Some(Box::pin(self.answer(session, request, record)).await),
                    Err(refusal) => Some(self.refused(&refusal, record)),
                }
            }
        };
        let protocol = inside();
        let mut served = pin!(session.serve(self.ctx, client, &protocol, answer));
        let served = tokio::select! {
            biased;
            served = &mut served => served,
            () = self.warm(&session) => served.await,
        };
        if let Err(Some(refusal)) = served {
            let mut record =
                Record::new(&self.ctx.audit, format!("CONNECT {}", self.target), Some(self.target.clone()));
            self.caller.iter().for_each(|caller| record.called_by(caller.clone()));
            record.finish(Outcome::Refused(&refusal));
        }
    }

    /// Connects to the backend that will probably be asked, while the client still makes up its mind.
    async fn warm(&self, session: &Session) {
        let table = self.inference.table();
        if let Some(route) = table.first()
            && let Some(origin) = origin(route)
        {
            let mut connection = session.upstream.lock().await;
            if connection.0.is_unused() {
                // Who asks dials again, and hears why that fails.
                let _ = self.dial(route, &origin, &mut connection.0).await;
            }
        }
    }

    /// Answers `request`, of which `record` is.
    pub async fn answer(&self, session: &Session, request: Request<Incoming>, mut record: Record) -> Response<Body> {
        record.intercepted();
        match self.route(session, request, &mut record).await {
            Ok((route, asked, response)) => match response {
                Either::Left(response) => {
                    let mut meter = Meter::default();
                    meter.read(response.body());
                    route.spent(asked, meter.usage().total());
                    record.took(meter.usage(), "");
                    record.finish(Outcome::Allowed);
                    response.map(|body| Either::Left(Full::new(body)))
                }
                Either::Right(response) => {
                    record.carries(route.credential().map(|credential| credential.name().to_owned()));
                    let credentials: Vec<_> = route.credential().cloned().into_iter().collect();
                    let echo = record.echo(&credentials);
                    let (mut head, body) = scrubbed(response, &credentials, (echo, false)).into_parts();
                    // What a backend says there is nothing that clients read.
                    head.extensions.remove::<ReasonPhrase>();
                    record.carries([]);
                    let report = Report { record, route, asked };
                    let body = Streamed::new(&head, body, report);
                    Response::from_parts(head, reply::altered(body))
                }
            },
            Err(refusal) => self.refused(&refusal, record),
        }
    }

    fn refused(&self, refusal: &Refusal, record: Record) -> Response<Body> {
        let response = reply::refused(refusal, &record);
        record.finish(Outcome::Refused(refusal));
        response
    }

    /// Asks the first route that serves it and can be reached.
    async fn route(
        &self,
        session: &Session,
        request: Request<Incoming>,
        record: &mut Record,
    ) -> Result<(Arc<Route>, u64, Either<Response<Bytes>, Response<Incoming>>), Refusal> {
        let (parts, body) = request.into_parts();
        head::check_method(&parts.method)?;
        head::check_framing(&parts.headers)?;
        let target = RequestTarget::canonical(&parts.method, &parts.uri, false).map_err(Refusal::Target)?;
        record.asks_for(target.path());
        let refused = |fault| Err(Refusal::Inference(fault));
        let Some(call) = api::call(&parts.method, target.path()) else {
            let is_upgrade = parts.headers.contains_key(UPGRADE) && api::call(&Method::POST, target.path()).is_some();
            return refused(if is_upgrade { InferenceFault::Upgrade } else { InferenceFault::NoCall });
        };
        if !parts.headers.get_all(CONTENT_TYPE).iter().all(|kind| model::is_utf8(kind.as_bytes())) {
            return refused(InferenceFault::Encoding);
        }
        let table = self.inference.table();
        if table.is_empty() {
            return refused(InferenceFault::NoRoutes);
        }
        if table.serving(call.interface).next().is_none() {
            return refused(InferenceFault::NoRoute);
        }
        let (body, held) = match call.method() {
            Method::GET if !body.is_end_stream() => return Err(Refusal::BadRequest("a GET has no body")),
            Method::GET => (Bytes::new(), None),
            _ => {
                let read = timeout(Limits::INFERENCE_BODY, self.read(body, table.max_request_bytes)).await;
                read.map_err(|_| Refusal::BadRequest(LATE))??
            }
        };
        let mut unreached = None;
        for route in table.serving(call.interface) {
            record.routed(&route.name, call);
            let asking = Asking { route, call, asked: &parts, target: &target };
            match self.ask(session, &asking, body.clone()).await {
                Ok(response) => {
                    drop(held);
                    return Ok((Arc::clone(route), request_tokens(body.len()), response));
                }
                Err(NotAsked::Failed(refusal)) => return Err(refusal),
                Err(NotAsked::Unreached(refusal)) => {
                    tracing::warn!("inference route {}: {}", route.name, refusal.log_reason());
                    unreached = Some(refusal);
                }
            }
        }
        Err(unreached.unwrap_or(Refusal::Inference(InferenceFault::NoRoute)))
    }

    /// Reads the body of a request, as much as one may have, and as all together may.
    async fn read(&self, mut body: Incoming, most: usize) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Refusal> {
        let too_large = || Refusal::Inference(InferenceFault::TooLarge { most });
        if body.size_hint().lower() > most as u64 {
            return Err(too_large());
        }
        // Where the length is known all of its room is taken at once, and nobody waits who holds some already.
        let mut room = body.size_hint().exact().and_then(|length| usize::try_from(length).ok()).unwrap_or(64 * 1024);
        let permit = Arc::clone(&self.inference.memory).acquire_many_owned(kib(room));
        let permit = timeout(Limits::INFERENCE_WAIT, permit).await.ok().and_then(Result::ok);
        let (mut held, mut read) = (permit.ok_or_else(too_many)?, BytesMut::with_capacity(room));
        loop {
            let frame = timeout(Limits::INFERENCE_SILENCE, body.frame()).await;
            let Some(frame) = frame.map_err(|_| Refusal::BadRequest(LATE))? else {
                break;
            };
            let malformed = |_| Refusal::BadRequest("the body of the request is malformed, or ended before its end");
            let Ok(data) = frame.map_err(malformed)?.into_data() else { continue };
            if read.len() + data.len() > most {
                return Err(too_large());
            }
            if read.len() + data.len() > room {
                let more = room.max(data.len());
                let permit = Arc::clone(&self.inference.memory).try_acquire_many_owned(kib(more));
                held.merge(permit.map_err(|_| too_many())?);
                room += more;
            }
            read.extend_from_slice(&data);
        }
        Ok((read.freeze(), Some(held)))
    }

    async fn ask(
        &self,
        session: &Session,
        asking: &Asking<'_>,
        body: Bytes,
    ) -> Result<Either<Response<Bytes>, Response<Incoming>>, NotAsked> {
        let route = asking.route;
        // What it is taken to cost is taken back by the same measure.
        let (streams, cost) = (model::asks_for_stream(&body), request_tokens(body.len()));
        let body = asking.rewritten(body).await.map_err(NotAsked::Failed)?;
        route.spend(cost).map_err(|what| {
            NotAsked::Failed(Refusal::Inference(InferenceFault::Budget { route: route.name.clone(), what }))
        })?;
        let (Backend::Server { base, .. }, Some(origin)) = (&route.backend, origin(route)) else {
            tracing::warn!("inference route {} leads to no model: mock://", route.name);
            return Ok(Either::Left(mock::answer(asking.call.interface, &route.model, streams)));
        };
        let mut connection = session.upstream.lock().await;
        let sent = self.send(asking, &mut connection.0, (&origin, base), body).await;
        if matches!(sent, Err(NotAsked::Unreached(_))) {
            route.refund(cost);
        }
        sent.map(Either::Right)
    }

    async fn send(
        &self,
        asking: &Asking<'_>,
        upstream: &mut Upstream,
        (origin, base): (&Origin, &str),
        body: Bytes,
    ) -> Result<Response<Incoming>, NotAsked> {
        let route = asking.route;
        let failed = |why: String| NotAsked::Failed(Refusal::Inference(InferenceFault::Failed(why)));
        let unreached = |why: String| NotAsked::Unreached(Refusal::Inference(InferenceFault::Unavailable(why)));
        let mut may_reuse = true;
        loop {
            let is_kept = may_reuse && upstream.is_open_to(origin);
            if !is_kept {
                self.dial(route, origin, upstream).await.map_err(unreached)?;
            }
            let request = asking.request(origin, base, body.clone()).map_err(failed)?;
            let released =
                release(request, (origin.0, &origin.1), &Vault::default(), false).map_err(NotAsked::Failed)?;
            let mut response = match timeout(route.timeouts.first_byte, upstream.send(released, None)).await {
                Ok(Ok(response)) => response,
                // A backend may end a connection that it has not used for a while.
                Ok(Err(NotAnswered::Unsent(_))) if is_kept => {
                    may_reuse = false;
                    continue;
                }
                Ok(Err(NotAnswered::Unsent(_) | NotAnswered::Unprocessed)) => {
                    return Err(unreached(format!("{}: it closed at once", origin.1)));
                }
                Ok(Err(NotAnswered::Failed(refusal))) => return Err(failed(refusal.log_reason())),
                Err(_) => {
                    let why = format!("no answer began within {:?}", route.timeouts.first_byte);
                    return Err(NotAsked::Failed(Refusal::Inference(InferenceFault::Unavailable(why))));
                }
            };
            if response.status().is_redirection() {
                return Err(failed(format!("it answers {}, and nobody goes elsewhere with a key", response.status())));
            }
            headers::keep_answer(response.headers_mut());
            return Ok(response);
        }
    }

    /// Connects to the backend of `route`, wherever the operator has it.
    async fn dial(&self, route: &Route, origin: &Origin, upstream: &mut Upstream) -> Result<(), String> {
        let backend = &origin.1;
        let connected = async {
            let addresses = self.ctx.resolver.addresses(&backend.host.to_string()).await;
            let addresses: Vec<_> =
                addresses.into_iter().map(|address| SocketAddr::new(address, backend.port)).collect();
            if addresses.is_empty() {
                return Err(format!("{backend} has no address"));
            }
            let stream = connect_to(&addresses).await.map_err(|error| format!("{backend}: {error}"))?;
            let kept = keep(self.ctx, upstream, origin.clone(), stream).await;
            kept.map(drop).map_err(|refusal| format!("{backend}: {}", refusal.log_reason()))
        };
        let connected = timeout(route.timeouts.connect, connected).await;
        connected.unwrap_or_else(|_| Err(format!("{backend}: no connection within {:?}", route.timeouts.connect)))
    }
}

/// Where the backend of `route` is; `None` if there is none.
fn origin(route: &Route) -> Option<Origin> {
    match &route.backend {
        Backend::Server { is_tls, host, port, .. } => {
            let scheme = if *is_tls { Scheme::Https } else { Scheme::Http };
            Some((scheme, Target { host: host.clone(), port: *port }))
        }
        Backend::Mock => None,
    }
}

const LATE: &str = "the body of the request did not come in time";

/// KiB that a body of `bytes` takes, and again when it is rewritten.
fn kib(bytes: usize) -> u32 {
    u32::try_from((2 * bytes).div_ceil(1024)).unwrap_or(u32::MAX)
}

/// Tokens that a request of so many bytes is taken to have, until its answer tells.
fn request_tokens(bytes: usize) -> u64 {
    bytes as u64 / 4
}

fn too_many() -> Refusal {
    Refusal::LimitReached("too many requests for models at once")
}

/// A request on its way to one route.
struct Asking<'a> {
    route: &'a Arc<Route>,
    call: Call,
    asked: &'a Parts,
    target: &'a RequestTarget,
}

impl Asking<'_> {
    /// `body` with the model of the route.
    async fn rewritten(&self, body: Bytes) -> Result<Bytes, Refusal> {
        if self.call.method() == Method::GET {
            return Ok(body);
        }
        let model = self.route.model.clone();
        let rewritten = match body.len() {
            0..=Limits::REWRITTEN_BYTES => model::with_model(body, &model),
            _ => {
                let work = tokio::task::spawn_blocking(move || model::with_model(body, &model));
                work.await.map_err(|error| Refusal::Engine(error.to_string()))?
            }
        };
        rewritten.map_err(|error| match error {
            BodyError::NotJson => Refusal::Inference(InferenceFault::Encoding),
            BodyError::Ambiguous => Refusal::BadRequest("the body asks for more than one model"),
        })
    }

    /// The request as its backend at `origin` gets it.
    fn request(&self, (scheme, backend): &Origin, base: &str, body: Bytes) -> Result<Request<Outgoing>, String> {
        let host = head::host_value(*scheme, backend).ok_or("the host of the endpoint is no header value")?;
        let path = self.target.path();
        // Both have it, as most endpoints are written.
        let path = if base.ends_with("/v1") { path.strip_prefix("/v1").unwrap_or(path) } else { path };
        let uri: Uri = format!("{base}{path}{}", self.query()).parse().map_err(|error| format!("{error}"))?;
        let mut request = Request::new(Either::Right(Full::new(body)));
        *request.method_mut() = self.call.method();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers::asking(&self.asked.headers, self.route, host);
        Ok(request)
    }

    /// Of the query what models know; keys are the operator's to say.
    fn query(&self) -> String {
        const NAMES: [&str; 6] = ["beta", "limit", "after", "before", "after_id", "before_id"];
        let pairs = self.target.query().unwrap_or_default().split('&');
        let known = |pair: &&str| NAMES.contains(&pair.split('=').next().unwrap_or_default());
        let kept: Vec<_> = pairs.filter(known).collect();
        if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) }
    }
}
