//! HTTP inside a tunnel: requests on a permitted connection, each of them authorized.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{Instrument as _, debug_span};

use crate::authorize::connection::{Connection, StreamId};
use crate::decide::action::Message;
use crate::decide::permit::Permit;
use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::egress::dial;
use crate::http::body::{ResponseBody, full};
use crate::http::head;
use crate::limits::Limits;
use crate::record::{Outcome, Record};
use crate::relay::exchange::{Exchange, ExchangeError, Outbound, Remedy, Secrets, UpstreamSource};
use crate::relay::http1::{self, Session, report_refused};
use crate::relay::inspect::{AuthorizedRequest, authorize_request};
use crate::relay::services::Services;
use crate::relay::upstream::Upstream;
use crate::resolve::guard;
use crate::target::{Origin, Scheme};

/// A permitted connection that carries HTTP.
#[derive(Clone, Debug)]
pub struct HttpTunnel {
    /// Handles of its exchanges.
    pub services: Arc<Services>,
    /// The authorized connection.
    pub connection: Arc<Connection>,
    /// The server of its requests.
    pub origin: Origin,
}

impl HttpTunnel {
    /// The tunnel over `connection`, for URLs of `scheme`.
    #[must_use]
    pub fn new(services: &Arc<Services>, connection: &Arc<Connection>, scheme: Scheme) -> Self {
        let origin = Origin { scheme, target: connection.target().clone() };
        Self { services: Arc::clone(services), connection: Arc::clone(connection), origin }
    }

    /// Serves the HTTP/1.1 requests of `client`, over `socket`, through `upstream` at `address`.
    pub async fn serve_http1<C, U>(&self, client: C, socket: Option<OwnedFd>, upstream: U, address: SocketAddr)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (session, driver) = http1::connection(socket);
        let established =
            session.upstream.lock().await.upstream.establish(self.origin.clone(), address, upstream).await;
        if established.is_err() {
            return;
        }
        let answer = |request| self.answer(&session, request);
        let served = driver.serve(&self.services, &session, client, &http1::protocol(), answer).await;
        if let Err(refusal) = served {
            report_refused(&self.services, &self.connection, &refusal);
        }
    }

    async fn answer(&self, session: &Session, request: Request<Incoming>) -> Option<Response<ResponseBody>> {
        let number = session.count();
        let mut record = self.record(&request, number);
        let span = debug_span!("request", n = number, request = record.request());
        let mut kept = session.upstream.lock().await;
        let upstream = &mut kept.upstream;
        let request = Outbound::of_client(request, &session.tasks);
        let mut source = self.source(upstream, None);
        let exchange = Exchange { services: &self.services, upgrades: Some(&session.upgrades), held: None };
        match Box::pin(exchange.run(&mut source, request, &mut record)).instrument(span).await {
            Ok(mut response) => {
                if upstream.is_ending() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                record.finish(Outcome::Allowed);
                Some(response)
            }
            Err(error) => {
                let refusal = error.into_refusal();
                let response = reply::refused(&refusal, record.subject()).map(full);
                record.finish(Outcome::Refused(&refusal));
                Some(response)
            }
        }
    }

    /// Creates the record of request `number`.
    #[must_use]
    pub fn record(&self, request: &Request<Incoming>, number: u64) -> Record {
        let (method, path, target) = (request.method().as_str(), request.uri().path(), self.origin.target.clone());
        let record = Record::http(&self.services.audit, method, path, self.origin.scheme, target);
        let mut record = record.inside(number);
        record.called_by(self.connection.callers().first().clone());
        record
    }

    /// The source of one exchange through `upstream`; `stream` is its id in HTTP/2.
    #[must_use]
    pub fn source<'s>(&'s self, upstream: &'s mut Upstream, stream: Option<StreamId>) -> TunnelSource<'s> {
        TunnelSource { tunnel: self, upstream, stream, dialed: None }
    }
}

/// The upstream side of an exchange in a tunnel.
#[derive(Debug)]
pub struct TunnelSource<'s> {
    tunnel: &'s HttpTunnel,
    upstream: &'s mut Upstream,
    /// The id of the stream; `None` in HTTP/1.1.
    stream: Option<StreamId>,
    /// The address, if a connection was dialled for this exchange.
    dialed: Option<IpAddr>,
}

impl TunnelSource<'_> {
    /// The permit for `message`. In HTTP/1.1 it becomes the connection's activity at once; a stream registers it once
    /// it is authorized.
    async fn permit(&self, message: &Message) -> Result<Arc<Permit>, Refusal> {
        let HttpTunnel { services, connection, .. } = self.tunnel;
        let permit = match self.stream {
            None => connection.replace_message(&services.authorizer, message.clone()).await?,
            Some(_) => connection.current_permit(&services.authorizer).await?,
        };
        if let Some(address) = self.dialed {
            // The policy may have changed while the address was dialled.
            guard::check(&services.authorizer.own, &permit, vec![address])
                .map_err(|refusal| Refusal::policy_changed(refusal.reason().to_owned()))?;
        }
        Ok(permit)
    }

    /// Connects once more to the permitted target.
    async fn redial(&mut self, permit: &Permit) -> Result<(), Refusal> {
        let HttpTunnel { services, connection, origin } = self.tunnel;
        let destination = services.egress.destination(permit).await?;
        let (stream, address) = dial(&destination, Limits::CONNECT_DEADLINE).await?;
        self.upstream.connect(origin, &services.egress.roots, stream, address).await?;
        match self.stream {
            None => connection.moved_to(address.ip()),
            Some(_) => connection.also_at(address.ip()),
        }
        self.dialed = Some(address.ip());
        Ok(())
    }
}

impl UpstreamSource for TunnelSource<'_> {
    async fn prepare(
        &mut self,
        parts: &mut Parts,
        record: &mut Record,
        retry: bool,
    ) -> Result<AuthorizedRequest, ExchangeError> {
        let HttpTunnel { services, connection, origin } = self.tunnel;
        let mut must_dial = retry;
        loop {
            head::check_authority(parts, origin)?;
            let message = Message::of(parts);
            let permit = self.permit(&message).await?;
            let callers = connection.callers();
            let authorized = authorize_request(&services.authorizer, &permit, &callers, parts, record).await?;
            if let Some(stream) = self.stream {
                if !connection.register(&services.authorizer, &permit, stream, message) {
                    continue;
                }
                if head::is_grpc(&parts.headers) && !self.upstream.is_shared() {
                    return Err(Refusal::upstream_without_http2().into());
                }
            }
            if must_dial {
                self.redial(&permit).await?;
                must_dial = false;
                // The policy may have changed during the dial.
                continue;
            }
            head::ensure_host(&mut parts.headers, origin);
            return Ok(authorized);
        }
    }

    fn upstream(&mut self) -> &mut Upstream {
        self.upstream
    }

    fn origin(&self) -> &Origin {
        &self.tunnel.origin
    }

    fn connection(&self) -> Option<&Arc<Connection>> {
        Some(&self.tunnel.connection)
    }

    fn secrets(&self) -> Secrets {
        Secrets::of_host(&self.tunnel.services.vault, &self.tunnel.origin.target.host)
    }

    fn remedy(&self) -> Remedy {
        match self.dialed {
            _ if self.upstream.is_shared() => Remedy::Client,
            None => Remedy::Redial,
            Some(_) => Remedy::None,
        }
    }
}
