//! Inspection of requests: the checks of their heads, and the judgement that the connection's permit demands.

use std::time::Instant;

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use openshell_policy::network::endpoint::Protocol;

use crate::authorize::authorizer::Authorizer;
use crate::decide::action::{Action, Message};
use crate::decide::http_request::HttpRequest;
use crate::decide::permit::{Inspection, Permit};
use crate::denial::refusal::Refusal;
use crate::http::head;
use crate::http::target::RequestTarget;
use crate::peer::Caller;
use crate::record::Record;

/// A request that may be sent.
#[derive(Debug)]
pub struct AuthorizedRequest {
    /// The judged target, which is the one to be sent.
    pub target: RequestTarget,
    /// The protocol of the upgrade that it asks for.
    pub upgrade: Option<HeaderValue>,
}

/// Reader of the messages of one protocol. Protocols are matched exhaustively here, so that one without an inspector
/// does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspector {
    /// Nothing is judged: heads are read to be relayed.
    Unjudged,
    /// Every HTTP request is judged by its method and target.
    Rest,
}

impl Inspector {
    /// The inspector of a connection with `permit`.
    ///
    /// # Errors
    /// The permit demands the inspection of a protocol whose messages are not HTTP requests.
    pub fn of(permit: &Permit) -> Result<Self, Refusal> {
        match permit.inspection() {
            Inspection::Passthrough | Inspection::Unjudged => Ok(Self::Unjudged),
            Inspection::Judged(rules) => match rules.protocol() {
                Protocol::Rest => Ok(Self::Rest),
                Protocol::Sql | Protocol::Tcp => Err(Refusal::unsupported_protocol(
                    "the policy has rules for a protocol that is not HTTP",
                    permit.policy().map(str::to_owned),
                )),
            },
        }
    }

    /// The message in the head of `request`.
    ///
    /// # Errors
    /// A part of the head can be read in more than one way.
    fn message(self, request: &Parts) -> Result<Message, Refusal> {
        match self {
            Self::Unjudged => {}
            Self::Rest => head::check_text(&request.headers)?,
        }
        Ok(Message::of(request))
    }

    /// The protocol of an upgrade that `request` may ask for.
    fn upgrade(self, request: &Parts) -> Option<HeaderValue> {
        match self {
            Self::Unjudged => head::requested_upgrade(request, false),
            Self::Rest => head::requested_upgrade(request, true),
        }
    }
}

/// Checks and judges the head of `request`, sent by `caller` on a connection with `permit`.
///
/// # Errors
/// The head is malformed, or the policy refuses the request.
pub async fn authorize_request(
    authorizer: &Authorizer,
    permit: &Permit,
    caller: &Caller,
    request: &Parts,
    record: &mut Record,
) -> Result<AuthorizedRequest, Refusal> {
    head::check_method(&request.method)?;
    head::check_size(request)?;
    head::check_framing(&request.headers)?;
    let inspector = Inspector::of(permit)?;
    let action = permit.action(&inspector.message(request)?)?;
    let Action::Http(http) = &action;
    record.asks_for(http.target.path());
    let began = Instant::now();
    let message_permit = authorizer.authorize_message(permit, caller, &action).await;
    record.decided_since(began);
    let message_permit = message_permit?;
    record.request_permitted_by(message_permit.policy(), message_permit.judged());
    let Action::Http(HttpRequest { target, .. }) = action;
    Ok(AuthorizedRequest { target, upgrade: inspector.upgrade(request) })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::header::HeaderValue;
    use hyper::{Request, Version};
    use openshell_policy::reason::ReasonCode;

    use super::{AuthorizedRequest, Inspector, authorize_request};
    use crate::denial::refusal::Refusal;
    use crate::limits::Limits;
    use crate::record::{Outcome, Record};
    use crate::relay::services::Services;
    use crate::target::Scheme;
    use crate::testing;

    const FULL: &str = "{host: web.test, port: 80, protocol: rest, enforcement: enforce, access: full}";
    const PLAIN: &str = "{host: web.test, port: 80}";

    /// Services whose rules fail as soon as a request is judged by them.
    fn failing() -> Arc<Services> {
        testing::services_with(testing::failing_rules(), Arc::new(testing::Remembered::default()))
    }

    /// Authorizes `request` on a connection of curl to web.test.
    async fn asked(services: &Services, request: Request<()>) -> Result<AuthorizedRequest, Refusal> {
        let connection = testing::connection(services, "web.test:80");
        let (permit, caller) = (connection.permit(), connection.caller());
        let mut record = Record::http(&services.audit, "GET", "/a", Scheme::Http, testing::target("web.test:80"));
        let authorizer = &services.authorizer;
        let asked = authorize_request(authorizer, &permit, caller, &testing::head(request), &mut record).await;
        record.finish(Outcome::Allowed);
        asked
    }

    #[tokio::test]
    async fn a_malformed_head_is_refused_before_the_rules_are_asked() {
        let services = failing();
        let well_formed = || Request::get("/a");
        let judged = asked(&services, well_formed().body(()).unwrap()).await.unwrap_err();
        assert_eq!(judged.code(), ReasonCode::PolicyEngineError, "the rules are asked about a head without a fault");
        let no_text = HeaderValue::from_bytes(b"\xff").unwrap();
        let many = (0..=Limits::HEAD_LINES).fold(well_formed(), |head, n| head.header(format!("x-{n}"), "y"));
        for (fault, request) in [
            ("a method that is too long", well_formed().method("M".repeat(65).as_str())),
            ("a CONNECT", Request::connect("web.test:80")),
            ("a transfer coding", well_formed().header("transfer-encoding", "gzip")),
            (
                "two codings",
                well_formed().header("transfer-encoding", "chunked").header("transfer-encoding", "chunked"),
            ),
            ("a value that is no text", well_formed().header("x", no_text)),
            ("a path without a form", Request::get("/a%zz")),
        ] {
            let refusal = asked(&services, request.body(()).unwrap()).await.unwrap_err();
            assert_eq!(refusal.code(), ReasonCode::BadRequest, "{fault}: {}", refusal.reason());
        }
        let large = well_formed().header("x", "y".repeat(Limits::INSPECTED_HEAD_BYTES));
        for request in [many, large] {
            let refusal = asked(&services, request.version(Version::HTTP_2).body(()).unwrap()).await.unwrap_err();
            assert_eq!(refusal.code(), ReasonCode::RequestTooLarge);
        }
    }

    #[tokio::test]
    async fn the_target_that_is_judged_is_the_one_that_is_sent() {
        let (services, _) = testing::services(FULL);
        for (written, sent) in [("/a/../b", "/b"), ("/%61", "/a"), ("//a", "/a")] {
            let authorized = asked(&services, Request::get(written).body(()).unwrap()).await.unwrap();
            assert_eq!(authorized.target.path(), sent, "{written}");
        }
    }

    #[tokio::test]
    async fn a_target_that_nothing_judges_is_sent_as_it_is() {
        let (services, _) = testing::services(PLAIN);
        let authorized = asked(&services, Request::get("/a/../%61").body(()).unwrap()).await.unwrap();
        assert_eq!(authorized.target.path(), "/a/../%61");
    }

    #[tokio::test]
    async fn only_websockets_are_asked_for_where_requests_are_judged() {
        let upgrade = |protocol: &str| {
            let head = Request::get("/a").header("connection", "upgrade").header("upgrade", protocol);
            head.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .header("sec-websocket-version", "13")
                .body(())
                .unwrap()
        };
        for (endpoints, protocol, may) in [
            (FULL, "websocket", true),
            (PLAIN, "websocket", true),
            (FULL, "echo", false),
            (PLAIN, "echo", true),
            (PLAIN, "h2c", false),
            (PLAIN, "TLS/1.0", false),
        ] {
            let (services, _) = testing::services(endpoints);
            let authorized = asked(&services, upgrade(protocol)).await.unwrap();
            assert_eq!(authorized.upgrade.is_some(), may, "{protocol}: {endpoints}");
        }
    }

    #[tokio::test]
    async fn the_inspector_is_that_of_the_permit() {
        let skipped = "{host: web.test, port: 80, tls: skip}";
        for (endpoints, inspector) in
            [(PLAIN, Inspector::Unjudged), (skipped, Inspector::Unjudged), (FULL, Inspector::Rest)]
        {
            let (services, _) = testing::services(endpoints);
            let permit = testing::connection(&services, "web.test:80").permit();
            assert_eq!(Inspector::of(&permit), Ok(inspector), "{endpoints}");
        }
    }
}
