//! A connection to `inference.local`: each request routed, sent and answered as its backend answers.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body as _, Incoming};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Uri};
use openshell_policy::inference::{Backend, HOST};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::connect::connect_to;
use crate::context::{Context, Limits};
use crate::credentials::release::release;
use crate::credentials::vault::Vault;
use crate::http::head;
use crate::http::reply::{self, Body};
use crate::http::target::RequestTarget;
use crate::identify::caller::Caller;
use crate::inference::api::{self, Call};
use crate::inference::route::{Inference, Route};
use crate::inference::stream::{Report, Streamed};
use crate::inference::{headers, mock, model};
use crate::intake::{Scheme, Target};
use crate::record::{Outcome, Record};
use crate::refusal::{InferenceFault, Refusal};
use crate::relay::http::{inside, keep};
use crate::relay::session::Session;
use crate::relay::upstream::{NotAnswered, Upstream};

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

/// What came of a request to one route.
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
            let mut record = Record::numbered(session.count(), method, path, Scheme::Https, target);
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
        if let Err(Some(refusal)) = session.serve(self.ctx, client, &inside(), answer).await {
            let mut record = Record::new(format!("CONNECT {}", self.target), Some(self.target.clone()));
            self.caller.iter().for_each(|caller| record.called_by(caller.clone()));
            record.finish(Outcome::Refused(&refusal), &*self.ctx.denials);
        }
    }

    /// Answers `request`, of which `record` is.
    pub async fn answer(&self, session: &Session, request: Request<Incoming>, mut record: Record) -> Response<Body> {
        record.intercepted();
        match self.route(session, request, &mut record).await {
            Ok((route, response)) => match response {
                Either::Left(response) => {
                    record.finish(Outcome::Allowed, &*self.ctx.denials);
                    response.map(|body| Either::Left(Full::new(body)))
                }
                Either::Right(response) => {
                    let (head, body) = response.into_parts();
                    let report = Report { record, route, denials: Arc::clone(&self.ctx.denials) };
                    let body = Streamed::new(&head, body, report);
                    Response::from_parts(head, reply::altered(body))
                }
            },
            Err(refusal) => self.refused(&refusal, record),
        }
    }

    fn refused(&self, refusal: &Refusal, record: Record) -> Response<Body> {
        let response = reply::refused(refusal, &record);
        record.finish(Outcome::Refused(refusal), &*self.ctx.denials);
        response
    }

    /// Asks the first route that serves it and can be reached.
    async fn route(
        &self,
        session: &Session,
        request: Request<Incoming>,
        record: &mut Record,
    ) -> Result<(Arc<Route>, Either<Response<Bytes>, Response<Incoming>>), Refusal> {
        let (parts, body) = request.into_parts();
        head::check_method(&parts.method)?;
        head::check_framing(&parts.headers)?;
        let target = RequestTarget::canonical(&parts.method, &parts.uri, false).map_err(Refusal::Target)?;
        record.asks_for(target.path());
        let refused = |fault| Err(Refusal::Inference(fault));
        let Some(call) = api::call(&parts.method, target.path()) else { return refused(InferenceFault::NoCall) };
        let table = self.inference.table();
        if table.is_empty() {
            return refused(InferenceFault::NoRoutes);
        }
        if table.serving(call.interface).next().is_none() {
            return refused(InferenceFault::NoRoute);
        }
        let (body, held) = self.read(body, table.max_request_bytes).await?;
        let mut unreached = None;
        for route in table.serving(call.interface) {
            record.routed(&route.name, call);
            match self.ask(session, route, call, &parts, &target, body.clone()).await {
                Ok(response) => {
                    drop(held);
                    return Ok((Arc::clone(route), response));
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
        let (mut read, mut held, mut room) = (BytesMut::new(), None::<OwnedSemaphorePermit>, 0);
        while let Some(frame) = body.frame().await {
            let malformed = |_| Refusal::BadRequest("the body of the request is malformed, or ended before its end");
            let Ok(data) = frame.map_err(malformed)?.into_data() else { continue };
            if read.len() + data.len() > most {
                return Err(too_large());
            }
            if read.len() + data.len() > room {
                // Twice as much each time, so that few ask.
                let more = (read.len() + data.len()).max(64 * 1024);
                let kib = u32::try_from(more.div_ceil(1024)).unwrap_or(u32::MAX);
                let permit = Arc::clone(&self.inference.memory).acquire_many_owned(kib);
                let permit = timeout(Limits::INFERENCE_WAIT, permit).await.ok().and_then(Result::ok);
                let permit = permit.ok_or(Refusal::LimitReached("too many requests for models at once"))?;
                match &mut held {
                    Some(held) => held.merge(permit),
                    None => held = Some(permit),
                }
                room += more;
            }
            read.extend_from_slice(&data);
        }
        Ok((read.freeze(), held))
    }

    async fn ask(
        &self,
        session: &Session,
        route: &Arc<Route>,
        call: Call,
        asked: &Parts,
        target: &RequestTarget,
        body: Bytes,
    ) -> Result<Either<Response<Bytes>, Response<Incoming>>, NotAsked> {
        let spend = || {
            let over = |what| Refusal::Inference(InferenceFault::Budget { route: route.name.clone(), what });
            route.spend().map_err(|what| NotAsked::Failed(over(what)))
        };
        let failed = |why: String| NotAsked::Failed(Refusal::Inference(InferenceFault::Failed(why)));
        let (is_tls, backend, base) = match &route.backend {
            Backend::Mock => {
                spend()?;
                tracing::warn!("inference route {} leads to no model: mock://", route.name);
                return Ok(Either::Left(mock::answer(call.interface, &route.model)));
            }
            Backend::Server { is_tls, host, port, base } => (is_tls, Target { host: host.clone(), port: *port }, base),
        };
        let scheme = if *is_tls { Scheme::Https } else { Scheme::Http };
        let mut connection = session.upstream.lock().await;
        let upstream = &mut connection.0;
        let mut may_reuse = true;
        let mut is_spent = false;
        loop {
            let is_kept = may_reuse && upstream.is_open_to(&(scheme, backend.clone()));
            if !is_kept {
                self.dial(route, scheme, &backend, upstream).await?;
            }
            if !is_spent {
                spend()?;
                is_spent = true;
            }
            let request = self.request(route, call, asked, target, (scheme, &backend, base), body.clone());
            let released = release(request.map_err(failed)?, (scheme, &backend), &Vault::default());
            let sent = upstream.send(released.map_err(NotAsked::Failed)?, None);
            let mut response = match timeout(route.timeouts.first_byte, sent).await {
                Ok(Ok(response)) => response,
                // A backend may end a connection that it has not used for a while.
                Ok(Err(NotAnswered::Unsent(_))) if is_kept => {
                    may_reuse = false;
                    continue;
                }
                Ok(Err(NotAnswered::Unsent(_))) => return Err(failed("it closed at once".to_owned())),
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
            return Ok(Either::Right(response));
        }
    }

    /// The request as the backend of `route` gets it.
    fn request(
        &self,
        route: &Route,
        call: Call,
        asked: &Parts,
        target: &RequestTarget,
        (scheme, backend, base): (Scheme, &Target, &str),
        body: Bytes,
    ) -> Result<Request<crate::relay::upstream::Outgoing>, String> {
        let host = head::host_value(scheme, backend).ok_or("the host of the endpoint is no header value")?;
        let path = target.path();
        // Both have it, as most endpoints are written.
        let path = if base.ends_with("/v1") { path.strip_prefix("/v1").unwrap_or(path) } else { path };
        let query = target.query().map(|query| format!("?{query}")).unwrap_or_default();
        let uri: Uri = format!("{base}{path}{query}").parse().map_err(|error| format!("{error}"))?;
        let is_post = asked.method != Method::GET;
        let body = if is_post { model::with_model(body, &route.model) } else { Bytes::new() };
        let _ = call;
        let mut request = Request::new(Either::Right(Full::new(body)));
        *request.method_mut() = if is_post { Method::POST } else { Method::GET };
        *request.uri_mut() = uri;
        *request.headers_mut() = headers::asking(&asked.headers, route, host);
        Ok(request)
    }

    /// Connects to the backend of `route`, wherever the operator has it.
    async fn dial(
        &self,
        route: &Route,
        scheme: Scheme,
        backend: &Target,
        upstream: &mut Upstream,
    ) -> Result<(), NotAsked> {
        let connected = async {
            let addresses = self.ctx.resolver.addresses(&backend.host.to_string()).await;
            let addresses: Vec<_> =
                addresses.into_iter().map(|address| SocketAddr::new(address, backend.port)).collect();
            if addresses.is_empty() {
                return Err(format!("{backend} has no address"));
            }
            let stream = connect_to(&addresses).await.map_err(|error| format!("{backend}: {error}"))?;
            let kept = keep(self.ctx, upstream, (scheme, backend.clone()), stream).await;
            kept.map(drop).map_err(|refusal| format!("{backend}: {}", refusal.log_reason()))
        };
        let connected = timeout(route.timeouts.connect, connected).await;
        let connected =
            connected.unwrap_or_else(|_| Err(format!("{backend}: no connection within {:?}", route.timeouts.connect)));
        connected.map_err(|why| NotAsked::Unreached(Refusal::Inference(InferenceFault::Unavailable(why))))
    }
}
