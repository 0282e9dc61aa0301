//! Conversion of rules for the messages of JSON-RPC and MCP.

use openshell_policy::network::endpoint::{L7, Protocol};
use openshell_policy::network::rpc::glob::NameGlob;
use openshell_policy::network::rpc::{Revision, RpcMethod, RpcRule, RpcRules};
use openshell_policy::yaml;
use serde_json::{Value, json};

use crate::convert::json::{fields, list, matcher, text};
use crate::proto::sandbox::v1::{
    L7Allow, L7DenyRule, L7QueryMatcher, L7Rule, McpOptions, NetworkEndpoint,
};

/// Returns true if `protocol` is one whose messages are judged.
pub(super) fn is_rpc(protocol: &str) -> bool {
    Protocol::parse(protocol).is_ok_and(Protocol::is_rpc)
}

/// Returns the fields of an endpoint for messages.
pub(super) fn rpc_fields(message: &NetworkEndpoint) -> Vec<(&'static str, Option<Value>)> {
    let most = usize::try_from(message.json_rpc_max_body_bytes).unwrap_or(usize::MAX);
    // A limit above that of this build counts as that of this build.
    let most = most.min(*RpcRules::BODY_BYTES.end());
    let most = (most > 0).then(|| most.into());
    let allowing = message.rules.iter();
    let allowing = allowing.filter_map(|rule| rule.allow.as_ref());
    let denying = message.deny_rules.iter();
    let mut known = vec![
        ("path", text(&message.path)),
        ("protocol", text(&message.protocol)),
        ("enforcement", text(&message.enforcement)),
        ("access", text(&message.access)),
        (
            "rules",
            list(allowing.map(|allow| json!({"allow": rule(&allow.method, &allow.params)}))),
        ),
        (
            "deny_rules",
            list(denying.map(|deny| rule(&deny.method, &deny.params))),
        ),
    ];
    if Protocol::parse(&message.protocol) == Ok(Protocol::JsonRpc) {
        let settings = fields([("max_body_bytes", most)]);
        known.push(("json_rpc", Some(settings)));
        return known;
    }
    let McpOptions {
        strict_tool_names,
        allow_all_known_mcp_methods,
        versions,
    } = message.mcp.clone().unwrap_or_default();
    let settings = fields([
        ("max_body_bytes", most),
        ("strict_tool_names", strict_tool_names.map(Value::from)),
        (
            "allow_all_known_mcp_methods",
            allow_all_known_mcp_methods.map(Value::from),
        ),
        ("versions", list(versions.into_iter().map(Value::from))),
    ]);
    known.push(("mcp", Some(settings)));
    known
}

fn rule<'p>(
    method: &str,
    params: impl IntoIterator<Item = (&'p String, &'p L7QueryMatcher)>,
) -> Value {
    let params: serde_json::Map<_, _> = params
        .into_iter()
        .map(|(key, one)| (key.clone(), matcher(one.clone())))
        .collect();
    fields([
        ("method", text(method)),
        (
            "params",
            (!params.is_empty()).then_some(Value::Object(params)),
        ),
    ])
}

/// Returns why `endpoint`, whose messages are judged, cannot be enforced; `None` if it can.
pub(super) fn fault(message: &NetworkEndpoint, endpoint: &Value) -> Option<String> {
    let has_path = message
        .rules
        .iter()
        .filter_map(|rule| rule.allow.as_ref())
        .any(|allow| !allow.path.is_empty() || !allow.query.is_empty())
        || message
            .deny_rules
            .iter()
            .any(|deny| !deny.path.is_empty() || !deny.query.is_empty());
    if has_path {
        return Some("a rule for messages with a path".to_owned());
    }
    let violations = yaml::endpoints(&json!([endpoint]).to_string()).err()?;
    let first = violations.0.first()?;
    Some(format!("an endpoint for messages in which {}", first.kind))
}

/// Adds the rules of `l7` for messages to `endpoint`.
pub(super) fn put_rules(l7: &L7, endpoint: &mut NetworkEndpoint) {
    let Some(rpc) = &l7.rpc else {
        return;
    };
    endpoint.json_rpc_max_body_bytes = u32::try_from(rpc.max_body_bytes).unwrap_or(u32::MAX);
    endpoint.rules = rpc.rules.iter().flatten().map(allow_message).collect();
    endpoint.deny_rules = rpc.deny_rules.iter().map(deny_message).collect();
    endpoint.mcp = rpc.mcp.as_ref().map(|mcp| McpOptions {
        strict_tool_names: Some(mcp.strict_tool_names),
        allow_all_known_mcp_methods: Some(mcp.allow_all_known_methods),
        versions: mcp
            .versions
            .iter()
            .map(|version| Revision::as_str(*version).to_owned())
            .collect(),
    });
}

fn allow_message(rule: &RpcRule) -> L7Rule {
    let L7DenyRule { method, params, .. } = deny_message(rule);
    L7Rule {
        allow: Some(L7Allow {
            method,
            params,
            ..L7Allow::default()
        }),
    }
}

fn deny_message(rule: &RpcRule) -> L7DenyRule {
    let texts = |globs: &[NameGlob]| globs.iter().map(|glob| glob.as_str().to_owned()).collect();
    let tools = rule.tools.as_deref().map(|tools| L7QueryMatcher {
        glob: String::new(),
        any: texts(tools),
    });
    L7DenyRule {
        method: rule
            .method
            .as_ref()
            .map_or("", RpcMethod::as_str)
            .to_owned(),
        params: tools
            .map(|tools| ("name".to_owned(), tools))
            .into_iter()
            .collect(),
        ..L7DenyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use openshell_policy::yaml;

    use crate::convert::policy::{message, read, survives};
    use crate::proto::sandbox::v1::{L7Allow, L7Rule, McpOptions};

    fn policy(endpoint: &str) -> openshell_policy::policy::Policy {
        let document = format!(
            "network_policies: {{a: {{endpoints: [{{host: m.test, port: 443, enforcement: enforce, {endpoint}}}], \
             binaries: [{{path: /x}}]}}}}"
        );
        yaml::policy(&document).unwrap().0
    }

    #[test]
    fn rules_for_messages_come_from_a_gateway_as_they_are_in_a_file() {
        for endpoint in [
            "path: /mcp, protocol: mcp, mcp: {max_body_bytes: 4096, versions: [\"2025-11-25\"]}, rules: [{allow: {method: \
             initialize}}, {allow: {method: tools/call, tool: {any: [a, \"b_*\"]}}}], deny_rules: [{method: tools/call, \
             tool: \"*_c\"}]",
            "protocol: mcp, mcp: {allow_all_known_mcp_methods: true, strict_tool_names: false}",
            "protocol: json-rpc, rules: [{allow: {method: sum}}], deny_rules: [{method: other}]",
        ] {
            assert!(survives(&policy(endpoint)), "{endpoint}");
        }
        let conditions = "protocol: mcp, rules: [{allow: {method: tools/call, tool: a, arguments: {x: {equals: 1}}}}]";
        assert!(!survives(&policy(conditions)), "no field holds them");
    }

    #[test]
    fn an_endpoint_for_messages_that_cannot_be_enforced_refuses_and_no_other_does() {
        let allow = |allow: L7Allow| L7Rule { allow: Some(allow) };
        let method = |method: &str| L7Allow {
            method: method.to_owned(),
            ..L7Allow::default()
        };
        let with_path = L7Allow {
            path: "/x".to_owned(),
            ..method("ping")
        };
        let of_a_later_version = McpOptions {
            versions: vec!["2030-01-01".to_owned()],
            ..McpOptions::default()
        };
        for (rules, mcp, limit, what) in [
            (
                vec![allow(method("*"))],
                None,
                0,
                "a method of MCP is one method",
            ),
            (
                vec![allow(with_path)],
                None,
                0,
                "a rule for messages with a path",
            ),
            (vec![], None, 0, "the protocol needs `rules`"),
            (
                vec![allow(method("ping"))],
                Some(of_a_later_version),
                0,
                "is not one of 2025-03-26",
            ),
            (
                vec![allow(method("ping"))],
                None,
                7,
                "expected a whole number of bytes",
            ),
        ] {
            let known = "protocol: mcp, rules: [{allow: {method: ping}}]";
            let mut sent = message(&policy(known));
            let mut network = sent.network_policies["a"].clone();
            let endpoint = &mut network.endpoints[0];
            endpoint.rules = rules;
            endpoint.mcp = mcp;
            endpoint.json_rpc_max_body_bytes = limit;
            sent.network_policies.insert("b".to_owned(), network);
            let document = read(sent, &Default::default()).document;
            let (policy, _) = yaml::policy_of_gateway(&document).unwrap();
            let unsupported: Vec<_> = policy
                .network()
                .values()
                .map(|policy| policy.endpoints[0].unsupported().map(str::to_owned))
                .collect();
            assert_eq!(unsupported[0], None, "{what}");
            let found = unsupported[1].as_ref().unwrap();
            assert!(found.contains(what), "{what}: {found}");
        }
        let mut sent = message(&policy("protocol: mcp, rules: [{allow: {method: ping}}]"));
        let network = sent.network_policies.get_mut("a").unwrap();
        network.endpoints[0].json_rpc_max_body_bytes = u32::MAX;
        let document = read(sent, &Default::default()).document;
        assert!(document.contains("16777216"), "{document}");
    }
}
