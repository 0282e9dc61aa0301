//! Proposed rules for counted refusals. The caller passes in a function that looks up addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::IpAddr;

use crate::address::{AddressClass, never_reachable};
use crate::network::rule::Glob;
use openshell_events::denial::{DenialSummary, UnmatchedRequest};
use openshell_events::reason::DenialStage;
use openshell_events::text::counted;

/// A rule that would have permitted a refused connection or request, for review by a person.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Key of the policy; the same host and port always get the same key.
    pub name: String,
    /// The endpoint's host.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Addresses of the host, if one of them is internal.
    pub allowed_ips: Vec<IpAddr>,
    /// The requests and messages that were refused inside a connection; identifiers in paths are
    /// generalised.
    pub requests: BTreeSet<UnmatchedRequest>,
    /// The program.
    pub binary: String,
    /// Likelihood that the author of the policy wants this rule: 0.1 to 0.95.
    pub confidence: f64,
    /// Count of the refusals.
    pub count: u64,
    /// Sentence that describes what the rule permits.
    pub rationale: String,
    /// Remarks for the reviewer; empty if there are none.
    pub security_notes: String,
}

/// Well-known ports, with the service usually behind them.
const WELL_KNOWN: &[(u16, &str)] = &[
    (80, "HTTP"),
    (443, "HTTPS"),
    (8080, "HTTP-alt"),
    (8443, "HTTPS-alt"),
    (5432, "PostgreSQL"),
    (3306, "MySQL"),
    (6379, "Redis"),
    (27017, "MongoDB"),
    (9200, "Elasticsearch"),
    (9092, "Kafka"),
    (2181, "ZooKeeper"),
    (11211, "Memcached"),
    (5672, "RabbitMQ"),
    (6443, "Kubernetes API"),
    (53, "DNS"),
    (587, "SMTP"),
    (993, "IMAP"),
    (995, "POP3"),
];

const DATABASES: &[u16] = &[5432, 3306, 6379, 27017, 9200, 11211, 5672];

/// Returns proposals for `summaries`, the likeliest first. `addresses` looks up the addresses of a
/// host. Leaves out refusals that no policy could permit: hosts that are never reachable, names
/// without an address, programs that could not be identified, attempts to go past the proxy.
pub fn propose<'s>(
    summaries: impl IntoIterator<Item = &'s DenialSummary>,
    addresses: impl Fn(&str) -> Vec<IpAddr>,
) -> Vec<Proposal> {
    let could_be = |summary: &&DenialSummary| {
        let denial = &summary.first;
        (denial.code.stage().is_proposed() || !summary.requests.is_empty())
            && denial.code.is_policy_denial()
            // Port 0 means that the name was only looked up.
            && denial.port != 0
            && is_one_program(&denial.binary)
            && never_reachable(&denial.host).is_none()
    };
    let mut proposals: Vec<_> = summaries
        .into_iter()
        .filter(could_be)
        .map(|summary| propose_one(summary, &addresses))
        .collect();
    proposals.sort_by(|one, other| {
        other
            .confidence
            .total_cmp(&one.confidence)
            .then(one.name.cmp(&other.name))
    });
    proposals
}

/// Returns true if a rule can name exactly this program: a path with `*` in a policy matches others
/// too.
#[must_use]
pub fn is_one_program(path: &str) -> bool {
    path.starts_with('/') && !path.contains('*')
}

fn propose_one(summary: &DenialSummary, addresses: impl Fn(&str) -> Vec<IpAddr>) -> Proposal {
    let denial = &summary.first;
    let host = &denial.host;
    let port = denial.port;
    let mut allowed_ips = addresses(host);
    if !allowed_ips
        .iter()
        .any(|address| AddressClass::of(*address).is_internal())
    {
        allowed_ips.clear();
    }
    allowed_ips.retain(|address| !AddressClass::of(*address).is_always_blocked());
    allowed_ips.sort_by_key(ToString::to_string);
    allowed_ips.dedup();
    let is_ssrf = denial.code.stage() == DenialStage::Ssrf;
    let label = WELL_KNOWN
        .iter()
        .find(|(known, _)| *known == port)
        .map(|(_, label)| *label);
    // In hundredths, so that the same refusals always give the same number.
    let frequency = if summary.count >= 10 {
        20
    } else if summary.count >= 3 {
        10
    } else {
        0
    };
    let hundredths: i32 =
        50 + frequency + if label.is_some() { 15 } else { 0 } - if is_ssrf { 20 } else { 0 };
    let name = |text: &str| -> String {
        let kept = text
            .chars()
            .map(|c| if matches!(c, '.' | '-') { '_' } else { c });
        kept.filter(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect()
    };
    let program = denial.binary.rsplit('/').next().unwrap_or_default();
    let mut rationale = format!("Allow {program} to connect to {host}:{port}");
    if let Some(label) = label {
        // Writing to a String cannot fail.
        let _ = write!(rationale, " ({label})");
    }
    if !summary.requests.is_empty() {
        rationale.push_str(" with L7 inspection");
    }
    Proposal {
        requests: summary.requests.iter().map(generalised).collect(),
        name: format!("allow_{}_{port}", name(host)),
        host: host.clone(),
        port,
        binary: denial.binary.clone(),
        confidence: f64::from(hundredths.clamp(10, 95)) / 100.0,
        count: summary.count,
        rationale,
        security_notes: security_notes(is_ssrf, port, &allowed_ips, &summary.requests),
        allowed_ips,
    }
}

/// Returns `request` with a pattern in the place of what it asks for.
fn generalised(request: &UnmatchedRequest) -> UnmatchedRequest {
    let pattern = |(key, value): &(&'static str, String)| match *key {
        "path" => ("path", generalised_path(value)),
        other => (other, Glob::literal(value)),
    };
    UnmatchedRequest {
        asked: request.asked.as_ref().map(pattern),
        ..request.clone()
    }
}

/// Returns `path` as a pattern, in which a last segment that looks like an identifier becomes `*`.
fn generalised_path(path: &str) -> String {
    let path = Glob::literal(path);
    let Some((before, last)) = path.rsplit_once('/') else {
        return path;
    };
    let hex = last.bytes().filter(u8::is_ascii_hexdigit).count();
    let is_number = last.len() >= 2 && last.bytes().all(|byte| byte.is_ascii_digit());
    let is_uuid = last.contains('-') && hex >= 24;
    let is_hash = last.len() >= 16 && hex == last.len();
    if is_number || is_uuid || is_hash {
        format!("{before}/*")
    } else {
        path
    }
}

/// Returns true if `request` is for a path with an escaped slash.
fn needs_encoded_slash(request: &UnmatchedRequest) -> bool {
    let asked = request.asked.as_ref();
    asked.is_some_and(|(key, path)| *key == "path" && has_encoded_slash(path))
}

/// Returns true if `path` contains an escaped slash.
#[must_use]
pub fn has_encoded_slash(path: &str) -> bool {
    path.contains("%2F") || path.contains("%2f")
}

fn security_notes(
    is_ssrf: bool,
    port: u16,
    allowed_ips: &[IpAddr],
    requests: &BTreeSet<UnmatchedRequest>,
) -> String {
    let notes = [
        (
            is_ssrf,
            "The host has an internal address (SSRF): permitting it opens a part of the internal \
             network.",
        ),
        (
            !is_ssrf && !allowed_ips.is_empty(),
            "The host has an internal address.",
        ),
        (
            port > 49152,
            "The port is ephemeral: it may be another one next time.",
        ),
        (
            requests.iter().any(needs_encoded_slash),
            "Other endpoints of this host and port that have rules need `allow_encoded_slash: \
             true` too.",
        ),
        (
            requests
                .iter()
                .any(|request| request.endpoint_path.is_some()),
            "There is an endpoint with this `path`: add the rules to it, because another one has the \
             default settings.",
        ),
        (
            requests
                .iter()
                .any(|request| matches!(request.asked, Some(("tool", _)))),
            "A tool is permitted with any arguments: consider conditions.",
        ),
        (
            DATABASES.contains(&port),
            "A database or service port: consider what data is behind it.",
        ),
    ];
    let notes: Vec<_> = notes
        .iter()
        .filter(|(holds, _)| *holds)
        .map(|(_, note)| *note)
        .collect();
    notes.join(" ")
}

/// Returns `proposals` as a fragment of a policy document, with one rule for each set of programs
/// with the same endpoints.
#[must_use]
pub fn fragment(proposals: &[Proposal]) -> String {
    let mut text = String::from(FRAGMENT);
    if proposals.is_empty() {
        text.push_str("network_policies: {}\n");
        return text;
    }
    text.push_str("network_policies:\n");
    // The name of each rule, its endpoints and its programs, in the order of the proposals.
    let mut rules: Vec<(&str, String, Vec<&Proposal>)> = Vec::new();
    for proposal in proposals {
        let endpoints: Vec<_> = proposal
            .endpoints()
            .iter()
            .map(ProposedEndpoint::to_flow)
            .collect();
        let endpoints = endpoints.join(", ");
        match rules
            .iter_mut()
            .find(|(name, known, _)| *name == proposal.name && *known == endpoints)
        {
            Some((_, _, same)) => same.push(proposal),
            None => rules.push((&proposal.name, endpoints, vec![proposal])),
        }
    }
    let mut used: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, endpoints, same) in rules {
        for proposal in &same {
            comment(&mut text, proposal);
        }
        let number = used.entry(name).or_default();
        *number += 1;
        // Writing to a String cannot fail.
        let _ = match number {
            1 => writeln!(text, "  {name}:"),
            _ => writeln!(text, "  {name}_{number}:"),
        };
        let _ = writeln!(text, "    endpoints: [{endpoints}]");
        let binaries: Vec<_> = same
            .iter()
            .map(|proposal| format!("{{path: {}}}", quoted(&proposal.binary)))
            .collect();
        let _ = writeln!(text, "    binaries: [{}]", binaries.join(", "));
    }
    text
}

/// Writes why a rule is proposed.
fn comment(text: &mut String, proposal: &Proposal) {
    let Proposal {
        rationale,
        security_notes,
        confidence,
        count,
        ..
    } = proposal;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "  # {}: refused {}, confidence {confidence:.2}",
        printable(rationale),
        counted(*count, "time", "times")
    );
    if !security_notes.is_empty() {
        let _ = writeln!(text, "  # {security_notes}");
    }
}

/// First line of a fragment.
const FRAGMENT: &str = "# Proposed after a run, for what its policy refused. Review each rule; \
                        then add those that you want to your policy.\n";

/// An endpoint of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProposedEndpoint<'p> {
    /// Its host.
    pub host: &'p str,
    /// Its port.
    pub port: u16,
    /// The addresses that the host may have, if they are limited.
    pub allowed_ips: &'p [IpAddr],
    /// What its rules allow, all at one path and in one protocol; without any, it does not judge
    /// requests.
    pub requests: BTreeSet<UnmatchedRequest>,
    /// True if the paths of requests may contain an escaped slash.
    pub allow_encoded_slash: bool,
}

impl Proposal {
    /// Returns its endpoints: one for each path and protocol, and one without rules if there are none.
    #[must_use]
    pub fn endpoints(&self) -> Vec<ProposedEndpoint<'_>> {
        let mut places: Vec<_> = by_place(&self.requests).into_values().collect();
        if places.is_empty() {
            places.push(BTreeSet::new());
        }
        let takes_slash = self.requests.iter().any(needs_encoded_slash);
        let endpoint = |requests| ProposedEndpoint {
            allow_encoded_slash: takes_slash,
            ..ProposedEndpoint::new(&self.host, self.port, &self.allowed_ips, requests)
        };
        places.into_iter().map(endpoint).collect()
    }
}

/// Returns `requests` by the path and protocol of the endpoint whose rules could allow them.
#[must_use]
pub fn by_place(
    requests: &BTreeSet<UnmatchedRequest>,
) -> BTreeMap<(Option<&str>, &'static str), BTreeSet<UnmatchedRequest>> {
    let mut places: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for request in requests {
        let place = (request.endpoint_path.as_deref(), request.protocol);
        places.entry(place).or_default().insert(request.clone());
    }
    places
}

impl<'p> ProposedEndpoint<'p> {
    /// Returns the endpoint of `host` and `port` that allows `requests`.
    #[must_use]
    pub fn new(
        host: &'p str,
        port: u16,
        allowed_ips: &'p [IpAddr],
        requests: BTreeSet<UnmatchedRequest>,
    ) -> Self {
        Self {
            host,
            port,
            allowed_ips,
            allow_encoded_slash: false,
            requests,
        }
    }

    /// Returns its `path`, if it has one.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.requests.first()?.endpoint_path.as_deref()
    }

    /// Returns the protocol of its rules; `None` if it does not judge requests.
    #[must_use]
    pub fn protocol(&self) -> Option<&'static str> {
        Some(self.requests.first()?.protocol)
    }

    /// Returns the endpoint in flow style.
    #[must_use]
    pub fn to_flow(&self) -> String {
        let mut text = format!("{{host: {}, port: {}", quoted(self.host), self.port);
        // Writing to a String cannot fail.
        if !self.allowed_ips.is_empty() {
            let addresses: Vec<_> = self
                .allowed_ips
                .iter()
                .map(|address| format!("\"{address}\""))
                .collect();
            let _ = write!(text, ", allowed_ips: [{}]", addresses.join(", "));
        }
        if let Some(path) = self.path() {
            let _ = write!(text, ", path: {}", quoted(path));
        }
        if let Some(protocol) = self.protocol() {
            let rules: Vec<_> = self.requests.iter().map(allow_rule).collect();
            let _ = write!(
                text,
                ", protocol: {protocol}, enforcement: enforce, rules: [{}]",
                rules.join(", ")
            );
            if self.allow_encoded_slash {
                text.push_str(", allow_encoded_slash: true");
            }
        }
        text.push('}');
        text
    }
}

/// Returns the rule for `request` in flow style.
fn allow_rule(request: &UnmatchedRequest) -> String {
    let mut text = format!("{{allow: {{method: {}", quoted(&request.method));
    if let Some((key, value)) = &request.asked {
        // Writing to a String cannot fail.
        let _ = write!(text, ", {key}: {}", quoted(value));
    }
    text.push_str("}}");
    text
}

/// Returns `text` as a double-quoted scalar (YAML 1.2.2 §7.3.1).
#[must_use]
pub fn quoted(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() || reorders(c) => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

/// Returns true if `c` ends lines, is invisible, or reorders the text behind it (UAX 9).
fn reorders(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Returns `text` without the characters that must not stand in a comment.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control() && !reorders(*c))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use super::{Proposal, fragment, propose};
    use openshell_events::denial::{Denial, DenialSummary, UnmatchedRequest};
    use openshell_events::reason::ReasonCode;

    fn summary(host: &str, port: u16, code: ReasonCode, count: u64) -> DenialSummary {
        let host = host.to_owned();
        let binary = "/usr/bin/curl".to_owned();
        let ancestors = Vec::new();
        let reason = String::new();
        let fix = None;
        let request = None;
        let first = Denial {
            host,
            port,
            binary,
            ancestors,
            code,
            reason,
            fix,
            request,
        };
        DenialSummary {
            first,
            count,
            first_seen_ms: 0,
            last_seen_ms: 0,
            requests: BTreeSet::new(),
            fixes: Vec::new(),
        }
    }

    fn request(method: &str, path: &str) -> UnmatchedRequest {
        UnmatchedRequest {
            endpoint_path: None,
            protocol: "rest",
            method: method.to_owned(),
            asked: Some(("path", path.to_owned())),
        }
    }

    #[test]
    fn messages_are_proposed_at_the_path_of_their_endpoint() {
        let mut refused = summary("mcp.test", 443, ReasonCode::RequestNotInRules, 2);
        let call = |tool: &str| UnmatchedRequest {
            endpoint_path: Some("/mcp".to_owned()),
            protocol: "mcp",
            method: "tools/call".to_owned(),
            asked: Some(("tool", tool.to_owned())),
        };
        let list = UnmatchedRequest {
            asked: None,
            method: "tools/list".to_owned(),
            ..call("")
        };
        refused.requests = [request("GET", "/a"), call("put"), call("get*"), list].into();
        let text = fragment(&propose(&[refused], |_| Vec::new()));
        assert!(
            text.contains(
                "endpoints: [{host: \"mcp.test\", port: 443, protocol: rest, enforcement: enforce, rules: [{allow: \
                 {method: \"GET\", path: \"/a\"}}]}, {host: \"mcp.test\", port: 443, path: \"/mcp\", protocol: mcp, \
                 enforcement: enforce, rules: [{allow: {method: \"tools/call\", tool: \"get\\\\*\"}}, {allow: {method: \
                 \"tools/call\", tool: \"put\"}}, {allow: {method: \"tools/list\"}}]}]"
            ),
            "{text}"
        );
        crate::yaml::policy(&text).unwrap();
    }

    // Conformance: AGG-11, AGG-12, AGG-13.
    #[test]
    fn requests_are_proposed_as_rules_with_identifiers_generalised() {
        let mut judged = summary("api.test", 443, ReasonCode::RequestNotInRules, 3);
        let paths = [
            ("GET", "/v1/users/42", "/v1/users/*"),
            ("GET", "/v1/users/43", "/v1/users/*"),
            ("GET", "/v1/7", "/v1/7"),
            ("GET", "/v2", "/v2"),
            ("GET", "/tags/latest", "/tags/latest"),
            ("PUT", "/x/123e4567-e89b-12d3-a456-426614174000", "/x/*"),
            ("PUT", "/y/0123456789abcdef", "/y/*"),
            ("PUT", "/z/a*b", "/z/a\\*b"),
        ];
        judged.requests = paths
            .iter()
            .map(|(method, path, _)| request(method, path))
            .collect();
        let proposals = propose(&[judged], |_| Vec::new());
        let expected: BTreeSet<_> = paths
            .iter()
            .map(|(method, _, path)| request(method, path))
            .collect();
        assert_eq!(proposals[0].requests, expected);
        let (policy, _) = crate::yaml::policy(&fragment(&proposals)).unwrap();
        let network = policy.network().values().next().unwrap();
        assert_eq!(
            network.endpoints[0].l7().unwrap().rules.len(),
            expected.len()
        );
        let denied = summary("api.test", 443, ReasonCode::RequestInDenyRules, 3);
        assert_eq!(propose(&[denied], |_| Vec::new()), []);
    }

    #[test]
    fn a_request_with_an_encoded_slash_is_proposed_with_what_takes_it() {
        let mut refused = summary("npm.test", 443, ReasonCode::BadRequest, 1);
        refused.requests = [request("GET", "/@types%2Fnode")].into();
        let proposals = propose(&[refused], |_| Vec::new());
        assert!(
            proposals[0].security_notes.contains("allow_encoded_slash"),
            "{proposals:?}"
        );
        let (policy, _) = crate::yaml::policy(&fragment(&proposals)).unwrap();
        assert!(policy.network().values().next().unwrap().endpoints[0].allow_encoded_slash());
    }

    fn of(host: &str, port: u16, code: ReasonCode, count: u64) -> Option<Proposal> {
        let addresses = |host: &str| match host {
            "inside.test" => ["10.0.0.2", "10.0.0.1", "8.8.8.8", "10.0.0.2"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
            _ => vec!["8.8.8.8".parse::<IpAddr>().unwrap()],
        };
        propose(&[summary(host, port, code, count)], addresses).pop()
    }

    use ReasonCode::{DirectConnection, EndpointNotInPolicy, InternalAddress, RequestTooLarge};

    // Conformance: AGG-06, AGG-07.
    #[test]
    fn a_refused_connection_is_proposed_with_its_program_and_a_confidence() {
        let proposal = of("api.example.com", 443, EndpointNotInPolicy, 1).unwrap();
        assert_eq!(
            (proposal.name.as_str(), proposal.binary.as_str()),
            ("allow_api_example_com_443", "/usr/bin/curl")
        );
        assert_eq!((proposal.confidence, proposal.allowed_ips.len()), (0.65, 0));
        assert_eq!(
            proposal.rationale,
            "Allow curl to connect to api.example.com:443 (HTTPS)"
        );
        for (count, confidence) in [(2, 0.65), (3, 0.75), (9, 0.75), (10, 0.85), (1000, 0.85)] {
            assert_eq!(
                of("api.example.com", 443, EndpointNotInPolicy, count)
                    .unwrap()
                    .confidence,
                confidence
            );
        }
    }

    // Conformance: AGG-08, AGG-09.
    #[test]
    fn internal_addresses_are_listed_and_said() {
        let odd = of("a-b.test", 9999, InternalAddress, 1).unwrap();
        assert_eq!(
            (odd.name.as_str(), odd.confidence),
            ("allow_a_b_test_9999", 0.30)
        );
        assert!(odd.security_notes.contains("SSRF"));
        let inside = of("inside.test", 443, EndpointNotInPolicy, 1).unwrap();
        let listed: Vec<_> = inside.allowed_ips.iter().map(ToString::to_string).collect();
        assert_eq!(listed, ["10.0.0.1", "10.0.0.2", "8.8.8.8"]);
        assert!(inside.security_notes.contains("internal"));
    }

    // Conformance: AGG-10.
    #[test]
    fn what_no_policy_could_permit_is_not_proposed() {
        for host in [
            "127.0.0.1",
            "::1",
            "169.254.1.1",
            "0.0.0.0",
            "localhost",
            "LOCALHOST.",
        ] {
            assert_eq!(of(host, 443, EndpointNotInPolicy, 1), None, "{host}");
        }
        assert_eq!(of("198.51.100.1", 443, DirectConnection, 1), None);
        assert_eq!(of("a.test", 443, RequestTooLarge, 1), None);
        for binary in ["-", "/tmp/**", "/opt/*"] {
            let mut unknown = summary("a.test", 443, EndpointNotInPolicy, 1);
            unknown.first.binary = binary.to_owned();
            assert_eq!(
                propose(&[unknown], |_| Vec::new()),
                [],
                "{binary} would mean others too"
            );
        }
    }

    #[test]
    fn programs_that_need_different_things_of_a_host_get_rules_of_their_own() {
        let with = |binary: &str, path: &str| {
            let mut summary = summary("a.test", 443, EndpointNotInPolicy, 1);
            summary.first.binary = binary.to_owned();
            summary.requests = [request("GET", path)].into();
            summary
        };
        let summaries = [
            with("/bin/a", "/x"),
            with("/bin/b", "/x"),
            with("/bin/c", "/y"),
        ];
        let text = fragment(&propose(&summaries, |_| Vec::new()));
        let (policy, _) = crate::yaml::policy(&text).unwrap();
        let rules = policy.network().iter().map(|(name, network)| {
            let paths = network
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.l7().unwrap().rules);
            let paths: Vec<_> = paths.map(|rule| rule.path.as_str()).collect();
            let binaries: Vec<_> = network.binaries.iter().map(ToString::to_string).collect();
            (name.as_str(), paths.join(" "), binaries.join(" "))
        });
        let expected = [
            ("allow_a_test_443", "/x", "/bin/a /bin/b"),
            ("allow_a_test_443_2", "/y", "/bin/c"),
        ];
        let expected =
            expected.map(|(name, paths, binaries)| (name, paths.to_owned(), binaries.to_owned()));
        assert_eq!(rules.collect::<Vec<_>>(), expected, "{text}");
    }

    // Conformance: AGG-14.
    #[test]
    fn the_likeliest_come_first_and_the_fragment_is_a_policy() {
        let mut other = summary("b.test", 443, EndpointNotInPolicy, 10);
        other.first.binary = "/opt/an \"odd\"\n: name".to_owned();
        let summaries = [
            summary("a.test", 9999, InternalAddress, 1),
            summary("inside.test", 443, EndpointNotInPolicy, 1),
            summary("b.test", 443, EndpointNotInPolicy, 1),
            other,
        ];
        let proposals = propose(&summaries, |host| match host {
            "inside.test" => vec!["10.0.0.1".parse().unwrap()],
            _ => Vec::new(),
        });
        assert!(proposals.is_sorted_by(|one, other| one.confidence >= other.confidence));
        let (policy, _) = crate::yaml::policy(&fragment(&proposals)).unwrap();
        let named: Vec<_> = policy
            .network()
            .iter()
            .map(|(name, network)| (name.as_str(), network.binaries.len()))
            .collect();
        assert_eq!(
            named,
            [
                ("allow_a_test_9999", 1),
                ("allow_b_test_443", 2),
                ("allow_inside_test_443", 1)
            ]
        );
        assert!(crate::yaml::policy(&fragment(&[])).is_ok());
    }
}
