use crate::denial::guidance::Guidance;
use std::collections::BTreeSet;

use bytes::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE};
use hyper::{Response, StatusCode};
use openshell_events::reason::ReasonCode;
use openshell_policy::network::endpoint::{Protocol, UpgradeProtocol};
use openshell_policy::network::rpc::Revision;
use serde_json::{Value, json};

use super::judged::{About, At, JudgedMessage, JudgedRequest, RequestFault};
use super::refusal::{AddressFault, Matches, Nearest, Refusal, Subject};
use super::reply;
use crate::testing;

fn subject() -> Subject {
    let target = testing::target("web.test:443");
    let caller = testing::caller();
    Subject {
        request: "GET /a".to_owned(),
        target: Some(target),
        caller: Some(caller),
        is_inside: false,
    }
}

fn denied(fault: RequestFault) -> Refusal {
    let request = JudgedRequest {
        policy: Some("web".into()),
        method: "GET".into(),
        path: "/a".into(),
        fault,
        message: None,
    };
    Refusal::request("no rule".to_owned(), request)
}

/// Refuses a message of MCP with this method, which is about this.
fn of_message(method: Option<&str>, about: Option<(About, &str)>, fault: RequestFault) -> Refusal {
    let request = JudgedRequest {
        policy: Some("web".into()),
        method: "POST".into(),
        path: "/mcp".into(),
        fault,
        message: Some(JudgedMessage {
            protocol: Protocol::Mcp,
            is_response: false,
            method: method.map(str::to_owned),
            about: about.map(|(key, value)| (key, value.to_owned())),
            is_about_one: true,
            is_limited: false,
        }),
    };
    Refusal::request("no rule".to_owned(), request)
}

fn address(code: ReasonCode, fault: AddressFault) -> Refusal {
    Refusal::address(code, "10.0.0.1".to_owned(), fault, Some("web".to_owned()))
}

/// Returns every refusal that exists, with its status, its error word, its code, its detail and its
/// fix.
fn all() -> Vec<(Refusal, &'static str)> {
    use AddressFault::{NeverReachable, Other, Unlisted};
    use ReasonCode::{
        AddressNotInAllowedIps, AlwaysBlockedAddress, BinaryNotInPolicy, ControlPlanePort,
        DnsFailed, EndpointNotInPolicy, InternalAddress, NoNetworkPolicies,
    };
    let text = || "said in the log".to_owned();
    let near = Some(Nearest {
        name: "web".to_owned(),
        matches: Matches::Endpoint,
    });
    vec![
        (
            Refusal::not_in_policy(EndpointNotInPolicy, text(), None),
            "403 policy_denied endpoint_not_in_policy: GET /a not permitted by policy; \
             network_policies: add `NAME: {endpoints: [{host: web.test, port: 443}], binaries: \
             [{path: /usr/bin/curl}]}`",
        ),
        (
            Refusal::not_in_policy(BinaryNotInPolicy, text(), near),
            "403 policy_denied binary_not_in_policy: GET /a not permitted by policy; \
             network_policies.web.binaries: add `- {path: /usr/bin/curl}`",
        ),
        (
            Refusal::not_in_policy(NoNetworkPolicies, text(), None),
            "403 policy_denied no_network_policies: GET /a not permitted by policy; \
             network_policies: add `NAME: {endpoints: [{host: web.test, port: 443}], binaries: \
             [{path: /usr/bin/curl}]}`",
        ),
        (
            Refusal::policy_changed(text()),
            "403 policy_denied policy_changed: GET /a not permitted by policy",
        ),
        (
            Refusal::not_in_this_build("`x`", None),
            "403 policy_denied not_in_this_build: GET /a refused: `x` is not in this build",
        ),
        (
            Refusal::policy_invalid(text()),
            "403 policy_denied policy_invalid: GET /a refused: the policy of the sandbox is \
             invalid; its log says why",
        ),
        (
            Refusal::caller_unknown(text()),
            "403 policy_denied caller_unknown: GET /a not permitted by policy",
        ),
        (
            Refusal::caller_changed(text(), "/usr/bin/tool".to_owned()),
            "403 policy_denied caller_changed: GET /a not permitted by policy; network_policies: \
             if this program may change, list it as `- {path: /usr/bin/tool, pinned: false}`",
        ),
        (
            Refusal::caller_modified(text(), "/usr/bin/tool".to_owned()),
            "403 policy_denied caller_modified: GET /a not permitted by policy; network_policies: \
             an entry `- {path: /usr/bin/tool}` without `exact: true` would permit it",
        ),
        (
            address(InternalAddress, Unlisted(Vec::new())),
            "403 ssrf_denied internal_address: GET web.test:443 blocked: internal address; \
             network_policies.web.endpoints: add `allowed_ips` to web.test:443; the address is in \
             the log",
        ),
        (
            address(AddressNotInAllowedIps, Unlisted(Vec::new())),
            "403 ssrf_denied address_not_in_allowed_ips: GET web.test:443 blocked: allowed_ips \
             check failed; network_policies.web.endpoints: add `allowed_ips` to web.test:443; the \
             address is in the log",
        ),
        (
            address(AlwaysBlockedAddress, NeverReachable),
            "403 ssrf_denied always_blocked_address: GET web.test:443 blocked: internal address",
        ),
        (
            address(AlwaysBlockedAddress, NeverReachable).under_allowed_ips(),
            "403 ssrf_denied always_blocked_address: GET web.test:443 blocked: allowed_ips check \
             failed",
        ),
        (
            address(ControlPlanePort, Other),
            "403 ssrf_denied control_plane_port: GET web.test:443 blocked: control-plane port",
        ),
        (
            address(DnsFailed, Other),
            "403 ssrf_denied dns_failed: GET web.test:443 blocked: DNS resolution failed",
        ),
        (
            denied(RequestFault::Upgrade(
                UpgradeProtocol::parse("TCP").unwrap(),
            )),
            "403 unsupported_l7_protocol unsupported_l7_protocol: GET /a refused: no rule; \
             network_policies.web.endpoints: add `upgrades: [tcp]` to each of web.test:443 that \
             has rules; bytes follow that nobody judges",
        ),
        (
            Refusal::authority_unavailable(),
            "503 authority_unavailable authority_unavailable: GET /a refused: the proxy cannot \
             open TLS because it could not write the trust files; see --tls-dir",
        ),
        (
            Refusal::client_tls_failed("it left".to_owned()),
            "502 client_tls_failed client_tls_failed: it left",
        ),
        (
            Refusal::upstream_tls_invalid("expired".to_owned()),
            "502 upstream_tls_invalid upstream_tls_invalid: connection to web.test:443 failed: \
             expired",
        ),
        (
            Refusal::upstream_wants_certificate(),
            "502 upstream_wants_certificate upstream_wants_certificate: web.test:443 wants a \
             client certificate, and the proxy has none; network_policies: if the program has a \
             certificate, set `tls: skip`, without `protocol`, on the endpoints of web.test:443; \
             then the program does TLS itself",
        ),
        (
            Refusal::authority_mismatch("other.test".to_owned()),
            "421 authority_mismatch authority_mismatch: the request is for other.test, and its \
             connection is to web.test:443",
        ),
        (
            denied(RequestFault::NoRule(At::Path("/v1/**".to_owned()))),
            "403 policy_denied request_not_in_rules: GET /a denied by L7 policy; network_policies.web.endpoints: add to \
             the `rules` of web.test:443 with `path: \"/v1/**\"` `- allow: {method: GET, path: /a}`; \
             if it has `access`, replace that by `rules` that also have what it permitted, such as \
             `- allow: {method: GET, path: \"**\"}`",
        ),
        (
            denied(RequestFault::NoRule(At::Nowhere)),
            "403 policy_denied request_not_in_rules: GET /a denied by L7 policy; network_policies.web.endpoints: ask \
             for the `path` of one of them; or, if messages need no judgement there, add `- {host: web.test, port: 443, path: /a, protocol: rest, enforcement: enforce, rules: \
             [{allow: {method: GET, path: /a}}]}`, with the `allowed_ips` of the others, if they have \
             any",
        ),
        (
            denied(RequestFault::Ambiguous(Some("/b".to_owned()))),
            "403 policy_denied endpoints_ambiguous: GET /a refused: no rule; \
             network_policies.web.endpoints: if the endpoint of web.test:443 with `path: /b` is meant, \
             ask for that path, or write a glob there that matches /a too",
        ),
        (
            Refusal::endpoints_ambiguous("`tls`", None),
            "403 policy_denied endpoints_ambiguous: GET /a refused: the endpoints for this host and \
             port have paths and differ in `tls`; give them the same",
        ),
        (
            denied(RequestFault::NoRule(At::Any)),
            "403 policy_denied request_not_in_rules: GET /a denied by L7 policy; \
             network_policies.web.endpoints: add to the `rules` of web.test:443 `- allow: \
             {method: GET, path: /a}`; if it has `access`, replace that by `rules` that also have \
             what it permitted, such as `- allow: {method: GET, path: \"**\"}`",
        ),
        (
            denied(RequestFault::DenyRule),
            "403 policy_denied request_in_deny_rules: GET /a denied by L7 policy; \
             network_policies.web.endpoints: `deny_rules` of web.test:443 match GET /a, and win \
             over any rule",
        ),
        (
            denied(RequestFault::EncodedSlash),
            "400 bad_request bad_request: no rule; network_policies.web.endpoints: add \
             `allow_encoded_slash: true` to each of web.test:443 that has rules",
        ),
        (
            Refusal::unsupported_protocol("it is none", None),
            "403 unsupported_l7_protocol unsupported_l7_protocol: GET /a refused: it is none",
        ),
        (
            Refusal::unsolicited_upgrade(),
            "403 unsolicited_upgrade unsolicited_upgrade: the upstream switched protocols unasked",
        ),
        (
            Refusal::credential_unknown("KEY".to_owned()),
            "500 credential_injection_failed credential_unknown: unresolved credential placeholder \
             in request: there is no credential KEY; credentials: add KEY (the file of \
             --credentials)",
        ),
        (
            Refusal::credential_unsafe("KEY", "a line end"),
            "500 credential_injection_failed credential_unsafe: unresolved credential placeholder \
             in request: credential KEY: a line end",
        ),
        (
            Refusal::placeholder_misplaced("the body"),
            "500 credential_injection_failed credential_not_replaceable: unresolved credential \
             placeholder in request: the proxy does not replace placeholders in the body; do not \
             send `openshell:resolve:env:…` there; the proxy replaces it only in the path and in \
             the value of a header or of a query parameter",
        ),
        (
            Refusal::credential_for_other_hosts("KEY".to_owned()),
            "403 policy_denied credential_endpoint_mismatch: GET /a refused: credential KEY is not \
             for this host and port; credentials.KEY.hosts: add \"web.test:443\" (the file of \
             --credentials)",
        ),
        (
            Refusal::credential_for_other_paths("KEY".to_owned()),
            "403 policy_denied credential_endpoint_mismatch: GET /a refused: credential KEY is not \
             for this path; credentials.KEY.path: shorten or remove it (the file of --credentials)",
        ),
        (
            Refusal::secret_in_request("GitHub", Some("web".to_owned())),
            "403 policy_denied secret_in_request: GET /a refused: it holds a secret of GitHub, \
             which is not for this host; network_policies.web.endpoints: if the secret may go \
             there, add `leaks: allow` to each of web.test:443 (or use --leaks report)",
        ),
        (
            Refusal::inference_not_configured(),
            "503 inference_not_configured inference_not_configured: no models are configured; name \
             them with --inference-routes",
        ),
        (
            Refusal::inference_without_routes(),
            "503 inference_not_configured inference_not_configured: cluster inference is not \
             configured",
        ),
        (
            Refusal::inference_path_not_allowed(),
            "403 inference_path_not_allowed inference_path_not_allowed: connection not allowed by \
             policy",
        ),
        (
            Refusal::inference_no_route(),
            "400 inference_no_route inference_no_route: no compatible inference route available",
        ),
        (
            Refusal::unsupported_encoding(),
            "415 unsupported_encoding unsupported_encoding: the body of a request for a model must \
             be JSON in UTF-8",
        ),
        (
            Refusal::upgrade_refused(),
            "426 upgrade_refused upgrade_refused: models have no WebSocket; send the request over \
             HTTP",
        ),
        (
            Refusal::inference_request_too_large(7),
            "413 request_too_large request_too_large: a request for a model may have at most 7 \
             bytes",
        ),
        (
            Refusal::inference_budget_exhausted("main", "max_tokens"),
            "429 inference_budget_exhausted inference_budget_exhausted: the max_tokens of route \
             main are used up for this run",
        ),
        (
            Refusal::inference_unavailable("10.0.0.1"),
            "503 inference_unavailable inference_unavailable: inference service unavailable",
        ),
        (
            Refusal::inference_failed("10.0.0.1"),
            "502 inference_error inference_error: inference service error",
        ),
        (
            Refusal::bad_request("malformed"),
            "400 bad_request bad_request: malformed",
        ),
        (
            Refusal::message_invalid("no message".to_owned()),
            "400 message_invalid message_invalid: no message",
        ),
        (
            of_message(
                Some("tools/call"),
                Some((About::Tool, "x.y")),
                RequestFault::NoRule(At::Any),
            ),
            "403 policy_denied request_not_in_rules: GET /a denied by L7 policy; network_policies.web.endpoints: add to \
             the `rules` of web.test:443 `- allow: {method: tools/call, tool: x.y}`",
        ),
        (
            of_message(Some("ping"), None, RequestFault::DenyRule),
            "403 policy_denied request_in_deny_rules: GET /a denied by L7 policy; network_policies.web.endpoints: \
             `deny_rules` of web.test:443 match {method: ping}, and win over any rule",
        ),
        (
            of_message(None, None, RequestFault::NoRule(At::Any)),
            "403 policy_denied request_not_in_rules: GET /a denied by L7 policy; no rule of web.test:443 permits it; \
             `protocol: mcp` has POST, and for MCP the stream by GET and the end of a session by DELETE",
        ),
        (
            of_message(
                Some("ping"),
                None,
                RequestFault::Version {
                    supported: vec![Revision::R20251125],
                    requested: "2026-07-28".to_owned(),
                },
            ),
            "403 policy_denied request_not_in_rules: GET /a denied by L7 policy; network_policies.web.endpoints: add \
             \"2026-07-28\" to `mcp: {versions: […]}` of web.test:443",
        ),
        (
            Refusal::target("malformed"),
            "400 bad_request bad_request: malformed",
        ),
        (
            Refusal::head_too_large(),
            "431 request_too_large request_too_large: the head of a request may have at most 64 \
             KiB and 256 lines",
        ),
        (
            Refusal::connect_head_too_large(),
            "431 request_too_large request_too_large: the head of a CONNECT may have at most 8 KiB",
        ),
        (
            Refusal::engine(text()),
            "500 policy_engine_error policy_engine_error: GET /a refused: the policy could not be \
             evaluated; the log says why",
        ),
        (
            Refusal::limit_reached("too many"),
            "503 limit_reached limit_reached: GET /a refused: too many",
        ),
        (
            Refusal::upstream_unreachable("10.0.0.1".to_owned()),
            "502 upstream_unreachable upstream_unreachable: connection to web.test:443 failed",
        ),
        (
            Refusal::upstream_without_http2(),
            "502 upstream_unreachable upstream_unreachable: GET /a failed: the upstream does not \
             speak HTTP/2, which gRPC needs",
        ),
        (
            Refusal::upstream_timeout(),
            "502 upstream_unreachable upstream_timeout: connection to web.test:443 failed",
        ),
    ]
}

fn content(response: &Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).unwrap()
}

#[test]
fn every_refusal_has_its_status_words_detail_and_fix() {
    let subject = subject();
    let target = subject.target.as_ref().unwrap();
    for (refusal, expected) in all() {
        let code = refusal.code();
        let head = format!("{} {} {}", refusal.status(), code.error(), code.as_str());
        let fix = refusal
            .fix(target, subject.caller.as_ref())
            .map(|fix| format!("; {fix}"))
            .unwrap_or_default();
        assert_eq!(
            format!("{head}: {}{fix}", refusal.detail(&subject)),
            expected
        );
    }
}

#[test]
fn every_code_of_the_proxy_has_a_refusal() {
    let refused: BTreeSet<_> = all()
        .iter()
        .map(|(refusal, _)| refusal.code().as_str())
        .collect();
    // Connections past the proxy are reported by the firewall, and get no answer.
    let elsewhere = |code: &&ReasonCode| **code != ReasonCode::DirectConnection;
    let codes: BTreeSet<_> = ReasonCode::ALL
        .iter()
        .filter(elsewhere)
        .map(|code| code.as_str())
        .collect();
    assert_eq!(refused, codes);
}

#[test]
fn no_answer_holds_what_only_the_log_may() {
    let subject = subject();
    for (refusal, _) in all() {
        let answers = [
            reply::refused(&refusal, &subject, &Guidance::default()),
            reply::refused_call(&refusal, &subject),
        ];
        let raw = reply::raw(&refusal, &subject, &Guidance::default());
        for secret in ["10.0.0.1", "said in the log"] {
            let told = answers.iter().any(|answer| {
                format!("{:?} {:?}", answer.headers(), answer.body()).contains(secret)
            });
            assert!(
                !told && !raw.escape_ascii().to_string().contains(secret),
                "{}",
                refusal.code().as_str()
            );
        }
    }
}

#[test]
fn an_answer_names_everything_that_is_known() {
    let response = reply::refused(
        &denied(RequestFault::NoRule(At::Any)),
        &subject(),
        &Guidance::default(),
    );
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(response.headers()["x-openshell-policy"], "web");
    assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    let content = content(&response);
    let fix = content["fix"].clone();
    assert!(fix.is_string());
    let expected = json!({
        "error": "policy_denied", "detail": "GET /a denied by L7 policy", "reason_code": "request_not_in_rules",
        "layer": "l7", "host": "web.test", "port": 443, "binary": "/usr/bin/curl", "policy": "web", "rule": "GET /a",
        "method": "GET", "path": "/a", "nearest_rule": "web", "fix": fix,
    });
    assert_eq!(content, expected);
}

#[test]
fn an_answer_leaves_out_what_is_unknown() {
    let subject = Subject {
        request: "GET".to_owned(),
        target: None,
        caller: None,
        is_inside: false,
    };
    let response = reply::refused(
        &Refusal::bad_request("malformed"),
        &subject,
        &Guidance::default(),
    );
    let expected = json!({"error": "bad_request", "detail": "malformed", "reason_code": "bad_request", "layer": "l7"});
    assert_eq!(content(&response), expected);
}

#[test]
fn clients_of_models_get_an_answer_of_their_own_form() {
    let response = reply::refused(
        &Refusal::inference_without_routes(),
        &subject(),
        &Guidance::default(),
    );
    let expected = json!({
        "error": "cluster inference is not configured", "reason_code": "inference_not_configured",
        "hint": "run: openshell cluster inference set --help",
    });
    assert_eq!(content(&response), expected);
}

#[test]
fn a_refusal_ends_its_connection_unless_the_next_request_may_fare_better() {
    for (refusal, _) in all() {
        let response = reply::refused(&refusal, &subject(), &Guidance::default());
        let stays = matches!(
            refusal.code(),
            ReasonCode::MessageInvalid
                | ReasonCode::InferenceBudgetExhausted
                | ReasonCode::InferenceUnavailable
                | ReasonCode::InferenceError
        );
        assert_eq!(
            response.headers().contains_key(CONNECTION),
            !stays,
            "{}",
            refusal.code().as_str()
        );
    }
}

#[test]
fn a_refused_call_is_a_status_of_grpc_without_a_body() {
    for (refusal, status, message) in [
        (
            Refusal::upstream_timeout(),
            "14",
            "upstream_timeout: connection to web.test:443 failed",
        ),
        (
            Refusal::limit_reached("100% used"),
            "14",
            "limit_reached: GET /a refused: 100%25 used",
        ),
        (Refusal::bad_request("ä"), "7", "bad_request: %C3%A4"),
        (
            Refusal::policy_changed(String::new()),
            "7",
            "policy_changed: GET /a not permitted by policy",
        ),
        (
            Refusal::credential_for_other_paths("KEY".to_owned()),
            "7",
            "credential_endpoint_mismatch: GET /a refused: credential KEY is not for this path; \
             credentials.KEY.path: shorten or remove it (the file of --credentials)",
        ),
    ] {
        let response = reply::refused_call(&refusal, &subject());
        assert_eq!(
            (response.status(), response.body().len()),
            (StatusCode::OK, 0)
        );
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        let told = (
            header("content-type"),
            header("grpc-status"),
            header("grpc-message"),
        );
        assert_eq!(told, ("application/grpc", status, message));
    }
}

#[test]
fn a_raw_refusal_is_the_same_answer_written_out() {
    for (refusal, _) in all() {
        let response = reply::refused(&refusal, &subject(), &Guidance::default());
        let raw = reply::raw(&refusal, &subject(), &Guidance::default());
        let raw = String::from_utf8(raw).unwrap();
        let (head, body) = raw.split_once("\r\n\r\n").unwrap();
        let (line, headers) = head.split_once("\r\n").unwrap();
        assert_eq!(
            line,
            format!(
                "HTTP/1.1 {} {}",
                response.status().as_u16(),
                refusal.code().as_str()
            )
        );
        assert_eq!(body.as_bytes(), response.body());
        let length = format!("content-length: {}", body.len());
        let written: BTreeSet<_> = headers
            .split("\r\n")
            .filter(|line| **line != length)
            .map(str::to_owned)
            .collect();
        let same = response
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        assert_eq!(written, same.collect());
        assert!(headers.contains(&length));
    }
}

#[test]
fn only_what_a_rule_can_name_exactly_is_proposed() {
    let proposed = |method: &str, about: Option<(About, &str)>, change: fn(&mut JudgedMessage)| {
        let fault = RequestFault::NoRule(At::Path("/mcp".to_owned()));
        let mut message = JudgedMessage {
            protocol: Protocol::Mcp,
            is_response: false,
            method: Some(method.to_owned()),
            about: about.map(|(key, value)| (key, value.to_owned())),
            is_about_one: true,
            is_limited: false,
        };
        change(&mut message);
        let request = JudgedRequest {
            policy: None,
            method: "POST".into(),
            path: "/mcp".into(),
            fault,
            message: Some(message),
        };
        let refusal = Refusal::request("no rule".to_owned(), request);
        refusal.allowable_request().map(|request| request.asked)
    };
    let long = "x".repeat(512);
    let token = ["gh", "p_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat();
    for (method, about, is_proposed) in [
        ("tools/list", None, true),
        ("tools/call", Some((About::Tool, "put")), true),
        ("tools/call", Some((About::Tool, "a b")), false),
        ("tools/*", None, false),
        ("*", None, false),
        ("", None, false),
        ("ping\u{7}", None, false),
        ("resources/read", Some((About::Uri, "docs://a")), true),
        (
            "resources/read",
            Some((About::Uri, "docs://a?key=1")),
            false,
        ),
        (
            "resources/read",
            Some((About::OtherForm, "DOCS://a")),
            false,
        ),
        ("prompts/get", Some((About::Name, "a\\")), true),
        ("prompts/get", Some((About::Name, "")), false),
        ("prompts/get", Some((About::Name, long.as_str())), false),
        ("prompts/get", Some((About::Name, token.as_str())), false),
    ] {
        let proposed = proposed(method, about, |_| {});
        assert_eq!(proposed.is_some(), is_proposed, "{method} {about:?}");
    }
    let tool = Some((About::Tool, "put"));
    let changes: [fn(&mut JudgedMessage); 4] = [
        |message| message.is_limited = true,
        |message| message.is_about_one = false,
        |message| message.is_response = true,
        |message| message.method = None,
    ];
    for change in changes {
        assert_eq!(proposed("tools/call", tool, change), None);
    }
}
