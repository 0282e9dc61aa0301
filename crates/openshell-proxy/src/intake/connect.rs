//! The CONNECT door (RFC 9110 §9.3.6): a request's target, or why it has none.

use hyper::body::Incoming;
use hyper::{Method, Request, Uri};
use openshell_policy::network::host::Host;

use crate::intake::Target;
use crate::record::Record;
use crate::refusal::Refusal;

/// Reads what `request` asks for, and begins its record. Refused is a request that is no CONNECT, or has no host and
/// port.
pub fn intake(request: &Request<Incoming>) -> (Record, Result<Target, Refusal>) {
    if request.method() != Method::CONNECT {
        return not_connect(request);
    }
    match target(request.uri()) {
        Ok(target) => (Record::new(format!("CONNECT {target}"), Some(target.clone())), Ok(target)),
        Err(problem) => (Record::new("CONNECT".to_owned(), None), Err(Refusal::BadRequest(problem))),
    }
}

fn target(uri: &Uri) -> Result<Target, &'static str> {
    let authority = uri.authority().filter(|_| uri.scheme().is_none()).ok_or("a CONNECT target is host:port")?;
    if authority.as_str().contains('@') {
        return Err("a CONNECT target has no user information");
    }
    let port = authority.port().and_then(|port| decimal(port.as_str()));
    let port = port.ok_or("a CONNECT target needs a port, as in host:443")?;
    let host = Host::parse(authority.host()).map_err(|_| "the host of a CONNECT target is a name or an IP address")?;
    Ok(Target { host, port })
}

/// A port from 1 on, as digits without sign or leading zero.
fn decimal(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port: &u16| *port != 0 && port.to_string() == text)
}

/// Absolute-form requests have a door of their own in a later build.
fn not_connect(request: &Request<Incoming>) -> (Record, Result<Target, Refusal>) {
    let uri = request.uri();
    let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let host = uri.host().and_then(|host| Host::parse(host).ok());
    let Some(target) = host.map(|host| Target { host, port: uri.port_u16().unwrap_or(default_port) }) else {
        let refusal = Refusal::BadRequest("this is a proxy: send CONNECT host:port");
        return (Record::new(request.method().to_string(), None), Err(refusal));
    };
    let what = "requests in absolute form are not in this build; send CONNECT";
    // The query is left out: it may hold what no log should.
    let record = Record::new(format!("{} {target}{}", request.method(), uri.path()), Some(target));
    (record, Err(Refusal::NotInThisBuild { what, policy: None }))
}
