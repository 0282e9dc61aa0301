//! CONNECT requests (RFC 9110 §9.3.6): the client gets a tunnel.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response, Uri};
use openshell_policy::network::host::Host;

use crate::authorize::revocation::RevocationWatch;
use crate::decide::permit::Inspection;
use crate::denial::refusal::Refusal;
use crate::http::body::{ResponseBody, full};
use crate::http::reply;
use crate::ingress::door::{Door, ModelsClient, Opened};
use crate::record::Record;
use crate::target::{Target, port};
use openshell_policy::event::Audit;

/// Parses `request`, a CONNECT: its record, and its target or the refusal of one without host and port.
pub fn intake<B>(audit: &Arc<dyn Audit>, request: &Request<B>) -> (Record, Result<Target, Refusal>) {
    match target(request.uri()) {
        Ok(target) => (Record::new(audit, format!("CONNECT {target}"), Some(target.clone())), Ok(target)),
        Err(problem) => (Record::new(audit, "CONNECT".to_owned(), None), Err(Refusal::bad_request(problem))),
    }
}

fn target(uri: &Uri) -> Result<Target, &'static str> {
    let authority = uri.authority().filter(|_| uri.scheme().is_none()).ok_or("a CONNECT target is host:port")?;
    if authority.as_str().contains('@') {
        return Err("a CONNECT target has no user information");
    }
    let port = authority.port().and_then(|written| port(written.as_str()));
    let port = port.ok_or("a CONNECT target needs a port, as in host:443")?;
    let host = Host::parse(authority.host()).map_err(|_| "the host of a CONNECT target is a name or an IP address")?;
    Ok(Target { host, port })
}

impl Door<'_> {
    /// Authorizes and dials `target`.
    pub(super) async fn connect(
        &self,
        mut request: Request<Incoming>,
        target: Target,
        record: &mut Record,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let services = &self.proxy.services;
        let (authorization, dialed) = loop {
            let (authorization, destination) = self.authorize(&target, record).await?;
            // The first bytes, which tell if TLS is to be intercepted, follow the response.
            match authorization.permit.inspection() {
                Inspection::Passthrough => {}
                Inspection::Unjudged | Inspection::Judged(_) => drop(self.proxy.interceptor.authority()?),
            }
            let program = &authorization.callers.first().program.executable;
            let dialed = services.egress.connect(&destination, program).await?;
            // The policy may have changed while the target was dialled.
            if !authorization.is_stale() {
                break (authorization, dialed);
            }
        };
        let watch = RevocationWatch::new(authorization, dialed.address.ip());
        Ok(self.open(&mut request, Opened::Upstream(dialed, watch)))
    }

    /// Opens a connection to the models at `target`, which needs no policy.
    pub(super) async fn connect_models(
        &self,
        mut request: Request<Incoming>,
        target: Target,
        record: &mut Record,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let services = &self.proxy.services;
        let caller = services.authorizer.identify(self.flow).await;
        caller.iter().for_each(|caller| record.called_by(caller.clone()));
        record.intercepted();
        if self.proxy.inference.is_none() {
            return Err(Refusal::inference_not_configured());
        }
        self.proxy.interceptor.authority()?;
        let program = caller.as_ref().map_or("-", |caller| caller.program.executable.as_str());
        let quota = services.egress.reserve(program)?;
        Ok(self.open(&mut request, Opened::Models(ModelsClient { caller, target, quota })))
    }

    /// Responds to `request`, and passes on the client's connection with `opened`.
    fn open(&self, request: &mut Request<Incoming>, opened: Opened) -> Response<ResponseBody> {
        // The channel has room for the one tunnel of a connection.
        let _ = self.opener.try_send((hyper::upgrade::on(request), opened));
        reply::established().map(full)
    }
}
