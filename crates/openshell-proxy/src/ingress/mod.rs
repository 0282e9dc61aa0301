//! Ingress of the proxy: requests are read, authorized and answered; a permitted CONNECT yields a connection.

pub mod connect;
pub mod door;
pub mod forward;

use std::os::fd::AsFd;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::{Instrument as _, debug_span};

use crate::denial::refusal::Refusal;
use crate::denial::reply;
use crate::http::body::{ResponseBody, full};
use crate::inference;
use crate::inference::serve::Models;
use crate::io::lingering::Linger;
use crate::limits::Limits;
use crate::peer::Flow;
use crate::proxy::Proxy;
use crate::record::{Outcome, Record};
use crate::relay::http1::connection;
use crate::target::{Origin, Scheme, Target};
use door::{Connected, Door};

/// Serves the requests of one client; returns its connection once a CONNECT is permitted.
pub async fn serve(proxy: &Proxy, client: TcpStream, flow: Flow) -> Option<Connected> {
    let services = &*proxy.services;
    let (session, driver) = connection(client.as_fd().try_clone_to_owned().ok());
    let (opener, mut opened) = mpsc::channel(1);
    let door = Door { proxy, flow, session: &session, opener };
    let answer = |request| door.answer(request);
    if let Err(refusal) = driver.serve(services, &session, client, &protocol(), answer).await {
        Record::new(&services.audit, "request".to_owned(), None).finish(Outcome::Refused(&refusal));
        return None;
    }
    let (client, opened) = opened.try_recv().ok()?;
    let parts = client.await.ok()?.downcast::<TokioIo<Linger<TcpStream>>>().ok()?;
    Some(Connected { client: parts.io.into_inner().into_inner(), surplus: parts.read_buf, opened })
}

/// Refuses a client because there are too many connections.
pub async fn refuse_excess(proxy: Arc<Proxy>, client: TcpStream) {
    let services = &*proxy.services;
    let answer = |request: Request<Incoming>| async move {
        let record = match *request.method() {
            Method::CONNECT => connect::intake(&services.audit, &request).0,
            _ => forward::intake(&services.audit, &request).0,
        };
        Some(refuse(&Refusal::limit_reached("too many connections at once"), record))
    };
    let (session, driver) = connection(None);
    let _ = driver.serve(services, &session, client, &protocol(), answer).await;
}

/// HTTP/1.1 settings of the proxy's own listener: heads are bounded in size and time; a half-closed client gets its
/// response.
fn protocol() -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(Limits::HEAD_DEADLINE)
        .max_buf_size(Limits::HEAD_BYTES)
        .half_close(true)
        .auto_date_header(false)
        .preserve_header_case(true)
        .title_case_headers(true);
    protocol
}

impl<'p> Door<'p> {
    async fn answer(&self, request: Request<Incoming>) -> Option<Response<ResponseBody>> {
        let audit = &self.proxy.services.audit;
        let (record, answered) = if request.method() == Method::CONNECT {
            let (mut record, target) = connect::intake(audit, &request);
            let answered = match target {
                Ok(target) if inference::is_target(&target) => self.connect_models(request, target, &mut record).await,
                Ok(target) => {
                    let span = debug_span!("request", request = record.request());
                    self.connect(request, target, &mut record).instrument(span).await
                }
                Err(refusal) => Err(refusal),
            };
            (record, answered)
        } else {
            let (mut record, origin) = forward::intake(audit, &request);
            let answered = match origin {
                Ok(Origin { scheme: Scheme::Https, target }) if inference::is_target(&target) => {
                    match self.models(target, &mut record).await {
                        Ok(models) => return Some(Box::pin(models.answer(self.session, request, record)).await),
                        Err(refusal) => Err(refusal),
                    }
                }
                Ok(origin) => {
                    let span = debug_span!("request", request = record.request());
                    Box::pin(self.forward(request, origin, &mut record)).instrument(span).await
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
            Err(refusal) => refuse(&refusal, record),
        })
    }

    /// Prepares a forwarded request for a model.
    async fn models(&self, target: Target, record: &mut Record) -> Result<Models<'p>, Refusal> {
        let services = &self.proxy.services;
        let caller = services.authorizer.identify(self.flow).await;
        caller.iter().for_each(|caller| record.called_by(caller.clone()));
        let inference = self.proxy.inference.as_deref();
        let inference = inference.ok_or(Refusal::inference_not_configured())?;
        Ok(Models { services, inference, caller, target })
    }
}

fn refuse(refusal: &Refusal, record: Record) -> Response<ResponseBody> {
    let response = reply::refused(refusal, record.subject()).map(full);
    record.finish(Outcome::Refused(refusal));
    response
}
