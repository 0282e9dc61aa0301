//! The forward door (RFC 9112 §3.2.2): a request in absolute form, its target, and its record.

use std::sync::Arc;

use hyper::Request;
use openshell_policy::network::host::Host;

use crate::record::{Audit, Record};
use crate::refusal::Refusal;
use crate::target::{Scheme, Target, port};

/// Reads where `request` wants to go, and begins its record. Refused is what is not in absolute form. A request for https is
/// sent inside TLS, as some clients leave that to their proxy.
pub fn intake<B>(audit: &Arc<dyn Audit>, request: &Request<B>) -> (Record, Result<(Scheme, Target), Refusal>) {
    let (method, uri) = (request.method(), request.uri());
    let refused = |what| (Record::new(audit, method.to_string(), None), Err(Refusal::BadRequest(what)));
    let Some(authority) = uri.authority() else {
        return refused("this is a proxy: send CONNECT host:port, or a request with an absolute http URL");
    };
    let scheme = match uri.scheme_str() {
        Some("http") => Scheme::Http,
        Some("https") => Scheme::Https,
        _ => return refused("only http and https URLs can be requested"),
    };
    if authority.as_str().contains('@') {
        return refused("the URL of a proxy request has no user information");
    }
    let Ok(host) = Host::parse(authority.host()) else {
        return refused("the host of the URL is a name or an IP address");
    };
    // Whatever the library takes for no port is none of its own opinion here.
    let behind_host = authority.as_str().get(authority.host().len()..).unwrap_or_default();
    let port = match behind_host.strip_prefix(':') {
        Some(written) => port(written),
        None => Some(scheme.default_port()).filter(|_| behind_host.is_empty()),
    };
    let Some(port) = port else { return refused("the port of the URL is a number from 1 to 65535") };
    let target = Target { host, port };
    // What is behind the `?` may hold what no log should.
    (Record::http(audit, method.as_str(), uri.path(), scheme, target.clone()), Ok((scheme, target)))
}
