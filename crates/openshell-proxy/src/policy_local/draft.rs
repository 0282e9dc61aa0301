//! Reads what programs propose. A key or a value that is not described here is an error, because a
//! person should not have to find it.

use std::fmt::Display;

use openshell_policy::network::PolicyName;
use openshell_policy::network::host::{Host, HostPattern};
use openshell_policy::proposal::is_one_program;
use openshell_policy::yaml;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::approvals::line::{is_constant, is_reading};
use crate::approvals::proposal::{Fate, Proposal, ProposedEndpoint, ProposedProgram};
use crate::approvals::site::{has_suffixes_below, is_registered};
use crate::ground::peer::Caller;
use crate::policy_local::denials::RecentDenials;
use crate::wire::json::Json;

/// The most lines that are proposed at once.
const OPERATIONS: usize = 4;

/// The most endpoints, and the most programs, of a line.
const PARTS: usize = 4;

/// The most rules of an endpoint.
const RULES: usize = 16;

/// The most characters of what a program says about a line.
const INTENT: usize = 200;

/// Where a draft is wrong, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) place: String,
    pub(super) problem: String,
}

type Read<T> = Result<T, Fault>;

/// A value, and its place in a draft.
#[derive(Clone, Debug)]
struct At<'v> {
    place: String,
    value: &'v Value,
}

impl<'v> At<'v> {
    fn fault<T>(&self, problem: impl Display) -> Read<T> {
        Err(Fault {
            place: self.place.clone(),
            problem: problem.to_string(),
        })
    }

    /// Returns the entries of an object that has no keys but `known`.
    fn object(&self, known: &[&str]) -> Read<&'v Map<String, Value>> {
        let Some(object) = self.value.as_object() else {
            return self.fault("it is no object");
        };
        let mut unknown = object.keys().filter(|key| !known.contains(&key.as_str()));
        match unknown.next() {
            Some(key) => self.fault(format_args!(
                "the key {key:?} has no place here; there are {}",
                known.join(", ")
            )),
            None => Ok(object),
        }
    }

    /// Returns the value of `key`, if the object has it.
    fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key)?;
        Some(At {
            place: join(&self.place, key),
            value,
        })
    }

    fn must(&self, key: &str) -> Read<Self> {
        match self.get(key) {
            Some(at) => Ok(at),
            None => self.fault(format_args!("it needs the key {key:?}")),
        }
    }

    fn text(&self) -> Read<&'v str> {
        match self.value.as_str() {
            Some(text) => Ok(text),
            None => self.fault("it is no string"),
        }
    }

    /// Returns the items of an array of 1 to `most`.
    fn items(&self, most: usize) -> Read<Vec<Self>> {
        let items = self.value.as_array().map(Vec::as_slice).unwrap_or_default();
        if items.is_empty() || items.len() > most {
            return self.fault(format_args!("it is an array of 1 to {most} items"));
        }
        let at = |(index, value)| At {
            place: format!("{}[{index}]", self.place),
            value,
        };
        Ok(items.iter().enumerate().map(at).collect())
    }
}

fn join(place: &str, key: &str) -> String {
    if place.is_empty() {
        key.to_owned()
    } else {
        format!("{place}.{key}")
    }
}

/// Reads the proposals in `body`, which `caller` sent.
///
/// # Errors
/// Fails with the first fault.
pub(super) fn read(body: &[u8], caller: &Caller, denials: &RecentDenials) -> Read<Vec<Proposal>> {
    let value = Json::read(body).map_err(|error| error.to_string());
    let value = value.and_then(|json| {
        serde_json::from_str::<Value>(json.as_str()).map_err(|error| error.to_string())
    });
    let value = value.map_err(|error| Fault {
        place: "the body".to_owned(),
        problem: format!("it is no JSON text: {error}"),
    })?;
    let root = At {
        place: String::new(),
        value: &value,
    };
    root.object(&["intent_summary", "operations"])?;
    let said = root.must("intent_summary")?;
    let intent = said.text()?;
    if intent.chars().count() > INTENT {
        return said.fault(format_args!(
            "it has more than the {INTENT} characters that a person is shown"
        ));
    }
    let mut proposals = Vec::new();
    for operation in root.must("operations")?.items(OPERATIONS)? {
        operation.object(&["addRule"])?;
        let rule = operation.must("addRule")?;
        rule.object(&["ruleName", "rule"])?;
        proposals.push(proposal(&rule, intent, caller, denials)?);
    }
    Ok(proposals)
}

fn proposal(
    add: &At<'_>,
    intent: &str,
    caller: &Caller,
    denials: &RecentDenials,
) -> Read<Proposal> {
    let named = add.must("ruleName")?;
    let text = named.text()?;
    if !text.starts_with(|first: char| first.is_ascii_alphabetic()) || is_constant(text) {
        return named.fault("it begins with a letter, and is no constant of YAML");
    }
    let name = PolicyName::parse(text).or_else(|error| named.fault(error))?;
    let rule = add.must("rule")?;
    rule.object(&["name", "endpoints", "binaries"])?;
    if let Some(name) = rule.get("name") {
        name.text()?;
    }
    let mut endpoints = Vec::new();
    for at in rule.must("endpoints")?.items(PARTS)? {
        endpoints.push(endpoint(&at)?);
    }
    let mut programs = Vec::new();
    for at in rule.must("binaries")?.items(PARTS)? {
        programs.push(program(&at, &endpoints, caller, denials)?);
    }
    check(&rule, &endpoints)?;
    Ok(Proposal {
        caller: caller.clone(),
        name,
        endpoints,
        programs,
        intent: intent.to_owned(),
        fate: watch::Sender::new(Fate::Pending),
        details: Mutex::default(),
    })
}

/// The keys of an endpoint.
const ENDPOINT: [&str; 8] = [
    "host",
    "port",
    "ports",
    "path",
    "protocol",
    "enforcement",
    "rules",
    "access",
];

/// The protocols whose requests are judged.
const PROTOCOLS: [&str; 3] = ["rest", "json-rpc", "mcp"];

fn endpoint(at: &At<'_>) -> Read<ProposedEndpoint> {
    at.object(&ENDPOINT)?;
    let (host, pattern) = host(&at.must("host")?)?;
    let port = port(at)?;
    let protocol = at.must("protocol")?;
    let protocol_name = protocol.text()?;
    if !PROTOCOLS.contains(&protocol_name) {
        return protocol.fault(format_args!("it is one of {}", PROTOCOLS.join(", ")));
    }
    if let Some(enforcement) = at.get("enforcement")
        && enforcement.text()? != "enforce"
    {
        return enforcement.fault("it is enforce");
    }
    let mut values = Map::new();
    values.insert("host".to_owned(), pattern.as_str().into());
    values.insert("port".to_owned(), port.into());
    if let Some(path) = at.get("path") {
        values.insert("path".to_owned(), path.text()?.into());
    }
    values.insert("protocol".to_owned(), protocol_name.into());
    values.insert("enforcement".to_owned(), "enforce".into());
    let is_rpc = protocol_name != "rest";
    let mut writes = is_rpc;
    let mut gets = false;
    match (at.get("rules"), at.get("access")) {
        (Some(rules), None) => {
            for rule in rules.items(RULES)? {
                let method = allow(&rule, is_rpc)?;
                writes |= !is_reading(method);
                gets |= method == "GET";
            }
            values.insert("rules".to_owned(), rules.value.clone());
        }
        (None, Some(access)) => {
            if access.text()? != "read-only" {
                return access.fault("it is read-only; what writes is named by rules");
            }
            gets = true;
            values.insert("access".to_owned(), "read-only".into());
        }
        (Some(_), Some(_)) | (None, None) => {
            return at.fault("it needs either rules or access: read-only");
        }
    }
    Ok(ProposedEndpoint {
        host,
        pattern,
        port,
        writes,
        gets,
        is_rpc,
        values: Value::Object(values),
    })
}

/// Reads the host of an endpoint: the name, or what the wildcard of its first label stands before;
/// and as it is written in a policy.
fn host(at: &At<'_>) -> Read<(Host, String)> {
    let text = at.text()?;
    let (wildcard, rest) = ["**.", "*."]
        .into_iter()
        .find_map(|wildcard| Some((wildcard, text.strip_prefix(wildcard)?)))
        .unwrap_or(("", text));
    if rest.contains('*') {
        return at.fault("a wildcard is the whole first label: `*.` or `**.`");
    }
    let host = match Host::parse(rest) {
        Ok(host @ Host::Name(_)) => host,
        Ok(Host::Address(_)) => return at.fault("it is an address; a person can permit that"),
        Err(error) => return at.fault(error),
    };
    if !rest.trim_end_matches('.').contains('.') {
        return at.fault("it is a name of one label");
    }
    if !wildcard.is_empty() && (!is_registered(&host) || has_suffixes_below(&host)) {
        return at.fault("a wildcard stands below a domain of one owner");
    }
    let pattern = format!("{wildcard}{host}");
    Ok((host, pattern))
}

fn port(endpoint: &At<'_>) -> Read<u16> {
    let at = match (endpoint.get("port"), endpoint.get("ports")) {
        (Some(port), None) => port,
        (None, Some(ports)) => {
            let mut ports = ports.items(1)?;
            match ports.pop() {
                Some(port) => port,
                None => return endpoint.fault("it needs a port"),
            }
        }
        (Some(_), Some(_)) | (None, None) => {
            return endpoint.fault("it needs either port or ports");
        }
    };
    let port = at.value.as_u64().and_then(|port| u16::try_from(port).ok());
    match port {
        Some(port) if port != 0 => Ok(port),
        Some(_) | None => at.fault("it is a number from 1 to 65535"),
    }
}

/// Reads a rule of an endpoint, which is for messages if it `is_rpc`; returns its method.
fn allow<'v>(rule: &At<'v>, is_rpc: bool) -> Read<&'v str> {
    rule.object(&["allow"])?;
    let allow = rule.must("allow")?;
    let named = allow.must("method")?;
    let method = named.text()?;
    if method.is_empty() || method.contains('*') {
        return named.fault("it names one method");
    }
    if is_rpc {
        return Ok(method);
    }
    if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return named.fault("a method of HTTP is written in capitals");
    }
    let path = match allow.get("path") {
        Some(path) => path.text()?,
        None => "**",
    };
    let is_any = path.bytes().all(|byte| matches!(byte, b'*' | b'/')) && path.contains("**");
    if is_any && method != "GET" {
        return allow.fault("only GET may have a rule for every path");
    }
    Ok(method)
}

/// Reads a program, which must be the one that asks, or one that was refused at `endpoints`.
fn program(
    at: &At<'_>,
    endpoints: &[ProposedEndpoint],
    caller: &Caller,
    denials: &RecentDenials,
) -> Read<ProposedProgram> {
    at.object(&["path"])?;
    let named = at.must("path")?;
    let path = named.text()?;
    if !path.starts_with('/') || !is_one_program(path) {
        return named.fault("it is the absolute path of one program, without a wildcard");
    }
    if path == caller.program.executable {
        return Ok(ProposedProgram {
            path: path.to_owned(),
            is_exact: !caller.program.is_modified,
        });
    }
    for endpoint in endpoints {
        let pattern = HostPattern::parse(&endpoint.pattern).or_else(|error| at.fault(error))?;
        if !denials.has_refused(path, &pattern, endpoint.port) {
            return named.fault(format_args!(
                "it is not the program that asks, {:?}, and it was not refused at {}:{} in this run",
                caller.program.executable, endpoint.pattern, endpoint.port
            ));
        }
    }
    Ok(ProposedProgram {
        path: path.to_owned(),
        is_exact: false,
    })
}

/// Checks that `endpoints` are valid in a policy.
fn check(rule: &At<'_>, endpoints: &[ProposedEndpoint]) -> Read<()> {
    let values: Vec<_> = endpoints.iter().map(|endpoint| &endpoint.values).collect();
    let network = json!({"proposed": {"endpoints": values, "binaries": [{"path": "/"}]}});
    let document = json!({"network_policies": network});
    let Err(violations) = yaml::policy(&document.to_string()) else {
        return Ok(());
    };
    let Some(violation) = violations.0.first() else {
        return Ok(());
    };
    let path = violation.path.to_string();
    let path = path.strip_prefix("network_policies.proposed.");
    Err(Fault {
        place: join(&rule.place, path.unwrap_or_default()),
        problem: violation.kind.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use openshell_events::denial::Denial;
    use openshell_events::reason::ReasonCode;
    use serde_json::{Value, json};

    use super::{Fault, read};
    use crate::policy_local::denials::RecentDenials;
    use crate::testing;

    const REST: &str = r#"{"host": "api.example.com", "port": 443, "protocol": "rest", "rules": [{"allow": {"method": "POST", "path": "/v1/items"}}]}"#;

    /// Returns a body with one rule of this `endpoint` for the program at `path`.
    fn body(endpoint: &Value, path: &str) -> Value {
        json!({"intent_summary": "to publish", "operations": [{"addRule": {
            "ruleName": "publish",
            "rule": {"endpoints": [endpoint], "binaries": [{"path": path}]}
        }}]})
    }

    fn rest() -> Value {
        serde_json::from_str(REST).unwrap()
    }

    /// Returns the place and the problem of `body`, which is read as from /usr/bin/curl.
    fn fault(body: &Value) -> (String, String) {
        let caller = testing::caller();
        let denials = RecentDenials::default();
        let Fault { place, problem } =
            read(body.to_string().as_bytes(), &caller, &denials).unwrap_err();
        (place, problem)
    }

    #[test]
    fn a_proposal_is_the_program_that_asks_one_port_and_rules_or_reading() {
        let caller = testing::caller();
        let denials = RecentDenials::default();
        let whole = |endpoint: &Value| {
            let body = body(endpoint, "/usr/bin/curl").to_string();
            let mut read = read(body.as_bytes(), &caller, &denials).unwrap();
            read.pop().unwrap()
        };
        let proposal = whole(&rest());
        assert_eq!(proposal.endpoints[0].values["enforcement"], "enforce");
        assert!(proposal.endpoints[0].writes);
        assert!(proposal.programs[0].is_exact);
        let mut reading = rest();
        reading.as_object_mut().unwrap().remove("rules");
        reading["access"] = json!("read-only");
        reading["host"] = json!("*.API.Example.com.");
        let proposal = whole(&reading);
        assert_eq!(proposal.endpoints[0].pattern, "*.api.example.com");
        assert!(!proposal.endpoints[0].writes);
    }

    #[test]
    fn a_host_is_a_registered_name_and_no_address() {
        for host in [
            "*.co.uk",
            "*.github.io",
            "**.com",
            "*.localhost",
            "*.amazonaws.com",
            "**.compute.amazonaws.com",
            "10.0.0.1",
            "[::1]",
            "2130706433",
            "localhost",
            "localhost.",
            "a.*.example.com",
            "api-*.example.com",
            "*",
            "",
            "exämple.com",
            "policy.local",
            &format!("{}.example.com", "a.".repeat(121)),
        ] {
            let mut endpoint = rest();
            endpoint["host"] = json!(host);
            let (place, problem) = fault(&body(&endpoint, "/usr/bin/curl"));
            let expected = "operations[0].addRule.rule.endpoints[0].host";
            assert_eq!(place, expected, "{host}: {problem}");
        }
    }

    #[test]
    fn what_is_not_described_is_refused_with_its_place() {
        let endpoint = "operations[0].addRule.rule.endpoints[0]";
        for (key, value, place) in [
            ("tls", json!("skip"), endpoint.to_owned()),
            ("allowed_ips", json!(["10.0.0.0/8"]), endpoint.to_owned()),
            ("leaks", json!("allow"), endpoint.to_owned()),
            ("resolve", json!(["a"]), endpoint.to_owned()),
            ("deny_rules", json!([]), endpoint.to_owned()),
            ("upgrades", json!(["tcp"]), endpoint.to_owned()),
            ("access", json!("full"), endpoint.to_owned()),
            ("protocol", json!("tcp"), format!("{endpoint}.protocol")),
            (
                "enforcement",
                json!("audit"),
                format!("{endpoint}.enforcement"),
            ),
            ("port", json!(0), format!("{endpoint}.port")),
            ("port", json!("443"), format!("{endpoint}.port")),
            ("ports", json!([443]), endpoint.to_owned()),
            ("rules", json!([]), format!("{endpoint}.rules")),
            (
                "rules",
                json!([{"deny": {}}]),
                format!("{endpoint}.rules[0]"),
            ),
            (
                "rules",
                json!([{"allow": {"path": "/x"}}]),
                format!("{endpoint}.rules[0].allow"),
            ),
            (
                "rules",
                json!([{"allow": {"method": "*", "path": "/x"}}]),
                format!("{endpoint}.rules[0].allow.method"),
            ),
            (
                "rules",
                json!([{"allow": {"method": "POST", "path": "/**"}}]),
                format!("{endpoint}.rules[0].allow"),
            ),
            (
                "rules",
                json!([{"allow": {"method": "get", "path": "/x"}}]),
                format!("{endpoint}.rules[0].allow.method"),
            ),
            (
                "rules",
                json!([{"allow": {"method": "POST"}}]),
                format!("{endpoint}.rules[0].allow"),
            ),
        ] {
            let mut changed = rest();
            changed[key] = value.clone();
            let found = fault(&body(&changed, "/usr/bin/curl"));
            assert_eq!(found.0, place, "{key}: {value}: {}", found.1);
        }
        let mut whole = body(&rest(), "/usr/bin/curl");
        whole["operations"][0]["addRule"]["rule"]["binaries"][0]["exact"] = json!(false);
        assert_eq!(fault(&whole).0, "operations[0].addRule.rule.binaries[0]");
        for name in ["null", "On", "1x", "-", ""] {
            let mut named = body(&rest(), "/usr/bin/curl");
            named["operations"][0]["addRule"]["ruleName"] = json!(name);
            assert_eq!(fault(&named).0, "operations[0].addRule.ruleName", "{name}");
        }
        let mut long = body(&rest(), "/usr/bin/curl");
        long["intent_summary"] = json!("a".repeat(201));
        assert_eq!(fault(&long).0, "intent_summary");
        long["intent_summary"] = Value::Null;
        assert_eq!(fault(&long).0, "intent_summary");
        assert_eq!(fault(&json!([])).1, "it is no object");
        for (body, what) in [
            ("{", "not JSON"),
            (r#"{"intent_summary": "", "intent_summary": ""}"#, "twice"),
            (&"[".repeat(10_000), "nested"),
        ] {
            let caller = testing::caller();
            let read = read(body.as_bytes(), &caller, &RecentDenials::default());
            let problem = read.unwrap_err().problem;
            assert!(problem.contains(what), "{problem}");
        }
    }

    #[test]
    fn another_program_is_only_one_that_was_refused_there() {
        let caller = testing::caller();
        let denials = RecentDenials::default();
        let git = |endpoint: &Value| body(endpoint, "/usr/lib/git").to_string();
        let before = read(git(&rest()).as_bytes(), &caller, &denials).unwrap_err();
        assert_eq!(before.place, "operations[0].addRule.rule.binaries[0].path");
        for path in ["git", "/usr/bin/*", "/usr/bin/"] {
            let body = body(&rest(), path).to_string();
            assert!(read(body.as_bytes(), &caller, &denials).is_err(), "{path}");
        }
        let denial = Denial {
            host: "api.example.com".to_owned(),
            port: 443,
            binary: "/usr/lib/git".to_owned(),
            ancestors: Vec::new(),
            code: ReasonCode::EndpointNotInPolicy,
            reason: String::new(),
            fix: None,
            request: None,
        };
        denials.add(&denial, None);
        let read_again = read(git(&rest()).as_bytes(), &caller, &denials).unwrap();
        assert!(!read_again[0].programs[0].is_exact, "it is not known");
        let mut elsewhere = rest();
        elsewhere["port"] = json!(8443);
        assert!(read(git(&elsewhere).as_bytes(), &caller, &denials).is_err());
    }
}
