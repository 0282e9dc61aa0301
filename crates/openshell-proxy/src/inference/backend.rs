//! Backends of routes: connects to them, and builds requests in the form that they expect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Uri};
use openshell_events::reason::ReasonCode;
use openshell_policy::inference::{Backend, Tools};
use tokio::time::timeout;

use crate::credentials::vault::Vault;
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::target::{Origin, Scheme, Target};
use crate::inference::api::ApiCall;
use crate::inference::headers;
use crate::inference::model::{self, BodyError};
use crate::inference::route::Route;
use crate::inference::tools;
use crate::reach::authorize::connection::Connection;
use crate::reach::dial::dial_without_deadline;
use crate::reach::resolve::guard::Destination;
use crate::relay::body::Unsent;
use crate::relay::exchange::{ExchangeError, Remedy, Secrets, UpstreamSource};
use crate::relay::inspect::AuthorizedRequest;
use crate::relay::services::Services;
use crate::relay::upstream::Upstream;
use crate::report::record::Record;
use crate::wire::http::body::ResponseBody;
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;

/// Returns the origin of the backend of `route`; `None` for a mock.
#[must_use]
pub fn origin(route: &Route) -> Option<Origin> {
    match &route.backend {
        Backend::Server {
            is_tls, host, port, ..
        } => {
            let scheme = if *is_tls { Scheme::Https } else { Scheme::Http };
            Some(Origin {
                scheme,
                target: Target {
                    host: host.clone(),
                    port: *port,
                },
            })
        }
        Backend::Mock => None,
    }
}

/// Connects `upstream` to the backend of `route`, which needs no policy.
///
/// # Errors
/// Fails, with the reason in words, if the backend has no address, if it is not reached within the
/// route's timeout, or if its certificate is invalid.
pub async fn connect(
    services: &Services,
    route: &Route,
    origin: &Origin,
    upstream: &mut Upstream,
) -> Result<(), String> {
    let backend = &origin.target;
    let limit = route.timeouts.connect;
    let failed = |refusal: Refusal| format!("{backend}: {}", refusal.reason());
    let connected = async {
        let addresses = services
            .egress
            .resolver
            .addresses(&backend.host.to_string())
            .await;
        let addresses: Vec<_> = addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, backend.port))
            .collect();
        if addresses.is_empty() {
            return Err(format!("{backend} has no address"));
        }
        let dialed = dial_without_deadline(&Destination::configured_by_operator(addresses)).await;
        let (stream, address) = dialed.map_err(failed)?;
        let connected = upstream
            .connect(origin, &services.egress.roots, stream, address)
            .await;
        connected.map_err(failed)
    };
    timeout(limit, connected).await.unwrap_or_else(|_| {
        Err(format!(
            "{backend}: no connection within {limit:?} (`timeouts.connect` of the route)"
        ))
    })
}

/// The upstream side of a request to a backend.
#[derive(Debug)]
pub struct BackendSource<'s> {
    services: &'s Services,
    route: &'s Route,
    origin: Origin,
    upstream: &'s mut Upstream,
    /// True if the connection was established before the request.
    is_reused: bool,
}

impl<'s> BackendSource<'s> {
    /// Creates the source of exchanges with the backend of `route`, at `origin`, through
    /// `upstream`.
    #[must_use]
    pub fn new(
        services: &'s Services,
        route: &'s Route,
        origin: Origin,
        upstream: &'s mut Upstream,
    ) -> Self {
        Self {
            services,
            route,
            origin,
            upstream,
            is_reused: false,
        }
    }

    /// Returns the host and port of the backend.
    #[must_use]
    pub fn backend(&self) -> &Target {
        &self.origin.target
    }

    /// Returns `response` with only those fields that may pass to clients of models.
    ///
    /// # Errors
    /// Fails on a redirect, which is not followed because the request has a key.
    pub fn checked(
        &self,
        mut response: Response<ResponseBody>,
    ) -> Result<Response<ResponseBody>, String> {
        if response.status().is_redirection() {
            return Err(format!(
                "it answers {}, and the proxy does not follow a redirect with a key",
                response.status()
            ));
        }
        headers::retain_for_client(response.headers_mut());
        Ok(response)
    }
}

impl UpstreamSource for BackendSource<'_> {
    async fn prepare(
        &mut self,
        parts: &mut Parts,
        _body: &mut Unsent,
        _record: &mut Record,
        retry: bool,
    ) -> Result<AuthorizedRequest, ExchangeError> {
        self.is_reused = !retry && self.upstream.is_open_to(&self.origin);
        if !self.is_reused {
            let connected = connect(self.services, self.route, &self.origin, self.upstream).await;
            connected
                .map_err(|why| ExchangeError::Unreachable(Refusal::upstream_unreachable(why)))?;
        }
        Ok(AuthorizedRequest {
            target: RequestTarget::as_written(&parts.uri),
            upgrade: None,
            rpc: None,
        })
    }

    fn upstream(&mut self) -> &mut Upstream {
        self.upstream
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn connection(&self) -> Option<&Arc<Connection>> {
        None
    }

    /// Replaces no placeholders; the response is searched for the route's key.
    fn secrets(&self) -> Secrets {
        Secrets {
            vault: Arc::new(Vault::default()),
            watched: self.route.credential().cloned().into_iter().collect(),
        }
    }

    fn remedy(&self) -> Remedy {
        if self.is_reused {
            Remedy::Redial
        } else {
            Remedy::None
        }
    }

    fn answer_deadline(&self) -> Option<Duration> {
        Some(self.route.timeouts.first_byte)
    }
}

/// Returns `body` with the model of `route`, if its `tools` permit what the body asks for.
fn rewritten(route: &Route, body: Bytes) -> Result<Bytes, Refusal> {
    if route.tools == Tools::Local
        && let Some(key) = tools::of_provider(&body)
    {
        return Err(Refusal::because(
            ReasonCode::BadRequest,
            format!(
                "the body has {key}, which may make the provider fetch or run something, but the \
                 route has `tools: local`"
            ),
        ));
    }
    model::with_model(body, &route.model).map_err(|error| match error {
        BodyError::NotJson => Refusal::unsupported_encoding(),
        BodyError::Ambiguous => Refusal::bad_request("the body asks for more than one model"),
        BodyError::NoObject => {
            Refusal::bad_request("the body is not a JSON object; send each request by itself")
        }
    })
}

/// A request to one route.
#[derive(Debug)]
pub struct BackendRequest<'a> {
    /// The route.
    pub route: &'a Arc<Route>,
    /// The called interface.
    pub call: ApiCall,
    /// The head of the client's request.
    pub head: &'a Parts,
    /// The canonical target of the client's request.
    pub target: &'a RequestTarget,
}

impl BackendRequest<'_> {
    /// Returns `body` with the model of the route.
    ///
    /// # Errors
    /// Fails if the body is not a JSON object, names more than one model, or asks for tools that
    /// the route does not permit.
    pub async fn rewritten(&self, body: Bytes) -> Result<Bytes, Refusal> {
        if self.call.method() == Method::GET {
            return Ok(body);
        }
        let route = Arc::clone(self.route);
        match body.len() {
            0..=Limits::REWRITTEN_BYTES => rewritten(&route, body),
            _ => {
                let work = tokio::task::spawn_blocking(move || rewritten(&route, body));
                work.await
                    .map_err(|error| Refusal::engine(error.to_string()))?
            }
        }
    }

    /// Builds the request to the backend at `origin`, with paths under `base`.
    ///
    /// # Errors
    /// Fails, with the reason in words, if the URI or the host has no valid form.
    pub fn build(
        &self,
        origin: &Origin,
        base: &str,
        body: Bytes,
    ) -> Result<Request<Bytes>, String> {
        let host =
            head::host_value(origin).ok_or("the host of the endpoint is not valid in a header")?;
        let path = self.target.path();
        // Most endpoints are configured with `/v1`, which is also part of the paths of clients.
        let path = if base.ends_with("/v1") {
            path.strip_prefix("/v1").unwrap_or(path)
        } else {
            path
        };
        let uri: Uri = format!("{base}{path}{}", self.query())
            .parse()
            .map_err(|error| format!("{error}"))?;
        let mut request = Request::new(body);
        *request.method_mut() = self.call.method();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers::for_backend(&self.head.headers, self.route, host);
        Ok(request)
    }

    /// Returns only the query parameters of the interfaces; others, for example keys, are removed.
    fn query(&self) -> String {
        const NAMES: [&str; 6] = ["beta", "limit", "after", "before", "after_id", "before_id"];
        let pairs = self.target.query().unwrap_or_default().split('&');
        let known = |pair: &&str| NAMES.contains(&pair.split('=').next().unwrap_or_default());
        let kept: Vec<_> = pairs.filter(known).collect();
        if kept.is_empty() {
            String::new()
        } else {
            format!("?{}", kept.join("&"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use hyper::Request;
    use hyper::header::HOST;
    use openshell_policy::inference::Budget;

    use super::{ApiCall, Backend, BackendRequest, Method, RequestTarget, Route, origin};
    use crate::ground::target::Scheme;
    use crate::inference::api;
    use crate::testing;

    fn route(backend: &str) -> Arc<Route> {
        Arc::new(testing::route(backend, Budget::default(), "none"))
    }

    fn call(method: &Method, path: &str) -> ApiCall {
        api::call(method, path).unwrap()
    }

    /// Returns the method, the target and the Host of a request for `path` at `backend`.
    fn built(method: Method, path: &str, backend: &str) -> (Method, String, String) {
        let route = route(backend);
        let uri = path.parse().unwrap();
        let target = RequestTarget::canonical(&method, &uri, false).unwrap();
        let head = testing::head(Request::new(()));
        let call = call(&method, target.path());
        let request = BackendRequest {
            route: &route,
            call,
            head: &head,
            target: &target,
        };
        let Backend::Server { base, .. } = &route.backend else {
            panic!("{backend} is no server")
        };
        let request = request
            .build(&origin(&route).unwrap(), base, Bytes::new())
            .unwrap();
        let host = request.headers()[HOST].to_str().unwrap().to_owned();
        (request.method().clone(), request.uri().to_string(), host)
    }

    #[test]
    fn a_request_is_for_the_path_of_the_call_below_that_of_the_endpoint() {
        for (path, backend, sent, host) in [
            (
                "/v1/messages",
                "http://h.test:8000",
                "/v1/messages",
                "h.test:8000",
            ),
            ("/v1/messages", "http://h.test/v1", "/v1/messages", "h.test"),
            (
                "/v1/messages",
                "https://h.test/api/v1",
                "/api/v1/messages",
                "h.test",
            ),
            (
                "/v1/messages",
                "http://h.test/api",
                "/api/v1/messages",
                "h.test",
            ),
            (
                "/v1/messages?beta=true&key=mine&limit=2",
                "http://h.test",
                "/v1/messages?beta=true&limit=2",
                "h.test",
            ),
            (
                "/v1/messages?key=mine",
                "http://h.test",
                "/v1/messages",
                "h.test",
            ),
        ] {
            let expected = (Method::POST, sent.to_owned(), host.to_owned());
            assert_eq!(
                built(Method::POST, path, backend),
                expected,
                "{path} at {backend}"
            );
        }
        assert_eq!(
            built(Method::GET, "/v1/models?after=x", "http://h.test").1,
            "/v1/models?after=x"
        );
    }

    #[test]
    fn a_mock_has_no_server() {
        assert_eq!(origin(&route("mock://")), None);
        assert_eq!(
            origin(&route("https://h.test")).map(|origin| origin.scheme),
            Some(Scheme::Https)
        );
    }

    #[tokio::test]
    async fn the_body_of_a_post_alone_has_the_model_of_the_route() {
        let (route, head) = (route("http://h.test"), testing::head(Request::new(())));
        for (method, path, sent) in [
            (
                Method::POST,
                "/v1/messages",
                r#"{"model":"model-of-the-route"}"#,
            ),
            (Method::GET, "/v1/models", r#"{"model":"mine"}"#),
        ] {
            let target = RequestTarget::canonical(&method, &path.parse().unwrap(), false).unwrap();
            let request = BackendRequest {
                route: &route,
                call: call(&method, path),
                head: &head,
                target: &target,
            };
            let rewritten = request
                .rewritten(Bytes::from_static(br#"{"model":"mine"}"#))
                .await
                .unwrap();
            let Backend::Server { base, .. } = &route.backend else {
                panic!("the backend is no server")
            };
            let request = request
                .build(&origin(&route).unwrap(), base, rewritten)
                .unwrap();
            assert_eq!(request.into_body(), sent);
        }
    }
}
