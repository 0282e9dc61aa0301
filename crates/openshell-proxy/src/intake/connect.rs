//! The CONNECT door (RFC 9110 §9.3.6): a request's target, or why it has none.

use std::sync::Arc;

use hyper::{Request, Uri};
use openshell_policy::network::host::Host;

use crate::record::{Audit, Record};
use crate::refusal::Refusal;
use crate::target::{Target, port};

/// Reads where `request`, a CONNECT, wants to go, and begins its record. Refused is what has no host and port.
pub fn intake<B>(audit: &Arc<dyn Audit>, request: &Request<B>) -> (Record, Result<Target, Refusal>) {
    match target(request.uri()) {
        Ok(target) => (Record::new(audit, format!("CONNECT {target}"), Some(target.clone())), Ok(target)),
        Err(problem) => (Record::new(audit, "CONNECT".to_owned(), None), Err(Refusal::BadRequest(problem))),
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
