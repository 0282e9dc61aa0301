//! The lines of policy that would permit a wish, from the narrowest to the widest.

use std::collections::BTreeSet;

use openshell_events::text::visible;
use openshell_policy::comparison::addition;
use openshell_policy::network::binary::Binary;
use openshell_policy::network::endpoint::Endpoint;
use openshell_policy::network::rpc::Revision;
use openshell_policy::network::rule::Glob;
use openshell_policy::network::{NetworkPolicy, PolicyName};
use openshell_policy::yaml;
use serde_json::{Map, Value, json};

use crate::approvals::flag::flags;
use crate::approvals::wish::{Wish, WishedMessage, WishedRequest};
use crate::decide::line::Line;
use crate::decide::message::judging;
use crate::decide::snapshot::Snapshot;
use crate::ground::target::Target;

/// Ports of protocols that are not HTTP.
const OTHER_PORTS: &str = include_str!("../../../../data/names/ports.txt");

/// The most lines of one question.
const LINES: usize = 8;

/// The most characters of a line.
const LINE_BYTES: usize = 1_000;

/// The most characters of the host in the key of a line.
const HOST_BYTES: usize = 100;

/// A line that is proposed.
#[derive(Clone, Debug)]
pub(super) struct Proposed {
    /// The line.
    pub(super) line: Line,
    /// The line as text, which reads back as the same line.
    pub(super) yaml: String,
    /// The same without its key.
    body: String,
    /// What it permits, and what it leaves open.
    pub(super) permits: Vec<String>,
    /// The flags that permit the same in a later run, if its policy is made of flags.
    pub(super) flags: Option<String>,
    /// True if bytes pass that nobody judges.
    pub(super) is_opaque: bool,
}

impl Proposed {
    /// Returns the same line with another key.
    pub(super) fn named(&self, name: &PolicyName) -> Self {
        Self {
            yaml: format!("{}: {}", name.as_str(), self.body),
            line: Line {
                name: name.clone(),
                policy: self.line.policy.clone(),
            },
            ..self.clone()
        }
    }
}

/// The rules of a proposed endpoint.
enum Rules {
    /// Exactly these.
    Only(Value),
    /// Those for requests that read.
    Reading,
    /// Those of the endpoint that it is made of.
    Same,
    /// Bytes that nobody judges.
    Tcp,
}

/// Returns the lines that permit `wish` beside the policy of `snapshot`, at most [`LINES`]; none if no
/// line would, or if a line would have to be cut.
pub(super) fn propose(wish: &Wish, snapshot: &Snapshot) -> Vec<Proposed> {
    let program = &wish.caller.program.executable;
    if !program.starts_with('/') || program.contains('*') {
        return Vec::new();
    }
    let Some(name) = free_name(wish, snapshot) else {
        return Vec::new();
    };
    let Some(forms) = forms(wish, snapshot) else {
        return Vec::new();
    };
    let mut known = BTreeSet::new();
    let mut proposed: Vec<Proposed> = Vec::new();
    for endpoint in forms {
        let line = proposal(wish, snapshot, &name, endpoint);
        // Without its narrowest line nothing is asked: a wider one would be the first answer.
        let Some(line) = line else {
            if proposed.is_empty() {
                return proposed;
            }
            continue;
        };
        if proposed.len() < LINES && known.insert(line.yaml.clone()) {
            proposed.push(line);
        }
    }
    proposed
}

/// A policy together with a line.
#[derive(Debug)]
pub(super) struct Joined {
    /// The next generation.
    pub(super) together: Snapshot,
    /// What the line permits, and what it leaves open.
    pub(super) permits: Vec<String>,
}

/// Adds the line `line` to the policy of `snapshot`; `None` if it does not fit, if it does not permit
/// `wish`, or if it takes something away.
pub(super) fn join(wish: &Wish, snapshot: &Snapshot, line: &Line) -> Option<Joined> {
    let lines = std::slice::from_ref(line);
    let together = snapshot.with_lines(snapshot.generation() + 1, lines).ok()?;
    wish.judge(&together).ok()?;
    let change = addition(snapshot.policy(), together.policy(), &line.name);
    if !change.takes_away.is_empty() {
        return None;
    }
    let permits = in_words(change.permits, left_open(wish, line));
    Some(Joined { together, permits })
}

/// Returns what a line `permits`, and what it leaves `open`, as it is shown.
pub(super) fn in_words(permits: Vec<String>, open: Vec<String>) -> Vec<String> {
    let words = permits.into_iter().chain(open);
    words.map(|words| visible(&words).into_owned()).collect()
}

/// Returns what `line` leaves open.
fn left_open(wish: &Wish, line: &Line) -> Vec<String> {
    let endpoint = line.policy.endpoints.first();
    let mut open = Vec::new();
    let l7 = endpoint.and_then(judging);
    let rpc = wish
        .request
        .as_ref()
        .and_then(|request| request.rpc.as_ref());
    match (&wish.request, l7) {
        (_, None) => open.push("bytes that nobody judges, in both directions".to_owned()),
        (Some(_), Some(_)) => open.push(match rpc {
            Some(message) if message.arguments.is_some() => {
                "with any arguments, query and header".to_owned()
            }
            Some(_) => "with any parameters, query and header".to_owned(),
            None => ANY_BODY.to_owned(),
        }),
        (None, Some(_)) => open.push("with any path, query, header and body".to_owned()),
    }
    if l7.is_some() {
        let reads = wish.method().is_none_or(is_reading);
        let gets = wish.method().is_none_or(|method| method == "GET");
        open.extend(besides(rpc.is_some(), reads, gets));
    }
    open.extend(children(line));
    open
}

/// What every line for requests leaves open.
pub(super) const ANY_BODY: &str = "with any query, header and body";

/// Returns what a line permits besides what its rules name: one for messages if it `is_rpc`, one that
/// `reads`, one with the method GET if it `gets`.
pub(super) fn besides(is_rpc: bool, reads: bool, gets: bool) -> impl Iterator<Item = String> {
    let streams = is_rpc.then_some("GET of event streams and OPTIONS, at any path of the endpoint");
    let sockets = (gets && !is_rpc).then_some("a WebSocket, whose bytes nobody judges");
    let leaks = (reads || is_rpc).then_some("data can leave in the path and the query");
    let open = streams.into_iter().chain(sockets).chain(leaks);
    open.map(str::to_owned)
}

/// Returns true if `method` only reads.
#[must_use]
pub fn is_reading(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS")
}

/// Returns for each program whose children `line` covers that it does.
pub(super) fn children(line: &Line) -> impl Iterator<Item = String> {
    let loose = line.policy.binaries.iter().filter(|binary| !binary.exact);
    loose.map(|binary| format!("also for everything that {} starts", binary.path))
}

/// Returns keys for the lines about `target`, of which the first that is free is taken.
pub(super) fn names(target: &Target) -> impl Iterator<Item = PolicyName> {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let host = target.host.to_string();
    let host: String = host.chars().take(HOST_BYTES).collect();
    let host = host.replace(|c: char| !is_kept(c), "_");
    let name = format!("ask_{host}_{}", target.port);
    let names = (1..).map(move |number| {
        if number == 1 {
            name.clone()
        } else {
            format!("{name}_{number}")
        }
    });
    names.map_while(|name| PolicyName::parse(&name).ok())
}

/// Returns a key for the line that no policy has.
fn free_name(wish: &Wish, snapshot: &Snapshot) -> Option<PolicyName> {
    let network = snapshot.policy().network();
    names(&wish.target).find(|name| !network.contains_key(name))
}

/// Returns the endpoints of the lines, as values; `None` if no line is right for the wish.
fn forms(wish: &Wish, snapshot: &Snapshot) -> Option<Vec<Map<String, Value>>> {
    let new = || endpoint_for(wish);
    if !wish.addresses.is_empty() {
        let permitting = snapshot.permitting(&wish.caller.program, &wish.target);
        let known = permitting.first()?;
        let mut endpoint = made_of(known, wish, Rules::Same)?;
        endpoint.insert("allowed_ips".to_owned(), json!(wish.addresses));
        return Some(vec![endpoint]);
    }
    let Some(request) = &wish.request else {
        let tcp = with_rules(new(), Rules::Tcp);
        if is_of_other_protocol(wish.target.port) {
            return Some(vec![tcp]);
        }
        return Some(vec![with_rules(new(), Rules::Reading), tcp]);
    };
    if let Some(message) = &request.rpc {
        let endpoint = endpoint_of(wish, request, snapshot)?;
        let rule = message_rule(message);
        return Some(vec![made_of(&endpoint, wish, Rules::Only(rule))?]);
    }
    let method = request.message.method.as_str();
    if method == "*" {
        // In a rule it stands for every method.
        return None;
    }
    let permitting = endpoint_of(wish, request, snapshot);
    let mut forms = Vec::new();
    for path in paths(&request.path) {
        let rules = json!([{"allow": {"method": method, "path": path}}]);
        forms.push(match &permitting {
            Some(endpoint) => made_of(endpoint, wish, Rules::Only(rules))?,
            None => with_rules(new(), Rules::Only(rules)),
        });
    }
    if is_reading(method) {
        forms.push(match &permitting {
            Some(endpoint) => made_of(endpoint, wish, Rules::Reading)?,
            None => with_rules(new(), Rules::Reading),
        });
    }
    Some(forms)
}

/// Returns the endpoint that refused `request`; `None` if none permits the connection.
fn endpoint_of(wish: &Wish, request: &WishedRequest, snapshot: &Snapshot) -> Option<Endpoint> {
    let permitting = snapshot.permitting(&wish.caller.program, &wish.target);
    let is_for = |path: &Glob| path.compiled().is_match(&request.path);
    let alike = permitting.into_iter().filter(|endpoint| {
        let l7 = endpoint.l7();
        let is_alike = l7.is_some_and(|l7| l7.rpc.is_some() == request.rpc.is_some());
        is_alike && endpoint.path().is_none_or(is_for)
    });
    alike.max_by_key(|endpoint| endpoint.path().map(Glob::specificity))
}

/// Returns the rule for exactly `message`.
fn message_rule(message: &WishedMessage) -> Value {
    let mut rule = Map::new();
    rule.insert("method".to_owned(), message.method.as_str().into());
    if let Some((key, value)) = &message.about {
        rule.insert((*key).to_owned(), Glob::literal(value).into());
    }
    json!([{"allow": rule}])
}

/// Returns globs for `path`, from itself to the widest that is proposed.
fn paths(path: &str) -> Vec<String> {
    let literal = Glob::literal(path);
    let mut paths = vec![literal.clone()];
    let segments: Vec<_> = literal.split('/').skip(1).collect();
    if let [first, rest @ ..] = segments.as_slice()
        && let Some((_, before)) = rest.split_last()
    {
        let before_last: String = before.iter().map(|segment| format!("/{segment}")).collect();
        paths.push(format!("/{first}{before_last}/*"));
        if let Some((_, before)) = before.split_last() {
            let before: String = before.iter().map(|segment| format!("/{segment}")).collect();
            paths.push(format!("/{first}{before}/*/*"));
        }
        paths.push(format!("/{first}/**"));
    } else if path.len() > 1 {
        paths.push("/*".to_owned());
    }
    paths
}

/// Returns the host and port of an endpoint for `wish`.
fn endpoint_for(wish: &Wish) -> Map<String, Value> {
    let mut endpoint = Map::new();
    endpoint.insert("host".to_owned(), wish.target.host.to_string().into());
    endpoint.insert("port".to_owned(), wish.target.port.into());
    endpoint
}

/// Returns `endpoint` for HTTP with `rules`.
fn with_rules(mut endpoint: Map<String, Value>, rules: Rules) -> Map<String, Value> {
    match rules {
        Rules::Same => {}
        Rules::Tcp => {
            endpoint.insert("protocol".to_owned(), "tcp".into());
        }
        Rules::Only(rules) => {
            make_http(&mut endpoint);
            endpoint.insert("rules".to_owned(), rules);
        }
        Rules::Reading => {
            make_http(&mut endpoint);
            endpoint.insert("access".to_owned(), "read-only".into());
        }
    }
    endpoint
}

/// Makes `endpoint` one for HTTP whose rules are still to be set.
fn make_http(endpoint: &mut Map<String, Value>) {
    endpoint.entry("protocol").or_insert_with(|| "rest".into());
    endpoint.insert("enforcement".to_owned(), "enforce".into());
    endpoint.remove("deny_rules");
    endpoint.remove("rules");
}

/// Returns an endpoint with the settings of `known`, but for the host and port of `wish` and with
/// `rules`.
fn made_of(known: &Endpoint, wish: &Wish, rules: Rules) -> Option<Map<String, Value>> {
    let Ok(Value::Object(mut endpoint)) = serde_json::to_value(known) else {
        return None;
    };
    endpoint.remove("ports");
    if let Some(Value::Object(settings)) = endpoint.get_mut("mcp") {
        // It would permit more than the rule.
        settings.remove("allow_all_known_mcp_methods");
        let is_default = |key: &str, value: &Value| match key {
            "filter_lists" | "strict_tool_names" => value == &Value::Bool(true),
            "versions" => value.as_array().map(Vec::len) == Some(Revision::ALL.len()),
            _ => false,
        };
        settings.retain(|key, value| !is_default(key, value));
    }
    // It belongs to endpoints without a host.
    endpoint.remove("resolve");
    endpoint.extend(endpoint_for(wish));
    Some(with_rules(endpoint, rules))
}

/// Returns true if another protocol than HTTP belongs to `port`.
fn is_of_other_protocol(port: u16) -> bool {
    let port = port.to_string();
    OTHER_PORTS
        .lines()
        .filter_map(|line| line.split_once(' '))
        .any(|(known, _)| known == port)
}

/// Returns the line with `endpoint` for the program of `wish`; `None` if it cannot be written, does
/// not permit the wish, or takes something away.
fn proposal(
    wish: &Wish,
    snapshot: &Snapshot,
    name: &PolicyName,
    endpoint: Map<String, Value>,
) -> Option<Proposed> {
    let program = &wish.caller.program;
    let is_exact = !program.is_modified;
    let mut binary = Map::new();
    binary.insert("path".to_owned(), program.executable.as_str().into());
    if is_exact {
        binary.insert("exact".to_owned(), true.into());
    }
    let values = json!({"endpoints": [endpoint], "binaries": [binary]});
    let written = written(name, &values)?;
    if !is_for(&written.line.policy, wish, is_exact) {
        return None;
    }
    let Joined { permits, .. } = join(wish, snapshot, &written.line)?;
    let endpoint = written.line.policy.endpoints.first()?;
    let flags = flags(wish, endpoint, snapshot.policy().form());
    Some(Proposed {
        permits,
        flags,
        ..written
    })
}

/// Writes the line of `values` with the key `name`, without what it permits; `None` if it cannot be
/// written as it is meant, or if it is too long.
pub(super) fn written(name: &PolicyName, values: &Value) -> Option<Proposed> {
    let body = flow(values);
    let yaml = format!("{}: {body}", name.as_str());
    let policy = read(name, &yaml)?;
    // What is shown must be what is meant: read from the values, it is the same.
    let document = json!({"network_policies": {name.as_str(): values}});
    let (meant, _) = yaml::policy(&document.to_string()).ok()?;
    if meant.network().get(name) != Some(&policy) || yaml.len() > LINE_BYTES {
        return None;
    }
    let is_opaque = policy
        .endpoints
        .iter()
        .any(|endpoint| judging(endpoint).is_none());
    let line = Line {
        name: name.clone(),
        policy,
    };
    Some(Proposed {
        line,
        yaml,
        body,
        permits: Vec::new(),
        flags: None,
        is_opaque,
    })
}

/// Reads the line `yaml`, whose key is `name`.
fn read(name: &PolicyName, yaml: &str) -> Option<NetworkPolicy> {
    let (policy, _) = yaml::policy(&format!("network_policies: {{{yaml}}}")).ok()?;
    let mut policies = policy.network().iter();
    let (read, policy) = policies.next()?;
    (read == name && policies.next().is_none()).then(|| policy.clone())
}

/// Returns true if `policy` is for exactly the program, host and port of `wish`.
fn is_for(policy: &NetworkPolicy, wish: &Wish, is_exact: bool) -> bool {
    let ([endpoint], [binary]) = (policy.endpoints.as_slice(), policy.binaries.as_slice()) else {
        return false;
    };
    let host = endpoint.host().and_then(|host| host.host());
    let ports: Vec<_> = endpoint.ports().iter().map(|port| port.get()).collect();
    let Binary { path, exact, .. } = binary;
    host.as_ref() == Some(&wish.target.host)
        && ports == [wish.target.port]
        && path.to_string() == wish.caller.program.executable
        && *exact == is_exact
}

/// The order in which the keys of a line are written.
const ORDER: [&str; 19] = [
    "endpoints",
    "host",
    "port",
    "path",
    "exact",
    "tls",
    "allowed_ips",
    "protocol",
    "enforcement",
    "access",
    "mcp",
    "json_rpc",
    "rules",
    "allow",
    "method",
    "tool",
    "uri",
    "name",
    "binaries",
];

/// Writes `value` in YAML's flow style.
fn flow(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => word(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let place = |key: &str| ORDER.iter().position(|known| *known == key);
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| (place(key).unwrap_or(ORDER.len()), *key));
            // In a rule the method comes before the path.
            if let Some(method) = entries.iter().position(|(key, _)| *key == "method") {
                entries[..=method].rotate_right(1);
            }
            let entries: Vec<_> = entries
                .into_iter()
                .map(|(key, value)| format!("{}: {}", word(key), flow(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Returns true if readers of YAML take `text` for something else than a text.
#[must_use]
pub fn is_constant(text: &str) -> bool {
    let constants = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    constants.contains(&text.to_ascii_lowercase().as_str())
}

/// Writes `text`, with quotes if it could be read as something else.
fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let begins = |byte: u8| byte.is_ascii_alphabetic() || byte == b'/';
    if text.bytes().all(is_plain) && text.bytes().next().is_some_and(begins) && !is_constant(text) {
        return text.to_owned();
    }
    // JSON's form of a string is one of YAML's, and in ASCII it hides nothing.
    let quoted = Value::from(text).to_string();
    let mut ascii = String::new();
    for c in quoted.chars() {
        if c.is_ascii() && c != '\u{7f}' {
            ascii.push(c);
        } else {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::{flow, paths, word};
    use serde_json::json;

    #[test]
    fn paths_become_wider_from_their_end() {
        assert_eq!(paths("/"), ["/"]);
        assert_eq!(paths("/x"), ["/x", "/*"]);
        assert_eq!(paths("/v1/items"), ["/v1/items", "/v1/*", "/v1/**"]);
        assert_eq!(
            paths("/a/b/c/d*"),
            ["/a/b/c/d\\*", "/a/b/c/*", "/a/b/*/*", "/a/**"]
        );
    }

    #[test]
    fn words_that_could_be_something_else_are_quoted() {
        for (text, written) in [
            ("/usr/bin/curl", "/usr/bin/curl"),
            ("GET", "GET"),
            ("on", "\"on\""),
            ("1.5", "\"1.5\""),
            ("", "\"\""),
            ("/a: {b}", "\"/a: {b}\""),
            ("/a\n\u{202e}\u{7f}", "\"/a\\n\\u202e\\u007f\""),
            ("/\u{1f600}", "\"/\\ud83d\\ude00\""),
        ] {
            assert_eq!(word(text), written);
        }
        assert_eq!(
            flow(&json!({"allow": {"path": "/a", "method": "GET"}})),
            "{allow: {method: GET, path: /a}}"
        );
    }
}
