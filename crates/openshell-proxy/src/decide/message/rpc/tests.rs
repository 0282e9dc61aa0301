use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use openshell_events::reason::ReasonCode;
use openshell_policy::network::rpc::is_strict_name;

use crate::decide::connection::judge;
use crate::decide::engine::Decision;
use crate::decide::message::rpc::RpcKind;
use crate::decide::message::rpc::list::ListKind;
use crate::decide::message::{Action, Ahead, Message, Need};
use crate::decide::permit::Permit;
use crate::decide::snapshot::Snapshot;
use crate::decide::verdict::{self, Judged};
use crate::denial::refusal::Refusal;
use crate::testing;

/// The target of every request.
const TARGET: &str = "m.web.test:80";

/// Returns one endpoint with these `keys`.
fn endpoint(keys: &str) -> String {
    format!("{{host: m.web.test, port: 80, enforcement: enforce, {keys}}}")
}

/// Returns curl's permit under `endpoints`.
fn permit(endpoints: &str) -> Permit {
    let snapshot = testing::snapshot(1, endpoints);
    judge(
        &snapshot,
        &testing::caller(),
        &testing::target(TARGET),
        || Ok(()),
    )
    .unwrap()
}

/// Returns a `method` request to /mcp with these `fields` and `body`.
fn request(method: Method, fields: &[(&'static str, &str)], body: &str) -> Message {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = "/mcp".parse().unwrap();
    for (name, value) in fields {
        let value = HeaderValue::from_str(value).unwrap();
        request
            .headers_mut()
            .append(HeaderName::from_static(name), value);
    }
    let ahead = Ahead {
        bytes: Bytes::copy_from_slice(body.as_bytes()),
        is_whole: true,
        room: None,
    };
    Message::of(&request.into_parts().0, ahead, Need::Body(1))
}

const JSON: (&str, &str) = ("content-type", "application/json");

fn post(body: &str) -> Message {
    request(Method::POST, &[JSON], body)
}

/// Returns the body of a case.
fn body(words: &str) -> String {
    if let Some(body) = words.strip_prefix('=') {
        return body.to_owned();
    }
    let (method, params) = words.split_once(' ').unwrap_or((words, ""));
    let id = if method.starts_with("notifications/") {
        ""
    } else {
        "\"id\":1,"
    };
    let params = if params.is_empty() {
        String::new()
    } else {
        format!(",\"params\":{params}")
    };
    format!("{{\"jsonrpc\":\"2.0\",{id}\"method\":\"{method}\"{params}}}")
}

fn word(judged: Result<(), Refusal>) -> &'static str {
    match judged.map_err(|refusal| refusal.code()) {
        Ok(()) => "allow",
        Err(ReasonCode::RequestNotInRules) => "rules",
        Err(ReasonCode::RequestInDenyRules) => "denied",
        Err(ReasonCode::MessageInvalid) => "invalid",
        Err(other) => other.as_str(),
    }
}

#[test]
fn every_case_of_the_table_has_its_verdict_by_the_proxy_and_by_the_rules_as_a_whole() {
    let mut rules = None;
    let mut count = 0;
    for line in include_str!("cases.txt").lines() {
        let (verdict, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verdict {
            "" | "#" => continue,
            "endpoint" => {
                let endpoint = endpoint(rest);
                rules = Some((testing::snapshot(1, &endpoint), permit(&endpoint)));
                continue;
            }
            _ => {}
        }
        let (snapshot, permit) = rules.as_ref().unwrap();
        let message = post(&body(rest));
        let judged = verdict::judge_read(permit, &message).map(drop);
        assert_eq!(word(judged), verdict, "{line}");
        count += 1;
        if verdict != "invalid" && !is_refused_before(permit, &message) {
            let is_allowed = permitted_by_all_rules(snapshot, permit, &message);
            assert_eq!(is_allowed, verdict == "allow", "{line}");
        }
    }
    assert!(count >= 200, "{count} cases");
}

/// Returns true if `message` is refused before its rules are asked.
fn is_refused_before(permit: &Permit, message: &Message) -> bool {
    let actions = permit.read(message).unwrap().actions;
    let mut messages = actions.iter().filter_map(Action::rpc);
    messages.any(|message| {
        let tool = message.tool.as_deref();
        message.kind == RpcKind::Response || tool.is_some_and(|tool| !is_strict_name(tool))
    })
}

/// Returns true if the built-in rules over the whole policy permit all messages.
fn permitted_by_all_rules(snapshot: &Snapshot, permit: &Permit, message: &Message) -> bool {
    let rules = permit.rules().unwrap();
    let actions = permit.read(message).unwrap().actions;
    actions.iter().all(|action| {
        let (input, _) = action.inputs(rules.reads()).unwrap();
        let caller = testing::caller();
        let mut session = snapshot.session(&caller.program, &testing::target(TARGET), input);
        session.decide(Decision::Message).unwrap().is_permitted
    })
}

/// Returns the outcome of a request with these `fields` and body under MCP with `keys`.
fn asked(
    keys: &str,
    method: Method,
    fields: &[(&'static str, &str)],
    body: &str,
) -> (String, Vec<u16>) {
    let permit = permit(&endpoint(&format!("protocol: mcp, {keys}")));
    let judged = verdict::judge_read(&permit, &request(method, fields, body));
    let status = judged
        .as_ref()
        .err()
        .and_then(Refusal::answer)
        .map(|answer| answer.status);
    (
        word(judged.map(drop)).to_owned(),
        status.into_iter().collect(),
    )
}

#[test]
fn a_head_says_the_same_as_the_body_and_a_difference_is_a_fault() {
    const ALL: &str = "mcp: {allow_all_known_mcp_methods: true}";
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"x":"1","n":{"y":5}},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let old = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"x":"1"}}}"#;
    let version = ("mcp-protocol-version", "2026-07-28");
    let method = ("mcp-method", "tools/call");
    let name = ("mcp-name", "a");
    let of = |fields: &[(&'static str, &str)], body: &str| {
        let fields: Vec<_> = std::iter::once(JSON)
            .chain(fields.iter().copied())
            .collect();
        asked(ALL, Method::POST, &fields, body)
    };
    let allowed = ("allow".to_owned(), vec![]);
    let fault = ("invalid".to_owned(), vec![400]);
    assert_eq!(of(&[version, method, name], call), allowed);
    assert_eq!(
        of(&[version, method, ("mcp-name", "=?base64?YQ==?=")], call),
        allowed
    );
    assert_eq!(
        of(
            &[
                version,
                method,
                name,
                ("mcp-param-x", "1"),
                ("mcp-param-y", "5.0")
            ],
            call
        ),
        allowed
    );
    assert_eq!(of(&[], old), allowed);
    assert_eq!(
        of(&[("mcp-protocol-version", "2025-11-25"), method, name], old),
        allowed
    );
    for fields in [
        &[method, name][..],
        &[version, name],
        &[version, method],
        &[version, version, method, name],
        &[version, method, method, name],
        &[version, ("mcp-method", "tools/list"), name],
        &[version, ("mcp-method", "Tools/Call"), name],
        &[version, method, ("mcp-name", "b")],
        &[version, method, ("mcp-name", "A")],
        &[version, method, ("mcp-name", "=?base64?%?=")],
        &[("mcp-protocol-version", "2025-11-25"), method, name],
        &[version, method, name, ("mcp-param-x", "2")],
        &[
            version,
            method,
            name,
            ("mcp-param-x", "1"),
            ("mcp-param-x", "1"),
        ],
    ] {
        assert_eq!(of(fields, call), fault, "{fields:?}");
    }
    for fields in [
        &[version, method, name][..],
        &[("mcp-method", "ping")],
        &[("mcp-name", "b")],
    ] {
        assert_eq!(of(fields, old), fault, "{fields:?}");
    }
}

#[test]
fn a_revision_that_the_policy_does_not_list_is_refused_so_that_clients_try_another() {
    let rules = "rules: [{allow: {method: initialize}}, {allow: {method: ping}}, {allow: {method: server/discover}}]";
    let older = format!("mcp: {{versions: [\"2025-06-18\", \"2025-11-25\"]}}, {rules}");
    let newest = format!("mcp: {{versions: [\"2026-07-28\"]}}, {rules}");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#;
    let plain = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    let stateless = [
        JSON,
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "ping"),
    ];
    let of = |keys: &str, fields: &[(&'static str, &str)], body: &str| {
        asked(keys, Method::POST, fields, body)
    };
    let refused = ("rules".to_owned(), vec![]);
    let allowed = ("allow".to_owned(), vec![]);
    assert_eq!(of(&older, &stateless, ping), refused);
    assert_eq!(of(&newest, &stateless, ping), allowed);
    assert_eq!(
        of(
            &older,
            &[JSON, ("mcp-protocol-version", "2025-11-25")],
            plain
        ),
        allowed
    );
    assert_eq!(
        of(&older, &[JSON], plain),
        refused,
        "2025-03-26 is not listed"
    );
    assert_eq!(
        of(
            &newest,
            &[JSON, ("mcp-protocol-version", "2099-01-01")],
            plain
        ),
        refused
    );
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    assert_eq!(
        of(&older, &[JSON], initialize),
        allowed,
        "its body says what it speaks"
    );
    let batch = format!("[{plain}]");
    let of_batch = of(
        rules,
        &[JSON, ("mcp-protocol-version", "2025-06-18")],
        &batch,
    );
    assert_eq!(of_batch.0, "invalid", "only 2025-03-26 has batches");
}

#[test]
fn a_request_without_a_message_is_the_stream_the_end_or_refused() {
    let rules = "rules: [{allow: {method: ping}}]";
    let with_end = "rules: [{allow: {method: initialize}}]";
    let newest = "mcp: {versions: [\"2026-07-28\"]}, rules: [{allow: {method: initialize}}]";
    let events = ("accept", "text/event-stream");
    let session = ("mcp-session-id", "x");
    for (keys, method, fields, body, expected) in [
        (rules, "GET", &[events][..], "", "allow"),
        (
            rules,
            "GET",
            &[events, ("mcp-protocol-version", "2025-11-25")],
            "",
            "allow",
        ),
        (rules, "GET", &[], "", "rules"),
        (rules, "GET", &[("accept", "text/html")], "", "rules"),
        (rules, "GET", &[events], "x", "rules"),
        (newest, "GET", &[events], "", "rules"),
        (with_end, "DELETE", &[session], "", "allow"),
        (rules, "DELETE", &[session], "", "rules"),
        (with_end, "DELETE", &[], "", "rules"),
        (with_end, "DELETE", &[session], "x", "rules"),
        (newest, "DELETE", &[session], "", "rules"),
        (rules, "OPTIONS", &[], "", "allow"),
        (rules, "OPTIONS", &[], "x", "rules"),
        (rules, "HEAD", &[events], "", "rules"),
        (rules, "PUT", &[JSON], "{}", "rules"),
        (rules, "POST", &[JSON], "", "invalid"),
        (rules, "post", &[JSON], "", "rules"),
        (rules, "POST", &[], "{}", "invalid"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let found = asked(keys, method.clone(), fields, body).0;
        assert_eq!(found, expected, "{method} {fields:?} {body} under {keys}");
    }
}

#[test]
fn what_is_audited_passes_but_a_fault_never_does() {
    let keys = "protocol: mcp, rules: [{allow: {method: ping}}]";
    let endpoint = format!("{{host: m.web.test, port: 80, enforcement: audit, {keys}}}");
    let permit = permit(&endpoint);
    let call = post(&body("tools/call {\"name\":\"a\"}"));
    let judged = verdict::judge_read(&permit, &call).unwrap();
    assert!(matches!(
        judged.judged(),
        Judged::Audited {
            code: ReasonCode::RequestNotInRules,
            ..
        }
    ));
    let twice = post(r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#);
    assert_eq!(
        word(verdict::judge_read(&permit, &twice).map(drop)),
        "invalid"
    );
}

#[test]
fn deny_rules_for_requests_hold_for_the_messages_in_them() {
    let permit = permit(
        "{host: m.web.test, port: 80, path: /mcp, protocol: mcp, enforcement: enforce, rules: [{allow: {method: ping}}]}, \
         {host: m.web.test, port: 80, protocol: rest, enforcement: enforce, access: full, deny_rules: [{method: POST, \
         path: \"/**\", query: {x: \"1\"}}]}",
    );
    let mut message = post(&body("ping"));
    assert_eq!(
        word(verdict::judge_read(&permit, &message).map(drop)),
        "allow"
    );
    message.uri = "/mcp?x=1".parse().unwrap();
    assert_eq!(
        word(verdict::judge_read(&permit, &message).map(drop)),
        "denied"
    );
    message.uri = "/other".parse().unwrap();
    assert_eq!(
        word(verdict::judge_read(&permit, &message).map(drop)),
        "allow",
        "it is judged as a request"
    );
    for path in ["/MCP", "/mcp/", "/mcp;x", "//mcp/"] {
        message.uri = path.parse().unwrap();
        let judged = verdict::judge_read(&permit, &message).map(drop);
        assert_eq!(word(judged), "endpoints_ambiguous", "{path}");
    }
}

#[test]
fn endpoints_of_one_path_and_several_protocols_refuse_their_requests() {
    let permit = permit(
        "{host: m.web.test, port: 80, path: /mcp, protocol: mcp, enforcement: enforce, rules: [{allow: {method: ping}}]}, \
         {host: \"*.web.test\", port: 80, path: /mcp, protocol: rest, enforcement: enforce, access: full}",
    );
    let judged = verdict::judge_read(&permit, &post(&body("ping"))).map(drop);
    assert_eq!(word(judged), "endpoints_ambiguous");
}

#[test]
fn as_much_is_read_as_the_rules_of_the_path_need() {
    let permit = permit(
        "{host: m.web.test, port: 80, path: /mcp, protocol: mcp, enforcement: enforce, mcp: {max_body_bytes: 2048}, rules: \
         [{allow: {method: ping}}]}, {host: m.web.test, port: 80, protocol: rest, enforcement: enforce, access: full}",
    );
    let need = |method: Method, path: &str| permit.need(&method, &path.parse().unwrap());
    assert_eq!(need(Method::POST, "/mcp?x"), Need::Body(2048));
    assert_eq!(need(Method::GET, "/a/../mcp"), Need::Prefix(1));
    assert_eq!(need(Method::POST, "/other"), Need::Head);
    let unread = Message::of_head(Method::POST, "/mcp".parse().unwrap());
    let judged = verdict::judge_read(&permit, &unread).map(drop);
    assert_eq!(
        word(judged),
        "policy_changed",
        "a request that was read for other rules"
    );
}

#[test]
fn rules_of_ones_own_judge_the_whole_message_and_must_have_a_rule_for_it() {
    let keys = "protocol: mcp, rules: [{allow: {method: ping}}]";
    let policy = format!(
        "network_policies: {{web: {{endpoints: [{}], binaries: [{{path: /usr/bin/curl}}]}}}}",
        endpoint(keys)
    );
    let load = |rules: &str| {
        let (policy, _) = openshell_policy::yaml::policy(&policy).unwrap();
        Snapshot::new(1, policy, Some(rules), &|_| None)
    };
    let without = "package openshell.sandbox\nimport rego.v1\nnetwork_action := \"allow\"\n\
                   matched_endpoint_configs contains endpoint if some endpoint in data.network_policies.web.endpoints\n";
    let error = load(without).unwrap_err().to_string();
    assert!(error.contains("have no `allow_message`"), "{error}");
    let with = format!(
        "{without}allow_message if {{ input.message.arguments.n == 7; input.message.params.name == \"a\"; \
         input.message.id == 1; input.message.protocol == \"mcp\"; input.message.http_method == \"POST\" }}\n\
         message_deny_reason := \"not seven\"\n"
    );
    let snapshot = load(&with).unwrap();
    let permit = judge(
        &snapshot,
        &testing::caller(),
        &testing::target(TARGET),
        || Ok(()),
    )
    .unwrap();
    let judged = |words: &str| verdict::judge_read(&permit, &post(&body(words)));
    judged("tools/call {\"name\":\"a\",\"arguments\":{\"n\":7}}").unwrap();
    let refusal = judged("tools/call {\"name\":\"a\",\"arguments\":{\"n\":8}}").unwrap_err();
    assert_eq!(
        (word(Err(refusal.clone())), refusal.reason()),
        ("rules", "not seven")
    );
    assert!(judged("ping").is_err());
    let beyond = judged("tools/call {\"name\":\"a\",\"arguments\":{\"n\":7,\"x\":1e400}}");
    assert_eq!(
        word(beyond.map(drop)),
        "policy_engine_error",
        "a part that the rules cannot see"
    );
}

#[test]
fn what_is_not_passed_on_is_not_judged() {
    let keys = "mcp: {versions: [\"2025-11-25\"]}, rules: [{allow: {method: ping}}]";
    let ping = body("ping");
    let version = ("mcp-protocol-version", "2025-11-25");
    let of = |fields: &[(&'static str, &str)]| asked(keys, Method::POST, fields, &ping).0;
    assert_eq!(of(&[JSON, version]), "allow");
    assert_eq!(
        of(&[JSON, version, ("connection", "mcp-protocol-version")]),
        "rules"
    );
    assert_eq!(
        of(&[JSON, version, ("connection", "close, Content-Type")]),
        "invalid"
    );
    let encoded = ("mcp-protocol-version", "=?base64?MjAyNS0xMS0yNQ==?=");
    assert_eq!(of(&[JSON, encoded]), "rules", "servers do not decode it");
    let placeholder = ("mcp-method", "openshell:resolve:env:X");
    assert_eq!(
        of(&[JSON, version, placeholder]),
        "invalid",
        "it is replaced later"
    );
}

#[test]
fn a_batch_has_a_bound() {
    let batch = |count: usize| format!("[{}]", vec![body("ping"); count].join(","));
    let keys = "rules: [{allow: {method: ping}}]";
    assert_eq!(asked(keys, Method::POST, &[JSON], &batch(100)).0, "allow");
    assert_eq!(asked(keys, Method::POST, &[JSON], &batch(101)).0, "invalid");
    assert_eq!(
        asked(keys, Method::POST, &[JSON], &batch(10_000)).0,
        "invalid"
    );
}

#[test]
fn deny_rules_hold_for_other_readings_of_a_path_too() {
    let at = |path: &str, keys: &str| endpoint(&format!("path: \"{path}\", protocol: mcp, {keys}"));
    let permit = permit(&format!(
        "{}, {}",
        at("/api/**", "rules: [{allow: {method: ping}}]"),
        at(
            "/*/x",
            "rules: [{allow: {method: ping}}], deny_rules: [{method: ping}]"
        )
    ));
    let mut message = post(&body("ping"));
    for (path, expected) in [
        ("/api/y", "allow"),
        ("/api/x", "denied"),
        ("/api/x/", "denied"),
    ] {
        message.uri = path.parse().unwrap();
        assert_eq!(
            word(verdict::judge_read(&permit, &message).map(drop)),
            expected,
            "{path}"
        );
    }
}

#[test]
fn a_list_shows_what_could_be_used_with_some_arguments() {
    let permit = permit(&endpoint(
        "protocol: mcp, rules: [{allow: {method: tools/call, tool: \"a*\", arguments: {x: {equals: 1}}}}, {allow: {method: \
         resources/read, uri: \"file:///docs/**\"}}], deny_rules: [{method: tools/call, tool: a_secret}, {method: \
         tools/call, tool: ab, arguments: {y: {equals: 2}}}]",
    ));
    let action = permit.read(&post(&body("ping"))).unwrap().actions.remove(0);
    let target = action.target().clone();
    let rules = permit.rules().unwrap();
    let sees = |kind, name: &str| rules.entries(&target, kind).permit(name);
    for (kind, name, expected) in [
        (ListKind::Tools, "a1", true),
        (ListKind::Tools, "ab", true),
        (ListKind::Tools, "a_secret", false),
        (ListKind::Tools, "b", false),
        (ListKind::Tools, "a b", false),
        (ListKind::Resources, "file:///docs/x", true),
        (ListKind::Resources, "file:///etc/x", false),
        (ListKind::Resources, "file:///docs/../x", false),
        (ListKind::Templates, "file:///docs/{name}", true),
        (ListKind::Templates, "file:///{path}", true),
        (ListKind::Templates, "{uri}", true),
        (ListKind::Templates, "file:///etc/{name}", false),
        (ListKind::Prompts, "x", false),
    ] {
        assert_eq!(sees(kind, name), expected, "{kind:?} {name}");
    }
}

#[test]
fn entries_of_a_long_list_are_judged_as_if_each_were_alone() {
    let permit = permit(&endpoint(
        "protocol: mcp, mcp: {strict_tool_names: true}, rules: [{allow: {method: tools/call, tool: {any: [\"a*\", \
         \"b.*\", c, \"{d,e}_?\"]}}}, {allow: {method: prompts/get, name: \"p*\"}}], deny_rules: [{method: tools/call, \
         tool: \"a*_secret\"}, {method: tools/call, tool: ab}]",
    ));
    let action = permit.read(&post(&body("ping"))).unwrap().actions.remove(0);
    let target = action.target().clone();
    let rules = permit.rules().unwrap();
    let parts = [
        "", "a", "ab", "b", "b.", "c", "d_", "e_", "p", "x", "_secret", " ", "\0", "\u{e9}",
    ];
    for kind in [ListKind::Tools, ListKind::Prompts] {
        let mut all = rules.entries(&target, kind);
        let mut permitted = 0;
        for (one, other) in parts.iter().flat_map(|one| parts.map(|other| (one, other))) {
            let name = format!("{one}{other}");
            let alone = rules.entries(&target, kind).permit(&name);
            assert_eq!(all.permit(&name), alone, "{kind:?} {name:?}");
            permitted += usize::from(alone);
        }
        assert!((1..parts.len().pow(2)).contains(&permitted), "{permitted}");
    }
}

#[test]
fn fields_are_kept_only_for_rules_that_read_them() {
    let mut headers = HeaderMap::new();
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("a/b"));
    let mut request = Request::new(());
    *request.headers_mut() = headers;
    let (parts, ()) = request.into_parts();
    assert!(
        Message::of(&parts, Ahead::default(), Need::Head)
            .head
            .is_none()
    );
    assert!(
        Message::of(&parts, Ahead::default(), Need::Prefix(1))
            .head
            .is_some()
    );
}

#[test]
fn a_decision_depends_on_arguments_only_by_the_conditions_that_hold() {
    let permit = permit(&endpoint(
        "protocol: mcp, rules: [{allow: {method: tools/call, tool: a, arguments: {x: {range: [1, null]}}}}]",
    ));
    let reads = permit.rules().unwrap().reads();
    let key = |arguments: &str| {
        let body = body(&format!(
            "tools/call {{\"name\":\"a\",\"arguments\":{arguments}}}"
        ));
        let mut actions = permit.read(&post(&body)).unwrap().actions;
        actions.remove(0).key(reads)
    };
    assert_eq!(key("{\"x\":1}"), key("{\"x\":2,\"y\":3}"));
    assert_ne!(key("{\"x\":1}"), key("{\"x\":0}"));
    assert!(matches!(key("{}"), Action::Rpc(_)));
}

/// The fields that heads of the fuzzed requests may have.
const FIELDS: [&str; 5] = [
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "mcp-param-a",
    "mcp-session-id",
];

/// Splits an input into the fields of a head, a line each, and a body; `None` for other inputs.
fn head_and_body(input: &[u8]) -> Option<(HeaderMap, &[u8])> {
    let end = input.windows(2).position(|bytes| bytes == b"\n\n")?;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for line in input.get(..end)?.split(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = FIELDS
            .iter()
            .find(|name| name.as_bytes() == &line[..colon])?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        headers.append(HeaderName::from_static(name), value);
    }
    Some((headers, &input[end + 2..]))
}

/// Returns the value of a field as another decoder reads it.
fn other_decoder(value: &HeaderValue) -> Vec<u8> {
    let bytes = value.as_bytes();
    let inner = bytes.strip_prefix(b"=?base64?");
    let Some(inner) = inner.and_then(|inner| inner.strip_suffix(b"?=")) else {
        return bytes.to_vec();
    };
    STANDARD.decode(inner).unwrap()
}

#[test]
fn fuzzed_messages_are_judged_as_another_reader_reads_them() {
    let permit = permit(&endpoint(
        "path: /mcp, protocol: mcp, mcp: {allow_all_known_mcp_methods: true, strict_tool_names: false}",
    ));
    let samples: [&[u8]; 5] = [
        b"mcp-method: tools/call\nmcp-name: x\n\n{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"name\":\"x\",\"arguments\":{\"a\":[1,2.5e-3,null,true]}}}",
        b"mcp-protocol-version: 2026-07-28\nmcp-method: tools/call\nmcp-name: =?base64?eA==?=\nmcp-param-a: 1\n\n{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"tools/call\",\"params\":{\"name\":\"x\",\"arguments\":{\"a\":1},\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"}}}",
        b"mcp-method: resources/read\n\n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"resources/read\",\"params\":{\"uri\":\"docs://a\"}}",
        b"mcp-session-id: 7\n\n[{\"jsonrpc\":\"2.0\",\"method\":\"ping\",\"id\":1},{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}]",
        b"mcp-method: prompts/get\n\n{\"method\":\"prompts/get\",\"id\":-1,\"jsonrpc\":\"2.0\",\"params\":{\"name\":\"\\u0061\"}}",
    ];
    let words: [&[u8]; 14] = [
        b"\"name\":\"y\"",
        b"\"method\":\"ping\"",
        b"\"Name\":1",
        b"\\u0078",
        b"mcp-name: y\n",
        b"=?base64?",
        b"?=",
        b"\n",
        b"\"",
        b"{",
        b"}",
        b",",
        b"null",
        b"1e0",
    ];
    fuzz::fuzz("messages of MCP", &samples, &words, |input| {
        let Some((headers, body)) = head_and_body(input) else {
            return;
        };
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = "/mcp".parse().unwrap();
        *request.headers_mut() = headers;
        let parts = request.into_parts().0;
        let ahead = Ahead {
            bytes: Bytes::copy_from_slice(body),
            is_whole: true,
            room: None,
        };
        let message = Message::of(&parts, ahead, Need::Body(1 << 20));
        let Ok(reading) = permit.read(&message) else {
            return;
        };
        let other: serde_json::Value = match serde_json::from_slice(body) {
            Ok(other) => other,
            Err(error) => {
                assert!(
                    error.to_string().starts_with("number out of range"),
                    "{error}"
                );
                return;
            }
        };
        let items = other.as_array().cloned().unwrap_or_else(|| vec![other]);
        assert_eq!(items.len(), reading.actions.len());
        for (item, action) in items.iter().zip(&reading.actions) {
            let judged = action.rpc().unwrap();
            let params = &item["params"];
            assert_eq!(judged.method.as_deref(), item["method"].as_str());
            let about = [
                ("tools/call", judged.tool.as_deref(), &params["name"]),
                ("prompts/get", judged.name.as_deref(), &params["name"]),
            ];
            for (method, ours, theirs) in about {
                let theirs = theirs.as_str().filter(|_| item["method"] == method);
                assert_eq!(ours, theirs, "{method}");
            }
            let Some(method) = &judged.method else {
                continue;
            };
            if let Some(field) = parts.headers.get("mcp-method") {
                assert_eq!(field.as_bytes(), method.as_bytes());
            }
            let name = match method.as_str() {
                "tools/call" | "prompts/get" => params["name"].as_str(),
                "resources/read" => params["uri"].as_str(),
                _ => continue,
            };
            if let Some(field) = parts.headers.get("mcp-name") {
                assert_eq!(
                    Some(other_decoder(field).as_slice()),
                    name.map(str::as_bytes)
                );
            }
        }
    });
}
