//! Reader of rules for the messages of JSON-RPC and MCP.

use crate::network::endpoint::Protocol;
use crate::network::rpc::glob::NameGlob;
use crate::network::rpc::{CALL, Mcp, Revision, RpcMethod, RpcRule, RpcRules};
use crate::network::rule::Glob;
use crate::violation::{ViolationKind, WarningKind};
use crate::yaml::arguments::{arguments, globs};
use crate::yaml::keys::Keys;
use crate::yaml::node::Value;
use crate::yaml::reader::{At, Fields, Reader};

/// The settings of an endpoint, before its rules are read.
struct Settings {
    max_body_bytes: usize,
    mcp: Option<Mcp>,
}

/// Reads the rules of an endpoint for messages; returns `None` if it has another `protocol`.
pub(super) fn rpc(
    reader: &mut Reader,
    keys: &mut Keys<'_>,
    protocol: Option<Protocol>,
) -> Option<RpcRules> {
    let of_mcp = settings_of(reader, keys, protocol, Protocol::Mcp, "mcp");
    let of_json_rpc = settings_of(reader, keys, protocol, Protocol::JsonRpc, "json_rpc");
    let Settings {
        max_body_bytes,
        mcp,
    } = of_mcp.or(of_json_rpc)?;
    let rules = keys.read(reader, "rules", |reader, at| {
        let items = reader.sequence(at)?;
        let rules = items
            .iter()
            .filter_map(|at| allow_rule(reader, at, mcp.as_ref()));
        Some(rules.collect())
    });
    let deny_rules = keys.read(reader, "deny_rules", |reader, at| {
        let items = reader.sequence(at)?;
        let rules = items
            .iter()
            .filter_map(|at| deny_rule(reader, at, mcp.as_ref()));
        Some(rules.collect())
    });
    Some(RpcRules {
        max_body_bytes,
        mcp,
        rules,
        deny_rules: deny_rules.unwrap_or_default(),
    })
}

/// Reads the settings at `key`, which belong to the protocol `of`; returns them, or those of an
/// endpoint without, if that is the `protocol`.
fn settings_of(
    reader: &mut Reader,
    keys: &mut Keys<'_>,
    protocol: Option<Protocol>,
    of: Protocol,
    key: &'static str,
) -> Option<Settings> {
    let mut is_of = protocol == Some(of);
    let written = keys.read(reader, key, |reader, at| {
        if !is_of {
            let kind = ViolationKind::OfProtocol {
                key,
                protocol: of.as_str(),
            };
            reader.reject(at, kind);
            // Its rules are read as what they were meant to be.
            is_of = protocol.is_none();
        }
        settings(reader, at, of)
    });
    let default = || Settings {
        max_body_bytes: RpcRules::DEFAULT_BODY_BYTES,
        mcp: (of == Protocol::Mcp).then(Mcp::default),
    };
    is_of.then(|| written.unwrap_or_else(default))
}

fn settings(reader: &mut Reader, at: &At<'_>, protocol: Protocol) -> Option<Settings> {
    let mcp_keys = [
        "max_body_bytes",
        "strict_tool_names",
        "allow_all_known_mcp_methods",
        "versions",
        "filter_lists",
    ];
    let is_mcp = protocol == Protocol::Mcp;
    let known = if is_mcp {
        &mcp_keys[..]
    } else {
        &mcp_keys[..1]
    };
    let mut fields = reader.mapping(at, known)?;
    let max_body_bytes = match fields.take("max_body_bytes") {
        Some(at) => body_bytes(reader, &at)?,
        None => RpcRules::DEFAULT_BODY_BYTES,
    };
    let mut mcp = Mcp::default();
    if let Some(at) = fields.take("strict_tool_names") {
        mcp.strict_tool_names = reader.boolean(&at)?;
    }
    if let Some(at) = fields.take("allow_all_known_mcp_methods") {
        mcp.allow_all_known_methods = reader.boolean(&at)?;
    }
    if let Some(at) = fields.take("filter_lists") {
        mcp.filters_lists = reader.boolean(&at)?;
    }
    if let Some(at) = fields.take("versions") {
        mcp.versions = reader.texts(&at, Revision::parse).into_iter().collect();
        if matches!(at.node.value(), Value::Sequence(items) if items.is_empty()) {
            reader.reject(&at, ViolationKind::VersionsEmpty);
        }
    }
    Some(Settings {
        max_body_bytes,
        mcp: is_mcp.then_some(mcp),
    })
}

fn body_bytes(reader: &mut Reader, at: &At<'_>) -> Option<usize> {
    let bytes = match at.node.value() {
        Value::Integer(number) => usize::try_from(*number).ok(),
        _ => None,
    };
    let bytes = bytes.filter(|bytes| RpcRules::BODY_BYTES.contains(bytes));
    reader.check(at, bytes.ok_or(ViolationKind::BodyBytes))
}

fn allow_rule(reader: &mut Reader, at: &At<'_>, mcp: Option<&Mcp>) -> Option<RpcRule> {
    let Some(allow) = reader.mapping(at, &["allow"])?.take("allow") else {
        reader.reject(at, ViolationKind::Missing("allow"));
        return None;
    };
    rule(reader, &allow, mcp)
}

fn deny_rule(reader: &mut Reader, at: &At<'_>, mcp: Option<&Mcp>) -> Option<RpcRule> {
    let rule = rule(reader, at, mcp)?;
    if rule.arguments.denies_others {
        reader.reject(at, ViolationKind::OtherArguments);
        return None;
    }
    Some(rule)
}

const MCP_RULE_KEYS: &[&str] = &[
    "method",
    "tool",
    "params",
    "arguments",
    "other_arguments",
    "uri",
    "name",
];

fn rule(reader: &mut Reader, at: &At<'_>, mcp: Option<&Mcp>) -> Option<RpcRule> {
    let Some(mcp) = mcp else {
        let mut fields = reader.mapping(at, &["method"])?;
        let Some(method) = fields.take("method") else {
            reader.reject(at, ViolationKind::Missing("method"));
            return None;
        };
        return Some(RpcRule {
            method: Some(reader.text(&method, RpcMethod::of_json_rpc)?),
            ..RpcRule::default()
        });
    };
    let before = reader.violation_count();
    let mut fields = reader.mapping(at, MCP_RULE_KEYS)?;
    let written = fields.take("method");
    let method = written
        .as_ref()
        .and_then(|at| reader.text(at, RpcMethod::of_mcp));
    let mut rule = RpcRule {
        method,
        tools: tools(reader, &mut fields),
        arguments: arguments(reader, &mut fields),
        uri: fields.take("uri").and_then(|at| reader.text(&at, uri_glob)),
        name: fields
            .take("name")
            .and_then(|at| reader.text(&at, NameGlob::parse)),
    };
    if written.is_none() {
        if !mcp.allow_all_known_methods {
            reader.reject(at, ViolationKind::McpMethodMissing);
        }
        rule.method = rule.tools.is_some().then(RpcMethod::call);
    }
    for (key, methods) in misplaced(&rule) {
        reader.reject(at, ViolationKind::NeedsMethod { key, methods });
    }
    for kind in doubtful(&rule, mcp) {
        reader.warn(at, kind);
    }
    (reader.violation_count() == before).then_some(rule)
}

/// Returns what of `rule` no client or server of MCP would have.
fn doubtful(rule: &RpcRule, mcp: &Mcp) -> Vec<WarningKind> {
    let mut doubtful = Vec::new();
    let method = rule.method.as_ref().filter(|method| !method.is_known());
    if let Some(method) = method {
        doubtful.push(WarningKind::UnknownMcpMethod(method.as_str().to_owned()));
    }
    for tool in rule.tools.iter().flatten().map(NameGlob::as_str) {
        if mcp.strict_tool_names && is_like_regex(tool) {
            doubtful.push(WarningKind::RegexInGlob(tool.to_owned()));
        }
        if tool.starts_with("mcp__") {
            doubtful.push(WarningKind::ToolOfAgent(tool.to_owned()));
        }
    }
    doubtful
}

/// Returns true if a glob over names of tools seems to be meant as a regular expression: it has
/// characters that names do not have, or `.*` where no name ends before a dot.
fn is_like_regex(glob: &str) -> bool {
    let is_end = |before: &str| before.is_empty() || before.ends_with(['_', '-', '.', '\\']);
    let mut dots = glob.match_indices(".*");
    glob.starts_with('^')
        || glob.contains(['$', '|', '(', '+'])
        || dots.any(|(at, _)| glob.get(..at).is_some_and(is_end))
}

/// Returns the keys of `rule` that its method does not have, each with the methods that have it.
fn misplaced(rule: &RpcRule) -> Vec<(&'static str, &'static str)> {
    let method = rule.method.as_ref().map_or("", RpcMethod::as_str);
    let is_of = |methods: &[&str]| methods.contains(&method);
    let mut misplaced = Vec::new();
    if rule.tools.is_some() && !is_of(&[CALL]) {
        misplaced.push(("tool", CALL));
    }
    if !rule.arguments.is_empty() && !is_of(&[CALL]) {
        misplaced.push(("arguments", CALL));
    }
    if rule.name.is_some() && !is_of(&["prompts/get"]) {
        misplaced.push(("name", "prompts/get"));
    }
    let of_uri = [
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "subscriptions/listen",
    ];
    if rule.uri.is_some() && !is_of(&of_uri) {
        misplaced.push((
            "uri",
            "resources/read, resources/subscribe, resources/unsubscribe or subscriptions/listen",
        ));
    }
    misplaced
}

/// Reads the tools of a rule in each of their spellings.
fn tools(reader: &mut Reader, fields: &mut Fields<'_>) -> Option<Vec<NameGlob>> {
    let tool = fields.take("tool");
    let params = fields.take("params");
    match (tool, params) {
        (Some(at), Some(_)) => reader.check(&at, Err(ViolationKind::ToolTwice)),
        (Some(at), None) => matcher(reader, &at),
        (None, Some(at)) => {
            let name = reader.mapping(&at, &["name"])?.take("name");
            let Some(name) = name else {
                reader.reject(&at, ViolationKind::Missing("name"));
                return None;
            };
            matcher(reader, &name)
        }
        (None, None) => None,
    }
}

/// Reads a glob, `{glob: …}` or `{any: [glob, …]}`.
fn matcher(reader: &mut Reader, at: &At<'_>) -> Option<Vec<NameGlob>> {
    if !matches!(at.node.value(), Value::Mapping(_)) {
        return reader.text(at, NameGlob::parse).map(|glob| vec![glob]);
    }
    let mut fields = reader.mapping(at, &["glob", "any"])?;
    match (fields.take("glob"), fields.take("any")) {
        (Some(glob), None) => reader.text(&glob, NameGlob::parse).map(|glob| vec![glob]),
        (None, Some(any)) => globs(reader, &any),
        (Some(_), Some(_)) => reader.check(at, Err(ViolationKind::MatcherGlobAndAny)),
        (None, None) => reader.check(at, Err(ViolationKind::MatcherShape)),
    }
}

/// Parses a glob over URIs, which have only visible characters of ASCII.
fn uri_glob(text: &str) -> Result<Glob, ViolationKind> {
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ViolationKind::UriGlob(text.to_owned()));
    }
    Glob::parse(text)
}

#[cfg(test)]
mod tests {
    use crate::yaml;

    /// Returns the violations of a policy with one endpoint of these `keys`.
    fn violations(keys: &str) -> String {
        let policy = format!(
            "network_policies: {{m: {{endpoints: [{{port: 443, enforcement: enforce, {keys}}}], binaries: \
             [{{path: /x}}]}}}}"
        );
        match yaml::policy(&policy) {
            Ok(_) => String::new(),
            Err(violations) => violations.to_string(),
        }
    }

    #[test]
    fn rules_for_messages_are_checked_when_they_are_read() {
        let mcp = |rest: &str| violations(&format!("host: m.test, protocol: mcp, {rest}"));
        for valid in [
            "rules: [{allow: {method: initialize}}, {allow: {method: vendor/own}}]",
            "rules: [{allow: {method: \"tools/*\"}}], deny_rules: [{method: tools/call, tool: x}]",
            "rules: [{allow: {method: tools/call, tool: {glob: a}}}, {allow: {method: tools/call, params: {name: {any: [b]}}}}]",
            "mcp: {allow_all_known_mcp_methods: true}",
            "mcp: {allow_all_known_mcp_methods: true}, rules: [{allow: {}}, {allow: {method: ping}}]",
            "mcp: {strict_tool_names: false}, rules: [{allow: {method: tools/call, tool: \"a b\"}}]",
            "path: /mcp, rules: [{allow: {method: subscriptions/listen, uri: \"file:///**\"}}]",
        ] {
            assert_eq!(mcp(valid), "", "{valid}");
        }
        for (invalid, message) in [
            ("enforcement_: x", "unknown key"),
            ("access: full", "`access` cannot stand beside this protocol"),
            ("", "the protocol needs `rules`"),
            ("rules: []", "an empty list would refuse every request"),
            (
                "upgrades: [tcp], rules: [{allow: {method: ping}}]",
                "`upgrades` cannot stand",
            ),
            (
                "tls: skip, rules: [{allow: {method: ping}}]",
                "`tls: skip` hides",
            ),
            (
                "rules: [{allow: {method: \"*\"}}]",
                "`*`: a method of MCP is one method",
            ),
            (
                "rules: [{allow: {method: \"resources/*\"}}]",
                "`resources/*`: a method of MCP",
            ),
            ("rules: [{allow: {method: \"\"}}]", "is not a method"),
            (
                "rules: [{allow: {tool: a}}]",
                "`method` is missing; only with",
            ),
            (
                "rules: [{allow: {method: ping, path: /}}]",
                "unknown key `path`",
            ),
            (
                "rules: [{allow: {method: tools/call, tool: a, params: {name: b}}}]",
                "two spellings of one thing",
            ),
            (
                "rules: [{allow: {method: tools/call, params: {name: a, x: b}}}]",
                "unknown key `x`",
            ),
            (
                "rules: [{allow: {method: tools/call, params: {}}}]",
                "`name` is missing",
            ),
            (
                "rules: [{allow: {method: tools/call, tool: {any: []}}}]",
                "`any` needs at least one glob",
            ),
            (
                "rules: [{allow: {method: tools/list, tool: a}}]",
                "`tool` stands only in a rule for tools/call",
            ),
            (
                "rules: [{allow: {method: \"tools/*\", tool: a}}]",
                "`tool` stands only in a rule for tools/call",
            ),
            (
                "rules: [{allow: {method: ping, arguments: {a: {equals: 1}}}}]",
                "`arguments` stands only",
            ),
            (
                "rules: [{allow: {method: resources/read, uri: \"file:///My Files/**\"}}]",
                "write its escapes",
            ),
            (
                "rules: [{allow: {method: prompts/list, name: a}}]",
                "`name` stands only in a rule for prompts/get",
            ),
            (
                "rules: [{allow: {method: resources/list, uri: \"a:b\"}}]",
                "`uri` stands only",
            ),
            (
                "mcp: {strict_tool_names: false}, rules: [{allow: {method: tools/call, tool: \"a*\"}}]",
                "a pattern of tools needs",
            ),
            (
                "rules: [{allow: {method: tools/call, tool: a}}, {allow: {method: tools/call}}]",
                "has no effect",
            ),
            (
                "rules: [{allow: {method: tools/call, tool: a}}, {allow: {method: \"tools/*\"}}]",
                "has no effect",
            ),
            (
                "rules: [{allow: {method: tools/call, tool: a}}], deny_rules: [{method: tools/call}]",
                "has no effect",
            ),
            (
                "rules: [{allow: {method: ping}}], mcp: {versions: []}",
                "leave `versions` out or add one",
            ),
            (
                "rules: [{allow: {method: ping}}], mcp: {versions: [\"2024-11-05\"]}",
                "is not one of 2025-03-26",
            ),
            (
                "rules: [{allow: {method: ping}}], mcp: {max_body_bytes: 1023}",
                "from 1024 to 16777216",
            ),
            (
                "rules: [{allow: {method: ping}}], mcp: {max_body_bytes: 16777217}",
                "from 1024 to 16777216",
            ),
            (
                "rules: [{allow: {method: ping}}], json_rpc: {max_body_bytes: 2048}",
                "`json_rpc` belongs to `protocol: json-rpc`",
            ),
        ] {
            let found = mcp(invalid);
            assert!(found.contains(message), "{invalid}: {found}");
        }
        let without_host = violations(
            "allowed_ips: [10.0.0.0/8], protocol: mcp, rules: [{allow: {method: ping}}]",
        );
        assert!(without_host.contains("needs a `host`"), "{without_host}");
        let json_rpc =
            |rest: &str| violations(&format!("host: m.test, protocol: json-rpc, {rest}"));
        assert_eq!(
            json_rpc("rules: [{allow: {method: \"*\"}}], deny_rules: [{method: sum}]"),
            ""
        );
        for (invalid, message) in [
            ("rules: [{allow: {method: \"a*\"}}]", "`a*` is not a method"),
            ("rules: [{allow: {}}]", "`method` is missing"),
            (
                "rules: [{allow: {method: tools/call, tool: a}}]",
                "unknown key `tool`",
            ),
            (
                "rules: [{allow: {method: a}}], mcp: {versions: [\"2025-11-25\"]}",
                "`mcp` belongs to `protocol: mcp`",
            ),
            ("json_rpc: {versions: []}", "unknown key `versions`"),
        ] {
            let found = json_rpc(invalid);
            assert!(found.contains(message), "{invalid}: {found}");
        }
        for protocol in ["", "protocol: rest, access: full, "] {
            let found = violations(&format!(
                "host: m.test, {protocol}mcp: {{max_body_bytes: 2048}}"
            ));
            assert!(found.contains("`mcp` belongs to"), "{found}");
        }
    }

    #[test]
    fn a_rule_that_no_client_or_server_would_match_has_a_warning() {
        for (rule, expected) in [
            ("method: tools/cal", "knows no method `tools/cal` of MCP"),
            ("method: \"tools/x*\"", "knows no method `tools/x*` of MCP"),
            (
                "method: tools/call, tool: \"get_.*\"",
                "looks like a regular expression",
            ),
            (
                "method: tools/call, tool: \"^get\"",
                "looks like a regular expression",
            ),
            (
                "method: tools/call, tool: mcp__github__get_issue",
                "as an agent calls it",
            ),
            (
                "method: tools/call, tool: \"mcp__github__*\"",
                "as an agent calls it",
            ),
            ("method: \"tools/*\"", ""),
            (
                "method: tools/call, tool: {any: [\"a.*\", \"*.*\", \"a_*.*\", \"{a,b}.*\", \"[^_]*\"]}",
                "",
            ),
            ("method: tools/call, tool: {any: [a, \"b_{c,d}\"]}", ""),
        ] {
            let text = format!(
                "network_policies: {{n: {{endpoints: [{{host: m.test, port: 1, protocol: mcp, enforcement: enforce, \
                 rules: [{{allow: {{{rule}}}}}]}}], binaries: [{{path: /x}}]}}}}"
            );
            let (_, warnings) = yaml::policy(&text).unwrap();
            let found: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), usize::from(!expected.is_empty()), "{found:?}");
            assert!(found.concat().contains(expected), "{found:?}");
        }
    }

    #[test]
    fn rules_for_messages_without_their_protocol_are_told_so_and_nothing_about_each() {
        let rules = "rules: [{allow: {method: initialize}}, {allow: {method: tools/call, tool: a}}], deny_rules: \
                     [{method: tools/call, tool: b}]";
        let found = violations(&format!(
            "host: m.test, mcp: {{filter_lists: false}}, {rules}"
        ));
        assert!(!found.contains("rules"), "{found}");
        assert!(
            found.contains("`mcp` belongs to `protocol: mcp`"),
            "{found}"
        );
        let bare = violations(&format!("host: m.test, {rules}"));
        assert!(
            bare.contains("rules for tools need `protocol: mcp`"),
            "{bare}"
        );
    }

    #[test]
    fn endpoints_that_judge_the_same_requests_in_different_protocols_are_refused() {
        let both = |one: &str, other: &str| {
            let endpoint = "host: m.test, port: 443, enforcement: enforce";
            let policy = format!(
                "network_policies: {{m: {{endpoints: [{{{endpoint}, {one}}}, {{{endpoint}, {other}}}], binaries: [{{path: \
                 /x}}]}}}}"
            );
            yaml::policy(&policy)
                .err()
                .map(|violations| violations.to_string())
        };
        let mcp = "protocol: mcp, rules: [{allow: {method: ping}}]";
        let rest = "protocol: rest, access: full";
        let at = |path: &str, keys: &str| format!("path: {path}, {keys}");
        for (one, other) in [(mcp, rest), (&at("/a", rest), &at("/a", mcp))] {
            let found = both(one, other).unwrap();
            assert!(found.contains("and another `protocol`"), "{found}");
        }
        assert_eq!(both(&at("/a", mcp), rest), None);
        assert_eq!(both(&at("/a", mcp), &at("/b", rest)), None);
        assert_eq!(both(mcp, mcp), None);
    }

    #[test]
    fn conditions_on_arguments_are_checked_when_they_are_read() {
        let of = |condition: &str| {
            violations(&format!(
                "host: m.test, protocol: mcp, rules: [{{allow: {{method: tools/call, tool: a, arguments: \
                 {condition}}}}}]"
            ))
        };
        for valid in [
            "{a: {}}",
            "{a: {equals: null}, \"b[*].c\": {in: [1, 2.5, true, x], optional: true}}",
            "{a: {range: [null, -3]}, b: {max_length: 0, glob: \"*\"}, c: {absent: true}}",
        ] {
            assert_eq!(of(valid), "", "{valid}");
        }
        for (invalid, message) in [
            ("[a]", "expected a map"),
            ("{a: x}", "expected a map"),
            ("{a: {is: x}}", "unknown key `is`"),
            ("{\"a[0]\": {}}", "`a[0]` is not a place in arguments"),
            ("{a: {equals: [1]}}", "a condition compares texts"),
            ("{a: {equals: 0.1234567890123456}}", "more than 15 digits"),
            ("{a: {equals: .inf}}", "non-finite"),
            ("{a: {range: [1]}}", "expected `[LOW, HIGH]`"),
            ("{a: {range: [2, 1]}}", "expected `[LOW, HIGH]`"),
            ("{a: {range: [null, null]}}", "expected `[LOW, HIGH]`"),
            ("{a: {range: [x, 1]}}", "a condition compares texts"),
            ("{a: {max_length: -1}}", "expected a whole number"),
            ("{a: {any: []}}", "`any` needs at least one glob"),
            ("{a: {in: []}}", "`in` needs at least one value"),
            (
                "{a: {absent: true, optional: true}}",
                "what is `absent` has no other conditions",
            ),
            (
                "{a: {}}, other_arguments: allow",
                "`other_arguments` is `deny` or left out",
            ),
        ] {
            let found = of(invalid);
            assert!(found.contains(message), "{invalid}: {found}");
        }
        let denied = violations(
            "host: m.test, protocol: mcp, rules: [{allow: {method: ping}}], deny_rules: [{method: tools/call, \
             tool: a, other_arguments: deny}]",
        );
        assert!(denied.contains("stands in allow rules"), "{denied}");
    }
}
