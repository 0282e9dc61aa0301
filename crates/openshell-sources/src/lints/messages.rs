//! Rules for messages of MCP with which no client gets far.

use std::collections::BTreeMap;

use openshell_policy::network::NetworkPolicies;
use openshell_policy::network::rpc::{CALL, Revision, RpcRule, RpcRules};

use super::findings::Findings;

/// Warns of endpoints, or of several for the same requests, that permit tools and not the messages
/// before them.
pub(super) fn of_messages(network: &NetworkPolicies, found: &mut Findings) {
    let mut places: BTreeMap<_, (String, Vec<&RpcRules>)> = BTreeMap::new();
    for (name, policy) in network {
        for (index, endpoint) in policy.endpoints.iter().enumerate() {
            let rpc = endpoint.l7().and_then(|l7| l7.rpc.as_ref());
            let Some(rpc) = rpc.filter(|rpc| rpc.mcp.is_some()) else {
                continue;
            };
            let host = endpoint.host().map(ToString::to_string);
            let path = endpoint.path().map(|path| path.as_str().to_owned());
            let place = format!("network_policies.{}.endpoints[{index}]", name.as_str());
            let key = (host, endpoint.ports().clone(), path);
            let (_, known) = places.entry(key).or_insert((place, Vec::new()));
            known.push(rpc);
        }
    }
    for (place, rules) in places.into_values() {
        found.place = place;
        of_place(&rules, found);
    }
}

fn of_place(all: &[&RpcRules], found: &mut Findings) {
    let permits = |method: &str| {
        let has_method = |rule: &RpcRule| {
            let known = rule.method.as_ref();
            known.is_none_or(|known| known.matches(method))
        };
        all.iter().any(|rpc| {
            let rules = rpc.rules.as_ref();
            rules.is_none_or(|rules| rules.iter().any(has_method))
        })
    };
    if !permits(CALL) {
        return;
    }
    let versions = || {
        let settings = all.iter().filter_map(|rpc| rpc.mcp.as_ref());
        settings.flat_map(|mcp| mcp.versions.iter().copied())
    };
    let has_sessions = versions().any(|version| !version.is_stateless());
    let is_stateless = versions().any(Revision::is_stateless);
    let missing = [
        ("initialize", has_sessions, "begins its session"),
        (
            "server/discover",
            is_stateless && !has_sessions,
            "asks what the server speaks",
        ),
        ("tools/list", true, "learns which tools there are"),
    ];
    for (method, is_needed, purpose) in missing {
        if is_needed && !permits(method) {
            found.warn(format!(
                "it permits tools, and not the message by which a client {purpose}; add `- allow: {{method: {method}}}` \
                 to its `rules`"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lints;

    /// Returns the warnings about endpoints of one server of MCP with these keys, of one policy each.
    fn of(endpoints: &[&str]) -> Vec<String> {
        let policy = |(index, keys): (usize, &&str)| {
            format!(
                "p{index}: {{endpoints: [{{host: x.test, port: 1, path: /mcp, protocol: mcp, enforcement: enforce, \
                 {keys}}}], binaries: [{{path: /usr/bin/true}}]}}"
            )
        };
        let all: Vec<_> = endpoints.iter().enumerate().map(policy).collect();
        let text = format!("network_policies: {{{}}}", all.join(", "));
        let (policy, _) = openshell_policy::yaml::policy(&text).unwrap();
        lints(&policy, &|_| false).warnings
    }

    #[test]
    fn tools_without_the_messages_before_them_are_named_once_for_a_server() {
        let tool = "rules: [{allow: {method: tools/call, tool: a}}]";
        let begin = "rules: [{allow: {method: initialize}}, {allow: {method: tools/list}}]";
        let alone = of(&[tool]);
        assert_eq!(alone.len(), 2, "{alone:?}");
        assert!(
            alone[0].ends_with(
                "begins its session; add `- allow: {method: initialize}` to its `rules`"
            ),
            "{alone:?}"
        );
        assert!(alone[1].contains("method: tools/list"), "{alone:?}");
        assert_eq!(of(&[tool, tool]).len(), 2);
        assert_eq!(of(&[tool, begin]), [""; 0]);
        assert_eq!(of(&[begin]), [""; 0]);
        assert_eq!(of(&["mcp: {allow_all_known_mcp_methods: true}"]), [""; 0]);
        let new = "mcp: {versions: [\"2026-07-28\"]}, rules: [{allow: {method: \"tools/*\"}}]";
        let found = of(&[new]);
        assert!(
            found.len() == 1 && found[0].contains("method: server/discover"),
            "{found:?}"
        );
    }
}
