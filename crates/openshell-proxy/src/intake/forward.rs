//! The forward door (RFC 9112 §3.2.2): a plain-HTTP request in absolute form, its target, and its record.

use hyper::Request;
use openshell_policy::network::host::Host;

use crate::intake::{Target, port};
use crate::record::Record;
use crate::refusal::Refusal;

/// Reads where `request` wants to go, and begins its record. Refused is what is not in absolute form, or not http.
pub fn intake<B>(request: &Request<B>) -> (Record, Result<Target, Refusal>) {
    let (method, uri) = (request.method(), request.uri());
    let refused = |what| (Record::new(method.to_string(), None), Err(Refusal::BadRequest(what)));
    let Some(authority) = uri.authority() else {
        return refused("this is a proxy: send CONNECT host:port, or a request with an absolute http URL");
    };
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return refused("Use CONNECT for HTTPS URLs"),
        _ => return refused("only http URLs can be requested without CONNECT"),
    }
    if authority.as_str().contains('@') {
        return refused("the URL of a proxy request has no user information");
    }
    let Ok(host) = Host::parse(authority.host()) else {
        return refused("the host of the URL is a name or an IP address");
    };
    let port = match authority.port() {
        None => Some(80),
        Some(written) => port(written.as_str()),
    };
    let Some(port) = port else { return refused("the port of the URL is a number from 1 to 65535") };
    let target = Target { host, port };
    // What is behind the `?` may hold what no log should.
    (Record::http(method.as_str(), uri.path(), target.clone()), Ok(target))
}
