//! Forwarded requests (RFC 9112 §3.2.2): requests in absolute form, each of which is authorized.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, Response};
use openshell_events::words::Door;
use openshell_policy::network::host::Host;

use crate::decide::own_lines::OwnLines;
use crate::denial::refusal::Refusal;
use crate::doors::dns::names::{Names, named};
use crate::doors::ingress::HttpIngress;
use crate::doors::ingress::door::Ingress;
use crate::ground::target::{Origin, Scheme, Target, port};
use crate::reach::authorize::asker::Asker;
use crate::reach::authorize::authorizer::Authorization;
use crate::reach::authorize::connection::Connection;
use crate::reach::authorize::revocation::RevocationWatch;
use crate::reach::resolve::guard::Destination;
use crate::relay::body::Unsent;
use crate::relay::exchange::{Exchange, ExchangeError, Outbound, Remedy, Secrets, UpstreamSource};
use crate::relay::http1::KeptUpstream;
use crate::relay::inspect::{AuthorizedRequest, authorize_request, read_message};
use crate::relay::services::Services;
use crate::relay::upstream::Upstream;
use crate::report::record::Record;
use crate::wire::http::body::ResponseBody;
use crate::wire::http::head;
use openshell_events::event::Audit;

/// Parses `request`. Returns its record, and its origin, or the refusal of a request that is not in
/// absolute form. A request with an https URL is sent inside TLS, because some clients leave that
/// to their proxy. An address of one of `names` stands for that name.
pub fn intake<B>(
    audit: &Arc<dyn Audit>,
    names: Option<&Names>,
    request: &Request<B>,
) -> (Record, Result<Origin, Refusal>) {
    let method = request.method();
    let uri = request.uri();
    let refused = |what| {
        (
            Record::new(audit, method.to_string(), None),
            Err(Refusal::bad_request(what)),
        )
    };
    let Some(authority) = uri.authority() else {
        return refused(
            "this is a proxy: send CONNECT host:port, or a request with an absolute http URL",
        );
    };
    let scheme = match uri.scheme_str() {
        Some("http") => Scheme::Http,
        Some("https") => Scheme::Https,
        _ => return refused("only http and https URLs can be requested"),
    };
    if authority.as_str().contains('@') {
        return refused("the URL of a proxy request may not have user information");
    }
    let Ok(host) = Host::parse(authority.host()) else {
        return refused("the host of the URL must be a name or an IP address");
    };
    // The library treats a malformed port as a missing one; here it is refused.
    let after_host = authority
        .as_str()
        .get(authority.host().len()..)
        .unwrap_or_default();
    let port = match after_host.strip_prefix(':') {
        Some(written) => port(written),
        None => Some(scheme.default_port()).filter(|_| after_host.is_empty()),
    };
    let Some(port) = port else {
        return refused("the port of the URL must be a number from 1 to 65535");
    };
    let target = named(names, Target { host, port });
    // The query may hold secrets, so it is not recorded.
    (
        Record::http(audit, method.as_str(), uri.path(), scheme, target.clone()),
        Ok(Origin { scheme, target }),
    )
}

impl HttpIngress<'_> {
    /// Authorizes `request`, and exchanges it with `origin`.
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        origin: Origin,
        record: &mut Record,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let services = &*self.ingress.proxy.services;
        let session = self.session;
        let mut kept = session.upstream.lock().await;
        let request = Outbound::of_client(request, &session.tasks);
        let mut source = ForwardSource {
            ingress: self,
            origin,
            kept: &mut kept,
            is_reused: false,
            connection: None,
            own: OwnLines::default(),
        };
        let exchange = Exchange {
            services,
            upgrades: Some(&session.upgrades),
            client: session.socket(),
            held: None,
        };
        exchange.run(&mut source, request, record).await
    }
}

/// The upstream side of a forwarded request. Each request is authorized; it reuses the connection
/// of the last one if that leads to its origin at a permitted address.
struct ForwardSource<'s> {
    ingress: &'s HttpIngress<'s>,
    origin: Origin,
    kept: &'s mut KeptUpstream,
    /// True if the connection was established for an earlier request.
    is_reused: bool,
    connection: Option<Arc<Connection>>,
    /// The lines of policy that hold for this exchange only.
    own: OwnLines,
}

impl ForwardSource<'_> {
    fn services(&self) -> &Services {
        &self.ingress.ingress.proxy.services
    }

    /// Connects to `destination` in place of the upstream before; returns the address.
    async fn connect(
        &mut self,
        ingress: &Ingress<'_>,
        Authorization { caller, permit, .. }: &Authorization,
        destination: &Destination,
        record: &mut Record,
    ) -> Result<SocketAddr, Refusal> {
        let services = &ingress.proxy.services;
        // The quota is released first; otherwise a program at its quota could not change its
        // upstream.
        self.kept.quota = None;
        let began = Instant::now();
        let program = &caller.program.executable;
        let dialed = services.egress.connect(destination, program).await?;
        record.connected_since(began);
        let address = dialed.address;
        let roots = &services.egress.roots;
        let upstream = &mut self.kept.upstream;
        upstream
            .connect(&self.origin, roots, dialed.stream, address)
            .await?;
        self.kept.quota = Some(dialed.quota);
        let closing = ingress.closing_at(address, caller, &self.origin.target, permit.policy());
        let closing = closing.counted_by(self.ingress.meter);
        self.ingress.session.connected(closing);
        Ok(address)
    }
}

impl UpstreamSource for ForwardSource<'_> {
    async fn prepare(
        &mut self,
        parts: &mut Parts,
        body: &mut Unsent,
        record: &mut Record,
        retry: bool,
    ) -> Result<AuthorizedRequest, ExchangeError> {
        let services = &*self.ingress.ingress.proxy.services;
        let ingress = self.ingress.ingress.by(Door::Forward);
        record.came_by(ingress.way);
        loop {
            let (authorization, destination) = ingress
                .authorize(&self.origin.target, &self.own, record)
                .await?;
            let permit = &authorization.permit;
            let caller = &authorization.caller;
            let message = read_message(&services.memory, permit, parts, body, record).await?;
            if authorization.is_stale() {
                continue;
            }
            let authorized =
                authorize_request(services, permit, caller, parts, &message, record).await?;
            let upstream = &self.kept.upstream;
            let reusable = upstream.reusable(&self.origin, &destination);
            let reusable = reusable.filter(|_| !retry);
            self.is_reused = reusable.is_some();
            let address = match reusable {
                Some(address) => address,
                None => {
                    self.connect(&ingress, &authorization, &destination, record)
                        .await?
                }
            };
            if authorization.is_stale() {
                continue;
            }
            record.came_by(ingress.way_to(address));
            let watch = RevocationWatch::new(authorization, address.ip());
            watch
                .connection()
                .replace_message(&services.authorizer, message, &self.own)
                .await?;
            self.connection = Some(Arc::clone(watch.connection()));
            self.ingress.session.watch(watch).await;
            head::mark_forwarded(&mut parts.headers, &self.origin);
            return Ok(authorized);
        }
    }

    fn upstream(&mut self) -> &mut Upstream {
        &mut self.kept.upstream
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    fn own_lines(&mut self) -> Option<&mut OwnLines> {
        Some(&mut self.own)
    }

    fn asker(&self, record: &Record) -> Option<Asker> {
        let caller = record.subject().caller.clone()?;
        let Ok(identified) = self.ingress.ingress.identity else {
            return None;
        };
        Some(self.services().authorizer.asker(identified, caller))
    }

    fn secrets(&self) -> Secrets {
        Secrets::of_host(&self.services().vault, &self.origin.target.host)
    }

    fn remedy(&self) -> Remedy {
        if self.is_reused {
            Remedy::Redial
        } else {
            Remedy::None
        }
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

    /// Returns the origin of a GET of `uri`, and the words of its record.
    fn taken(uri: &str) -> (Result<String, String>, String) {
        let audit = Arc::new(Remembered::default()) as Arc<dyn Audit>;
        let (record, origin) = intake(
            &audit,
            None,
            &Request::get(uri.parse::<Uri>().unwrap()).body(()).unwrap(),
        );
        let words = record.request().to_owned();
        record.finish(Outcome::Allowed);
        let origin = origin.map(|origin| format!("{}://{}", origin.scheme.as_str(), origin.target));
        (origin.map_err(|refusal| refusal.reason().to_owned()), words)
    }

    #[test]
    fn an_origin_is_a_scheme_a_host_and_the_port_of_its_scheme_unless_it_says_another() {
        for (uri, origin, words) in [
            ("http://a.test/b", "http://a.test:80", "GET a.test:80/b"),
            ("https://a.test/b", "https://a.test:443", "GET a.test:443/b"),
            (
                "http://A.test:8080/",
                "http://a.test:8080",
                "GET a.test:8080/",
            ),
            ("http://[::1]:1/", "http://[::1]:1", "GET [::1]:1/"),
        ] {
            assert_eq!(
                taken(uri),
                (Ok(origin.to_owned()), words.to_owned()),
                "{uri}"
            );
        }
    }

    #[test]
    fn a_query_is_not_recorded() {
        assert_eq!(taken("http://a.test/b?token=sesame").1, "GET a.test:80/b");
    }

    #[test]
    fn what_is_no_url_of_http_is_refused_with_the_reason() {
        let number = "the port of the URL must be a number from 1 to 65535";
        let scheme = "only http and https URLs can be requested";
        for (uri, reason) in [
            (
                "/a",
                "this is a proxy: send CONNECT host:port, or a request with an absolute http URL",
            ),
            ("ftp://a.test/", scheme),
            ("a.test:80", scheme),
            (
                "http://user:word@a.test/",
                "the URL of a proxy request may not have user information",
            ),
            (
                "http://a!b/",
                "the host of the URL must be a name or an IP address",
            ),
            ("http://a.test:0/", number),
            ("http://a.test:/", number),
            ("http://a.test:080/", number),
            ("http://a.test:65536/", number),
        ] {
            assert_eq!(
                taken(uri),
                (Err(reason.to_owned()), "GET".to_owned()),
                "{uri}"
            );
        }
    }
}
