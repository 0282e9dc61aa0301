//! The inspection of requests: it checks their heads, reads the part of their bodies that rules
//! need, and makes the judgement that the connection's permit demands.

use std::time::Instant;

use hyper::header::HeaderValue;
use hyper::http::request::Parts;
use openshell_policy::network::endpoint::UpgradeProtocol;
use openshell_policy::network::rpc::RpcRules;

use crate::decide::message::rpc::RpcMessage;
use crate::decide::message::rpc::observed::may_hold_messages;
use crate::decide::message::{Action, Message, Need, Reading};
use crate::decide::permit::Permit;
use crate::decide::verdict;
use crate::denial::answer::RpcAnswer;
use crate::denial::judged::{JudgedRequest, RequestFault};
use crate::denial::refusal::Refusal;
use crate::ground::peer::Caller;
use crate::reach::authorize::authorizer::Authorizer;
use crate::relay::body::Unsent;
use crate::relay::rpc::RpcRequest;
use crate::relay::services::Services;
use crate::report::record::Record;
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;
use crate::wire::memory::Memory;

/// A request that may be sent.
#[derive(Debug)]
pub struct AuthorizedRequest {
    /// The judged target, which is also the one that is sent.
    pub target: RequestTarget,
    /// The protocol to which the request asks to switch, if it may.
    pub upgrade: Option<HeaderValue>,
    /// The messages of MCP in it, if there are any.
    pub rpc: Option<RpcRequest>,
}

/// Returns the protocol to which `request` asks to switch, if it may under `permit`. Without rules,
/// or if the run only observes, that is any protocol; with rules, WebSocket and those that they
/// permit.
///
/// # Errors
/// Fails if the rules are enforced and do not permit it.
fn upgrade(
    permit: &Permit,
    request: &Parts,
    target: &RequestTarget,
) -> Result<Option<HeaderValue>, Refusal> {
    let (Some(requested), Some(rules)) = (head::requested_upgrade(request), permit.rules()) else {
        return Ok(head::requested_upgrade(request));
    };
    if head::is_websocket(&requested) {
        return Ok(Some(requested));
    }
    let Ok(text) = requested.to_str() else {
        return Ok(None);
    };
    let protocols: Result<Vec<_>, _> = text
        .split(',')
        .map(|word| UpgradeProtocol::parse(word.trim()))
        .collect();
    // Nobody switches to what is not a protocol.
    let Ok(protocols) = protocols else {
        return Ok(None);
    };
    match protocols
        .into_iter()
        .find(|protocol| !rules.permit_upgrade(target, protocol))
    {
        Some(protocol) if rules.are_enforced(target) && !permit.is_observed() => {
            let reason = format!(
                "it asks to switch to {}, which no rule can judge",
                protocol.as_str()
            );
            let request = JudgedRequest {
                policy: permit.policy().map(str::to_owned),
                method: request.method.to_string(),
                path: target.path().to_owned(),
                fault: RequestFault::Upgrade(protocol),
                message: None,
            };
            Err(Refusal::request(reason, request))
        }
        Some(_) if !permit.is_observed() => Ok(None),
        _ => Ok(Some(requested)),
    }
}

/// Checks the head of `request`, and reads as much of its `body` as the rules of `permit` need. A
/// body that they judge is decoded, and sent as it was judged.
///
/// # Errors
/// Fails if the head is malformed, or the body cannot be read.
pub async fn read_message(
    memory: &Memory,
    permit: &Permit,
    request: &mut Parts,
    body: &mut Unsent,
    record: &Record,
) -> Result<Message, Refusal> {
    head::check_method(&request.method)?;
    head::check_size(request)?;
    head::check_framing(&request.headers)?;
    let need = permit.need(&request.method, &request.uri);
    let program = record.program();
    if permit.is_observed() && need == Need::Head && may_hold_messages(request) {
        // Nothing is refused: what cannot be read is not noted.
        let seen = Need::Prefix(RpcRules::DEFAULT_BODY_BYTES);
        if let Ok(ahead) = body.read(seen, memory, program).await {
            return Ok(Message::of(request, ahead, seen));
        }
    }
    let ahead = match need {
        Need::Head => body.read(need, memory, program).await?,
        Need::Body(most) | Need::Prefix(most) => {
            drop(body.read(need, memory, program).await?);
            let headers = &mut request.headers;
            body.decode(headers, most, memory, program).await?
        }
    };
    Ok(Message::of(request, ahead, need))
}

/// The number of bytes of a body from which reading its messages would hold up others.
const LONG_BODY: usize = 64 * 1024;

/// Reads `message` in the form in which it is judged under `permit` and sent.
///
/// # Errors
/// As for [`Permit::read`].
async fn read(
    authorizer: &Authorizer,
    permit: &Permit,
    message: &Message,
) -> Result<Reading, Refusal> {
    if message.head.is_none() || message.ahead.bytes.len() < LONG_BODY {
        return permit.read(message);
    }
    authorizer.read(permit, message).await
}

/// Returns the `refusal` of the action at `index` of `message` with an answer in the protocol of the
/// refused message.
fn answered(refusal: Refusal, message: &Message, actions: &[Action], index: usize) -> Refusal {
    let messages = actions.iter().filter_map(Action::rpc);
    let messages: Vec<_> = messages.map(RpcMessage::answerable).collect();
    let is_event = message
        .head
        .as_ref()
        .is_some_and(|head| head.accepts_only_events());
    let fault = refusal.judged_request().map(|request| &request.fault);
    match fault.and_then(|fault| RpcAnswer::of(&messages, index, fault, is_event)) {
        Some(answer) => refusal.answered(answer),
        None => refusal,
    }
}

/// Judges `message`, which was read from `request` of `caller`, on a connection with `permit`.
///
/// # Errors
/// Fails if the message has no form that rules can read, or if the policy refuses a part of it.
pub async fn authorize_request(
    services: &Services,
    permit: &Permit,
    caller: &Caller,
    request: &Parts,
    message: &Message,
    record: &mut Record,
) -> Result<AuthorizedRequest, Refusal> {
    let Reading { target, actions } = read(&services.authorizer, permit, message).await?;
    record.asks_for(target.path());
    let messages = || actions.iter().filter_map(Action::rpc);
    record.holds(messages());
    let rpc = RpcRequest::of(permit, caller, request, &target, messages());
    for (index, action) in actions.iter().enumerate() {
        // A batch does not hold up others.
        tokio::task::coop::consume_budget().await;
        let began = Instant::now();
        let authorizer = &services.authorizer;
        let mut judged = authorizer.authorize_message(permit, action).await;
        let is_unasked = |message| {
            let rpc = rpc.as_ref();
            rpc.is_some_and(|rpc| rpc.is_unasked(&services.sessions, message))
        };
        if judged.is_ok() && action.rpc().is_some_and(is_unasked) {
            judged = verdict::unasked(permit, action).and(judged);
        }
        if let (Some(rpc), Some(of_body), Some(head)) = (&rpc, action.rpc(), &message.head) {
            let repeated = rpc.check_repeated(&services.sessions, of_body, head);
            judged = repeated.and(judged);
        }
        record.decided_since(began);
        let judged = judged.map_err(|refusal| answered(refusal, message, &actions, index))?;
        record.request_permitted_by(judged.policy(), judged.judged());
        record.message_permitted_by(index, judged.policy(), judged.judged());
    }
    if let Some(action) = actions.first() {
        let authorizer = &services.authorizer;
        authorizer
            .note_request(permit, caller, action, message)
            .await;
    }
    // Nobody would judge the messages behind a switch.
    let upgrade = if messages().next().is_some() {
        None
    } else {
        upgrade(permit, request, &target)?
    };
    Ok(AuthorizedRequest {
        target,
        upgrade,
        rpc,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use hyper::header::HeaderValue;
    use hyper::{Request, Version};
    use openshell_events::reason::ReasonCode;

    use super::{AuthorizedRequest, authorize_request, read_message};
    use crate::denial::refusal::Refusal;
    use crate::ground::limits::Limits;
    use crate::ground::target::Scheme;
    use crate::relay::body::Unsent;
    use crate::relay::services::Services;
    use crate::report::record::{Outcome, Record};
    use crate::testing;

    const FULL: &str =
        "{host: web.test, port: 80, protocol: rest, enforcement: enforce, access: full}";
    const PLAIN: &str = "{host: web.test, port: 80}";

    /// Creates services whose rules fail as soon as they judge a request.
    fn failing() -> Arc<Services> {
        testing::services_with(
            testing::failing_rules(),
            Arc::new(testing::Remembered::default()),
        )
    }

    /// Authorizes `request` on a connection of curl to web.test.
    async fn asked(
        services: &Services,
        request: Request<()>,
    ) -> Result<AuthorizedRequest, Refusal> {
        let connection = testing::connection(services, "web.test:80");
        let permit = connection.permit();
        let caller = connection.caller();
        let mut record = Record::http(
            &services.audit,
            "GET",
            "/a",
            Scheme::Http,
            testing::target("web.test:80"),
        );
        let mut head = testing::head(request);
        let mut body = Unsent::whole(Bytes::new());
        let read = read_message(&services.memory, &permit, &mut head, &mut body, &record).await;
        let asked = match read {
            Ok(message) => {
                authorize_request(services, &permit, caller, &head, &message, &mut record).await
            }
            Err(refusal) => Err(refusal),
        };
        record.finish(Outcome::Allowed);
        asked
    }

    #[tokio::test]
    async fn a_malformed_head_is_refused_before_the_rules_are_asked() {
        let services = failing();
        let well_formed = || Request::get("/a");
        let judged = asked(&services, well_formed().body(()).unwrap())
            .await
            .unwrap_err();
        assert_eq!(
            judged.code(),
            ReasonCode::PolicyEngineError,
            "the rules are asked about a head without a fault"
        );
        let many = (0..=Limits::HEAD_LINES)
            .fold(well_formed(), |head, n| head.header(format!("x-{n}"), "y"));
        for (fault, request) in [
            (
                "a method that is too long",
                well_formed().method("M".repeat(65).as_str()),
            ),
            ("a CONNECT", Request::connect("web.test:80")),
            (
                "a transfer coding",
                well_formed().header("transfer-encoding", "gzip"),
            ),
            (
                "two codings",
                well_formed()
                    .header("transfer-encoding", "chunked")
                    .header("transfer-encoding", "chunked"),
            ),
            ("a path without a form", Request::get("/a%zz")),
        ] {
            let refusal = asked(&services, request.body(()).unwrap())
                .await
                .unwrap_err();
            assert_eq!(
                refusal.code(),
                ReasonCode::BadRequest,
                "{fault}: {}",
                refusal.reason()
            );
        }
        let large = well_formed().header("x", "y".repeat(Limits::HEAD_BYTES));
        for (request, version) in [(many, Version::HTTP_11), (large, Version::HTTP_2)] {
            let refusal = asked(&services, request.version(version).body(()).unwrap())
                .await
                .unwrap_err();
            assert_eq!(refusal.code(), ReasonCode::RequestTooLarge);
        }
    }

    #[tokio::test]
    async fn the_target_that_is_judged_is_the_one_that_is_sent() {
        let (services, _) = testing::services(FULL);
        for (written, sent) in [("/a/../b", "/b"), ("/%61", "/a"), ("//a", "/a")] {
            let authorized = asked(&services, Request::get(written).body(()).unwrap())
                .await
                .unwrap();
            assert_eq!(authorized.target.path(), sent, "{written}");
        }
    }

    #[tokio::test]
    async fn a_target_that_nothing_judges_is_sent_as_it_is() {
        let (services, _) = testing::services(PLAIN);
        let authorized = asked(&services, Request::get("/a/../%61").body(()).unwrap())
            .await
            .unwrap();
        assert_eq!(authorized.target.path(), "/a/../%61");
    }

    #[tokio::test]
    async fn where_requests_are_judged_only_websockets_and_what_the_policy_lists_are_asked_for() {
        let upgrade = |protocol: &str| {
            let head = Request::get("/a")
                .header("connection", "upgrade")
                .header("upgrade", protocol);
            head.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .header("sec-websocket-version", "13")
                .body(())
                .unwrap()
        };
        let listed = FULL.replace("access: full", "access: full, upgrades: [tcp, SPDY/3.1]");
        let audited = FULL.replace("enforce,", "audit,");
        let passes = Ok(true);
        let left_out = Ok(false);
        let refused = Err(ReasonCode::UnsupportedL7Protocol);
        for (endpoints, protocol, expected) in [
            (FULL, "websocket", passes),
            (PLAIN, "websocket", passes),
            (FULL, "echo", refused),
            (PLAIN, "echo", passes),
            (&listed, "echo", refused),
            (&listed, "TCP", passes),
            (&listed, "spdy/3.1", passes),
            (&listed, "spdy/3", refused),
            (&listed, "tcp, echo", refused),
            (&listed, "tcp, spdy/3.1", passes),
            (&audited, "echo", left_out),
            (&listed, "no protocol", left_out),
            (PLAIN, "h2c", left_out),
            (FULL, "h2c", left_out),
            (FULL, "HTTP/2.0", left_out),
            (PLAIN, "TLS/1.0", left_out),
        ] {
            let (services, _) = testing::services(endpoints);
            let mut with_body = upgrade(protocol);
            with_body
                .headers_mut()
                .insert("content-length", HeaderValue::from_static("9"));
            let authorized = asked(&services, with_body).await.unwrap();
            assert_eq!(
                authorized.upgrade, None,
                "a body that may be the next request: {protocol}, {endpoints}"
            );
            let authorized = asked(&services, upgrade(protocol)).await;
            let asks = authorized
                .map(|authorized| authorized.upgrade.is_some())
                .map_err(|refusal| refusal.code());
            assert_eq!(asks, expected, "{protocol}: {endpoints}");
        }
    }
}
