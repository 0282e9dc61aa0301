//! CONNECT requests (RFC 9110 §9.3.6): the client gets a tunnel.

use std::sync::Arc;

use hyper::{Request, Response, Uri};
use openshell_policy::network::host::Host;

use crate::denial::refusal::Refusal;
use crate::doors::dns::names::{Names, named};
use crate::doors::ingress::HttpIngress;
use crate::doors::ingress::door::Opened;
use crate::ground::target::{Target, port};
use crate::report::record::Record;
use crate::wire::http::body::{ResponseBody, full};
use crate::wire::http::reply;
use openshell_events::event::Audit;

/// Parses `request`, a CONNECT. Returns its record, and its target, or the refusal of a request
/// without host and port. An address of one of `names` stands for that name, which the client has
/// looked up itself.
pub fn intake<B>(
    audit: &Arc<dyn Audit>,
    names: Option<&Names>,
    request: &Request<B>,
) -> (Record, Result<Target, Refusal>) {
    match target(request.uri()).map(|target| named(names, target)) {
        Ok(target) => (
            Record::new(audit, format!("CONNECT {target}"), Some(target.clone())),
            Ok(target),
        ),
        Err(problem) => (
            Record::new(audit, "CONNECT".to_owned(), None),
            Err(Refusal::bad_request(problem)),
        ),
    }
}

fn target(uri: &Uri) -> Result<Target, &'static str> {
    let authority = uri
        .authority()
        .filter(|_| uri.scheme().is_none())
        .ok_or("a CONNECT target must be host:port")?;
    if authority.as_str().contains('@') {
        return Err("a CONNECT target may not have user information");
    }
    let port = authority.port().and_then(|written| port(written.as_str()));
    let port = port.ok_or("a CONNECT target needs a port, as in host:443")?;
    let host = Host::parse(authority.host())
        .map_err(|_| "the host of a CONNECT target must be a name or an IP address")?;
    Ok(Target { host, port })
}

impl HttpIngress<'_> {
    /// Returns the answer after which the client's connection leads to what was `opened`.
    pub(super) fn established(&self, opened: Opened) -> Response<ResponseBody> {
        // The channel has room for the one tunnel of a connection.
        let _ = self.opener.try_send(opened);
        reply::established().map(full)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::{Request, Uri};
    use openshell_events::event::Audit;

    use super::intake;
    use crate::report::record::Outcome;
    use crate::testing::Remembered;

    /// Returns the target of a CONNECT to `uri`, and the words of its record.
    fn taken(uri: &str) -> (Result<String, String>, String) {
        let audit = Arc::new(Remembered::default()) as Arc<dyn Audit>;
        let (record, target) = intake(
            &audit,
            None,
            &Request::connect(uri.parse::<Uri>().unwrap())
                .body(())
                .unwrap(),
        );
        let words = record.request().to_owned();
        record.finish(Outcome::Allowed);
        (
            target
                .map(|target| target.to_string())
                .map_err(|refusal| refusal.reason().to_owned()),
            words,
        )
    }

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for (uri, target) in [
            ("a.test:443", "a.test:443"),
            ("A.Test.:1", "a.test:1"),
            ("8.8.8.8:65535", "8.8.8.8:65535"),
            ("[2001:DB8::1]:443", "[2001:db8::1]:443"),
        ] {
            assert_eq!(
                taken(uri),
                (Ok(target.to_owned()), format!("CONNECT {target}")),
                "{uri}"
            );
        }
    }

    #[test]
    fn what_else_a_connect_names_is_refused_with_the_reason_and_not_recorded() {
        let whole = "a CONNECT target must be host:port";
        let port = "a CONNECT target needs a port, as in host:443";
        for (uri, reason) in [
            ("/a", whole),
            ("http://a.test:80/", whole),
            ("a.test", port),
            ("a.test:", port),
            ("a.test:0", port),
            ("a.test:080", port),
            (
                "user@a.test:443",
                "a CONNECT target may not have user information",
            ),
            (
                "a!b:443",
                "the host of a CONNECT target must be a name or an IP address",
            ),
        ] {
            assert_eq!(
                taken(uri),
                (Err(reason.to_owned()), "CONNECT".to_owned()),
                "{uri}"
            );
        }
    }
}
