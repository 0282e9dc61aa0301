//! Serialisation of a policy as a document that reads back as the same policy: presets are
//! expanded, `port` becomes `ports`, and absent fields are left out.

pub mod outline;
mod rpc;

use std::collections::BTreeMap;

use rpc::SettingsPart;
use serde::{Serialize, Serializer};

use crate::filesystem::{Compatibility, GrantedPath};
use crate::network::NetworkPolicy;
use crate::network::binary::Binary;
use crate::network::endpoint::{Endpoint, L7, Protocol, TlsMode};
use crate::network::rpc::RpcRule;
use crate::network::rule::{DenyRule, Glob, HttpRule};
use crate::policy::Policy;
use crate::process::Identity;

#[derive(Serialize)]
struct Document<'p> {
    #[serde(flatten)]
    parts: StaticParts<'p>,
    network_policies: BTreeMap<&'p str, NetworkPart<'p>>,
}

/// The parts of a policy that take effect only at a start.
#[derive(Serialize)]
pub struct StaticParts<'p> {
    filesystem_policy: FilesystemPart<'p>,
    landlock: LandlockPart,
    process: ProcessPart<'p>,
}

#[derive(Serialize)]
struct FilesystemPart<'p> {
    include_workdir: bool,
    read_only: &'p [GrantedPath],
    read_write: &'p [GrantedPath],
    #[serde(skip_serializing_if = "is_empty")]
    hidden: &'p [GrantedPath],
    #[serde(skip_serializing_if = "is_empty")]
    noexec: &'p [GrantedPath],
}

#[derive(Serialize)]
struct LandlockPart {
    compatibility: &'static str,
}

#[derive(Serialize)]
struct ProcessPart<'p> {
    #[serde(skip_serializing_if = "Option::is_none")]
    run_as_user: Option<&'p Identity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_as_group: Option<&'p Identity>,
    #[serde(skip_serializing_if = "is_false")]
    debug: bool,
}

#[derive(Serialize)]
struct NetworkPart<'p> {
    endpoints: &'p [Endpoint],
    binaries: Vec<BinaryPart>,
}

#[derive(Serialize)]
struct BinaryPart {
    path: String,
    #[serde(skip_serializing_if = "is_false")]
    exact: bool,
}

#[derive(Serialize)]
struct EndpointPart<'p> {
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    ports: Vec<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_ips: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resolve: Vec<String>,
    #[serde(skip_serializing_if = "is_false")]
    allow_encoded_slash: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    upgrades: Vec<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaks: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enforcement: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<AllowPart<'p>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deny_rules: Vec<RuleRef<'p>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mcp: Option<SettingsPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json_rpc: Option<SettingsPart>,
    /// Only an endpoint of a gateway's policy has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsupported: Option<&'p str>,
}

#[derive(Serialize)]
struct AllowPart<'p> {
    allow: RuleRef<'p>,
}

/// A rule of one of the protocols.
#[derive(Serialize)]
#[serde(untagged)]
enum RuleRef<'p> {
    Http(&'p HttpRule),
    HttpDeny(&'p DenyRule),
    Rpc(&'p RpcRule),
}

#[derive(Serialize)]
struct RulePart<'p> {
    method: &'p str,
    path: &'p str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    query: BTreeMap<&'p str, MatcherPart<'p>>,
    #[serde(skip_serializing_if = "is_false")]
    case_sensitive: bool,
}

#[derive(Serialize)]
struct MatcherPart<'p> {
    any: Vec<&'p str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_empty<T>(items: &&[T]) -> bool {
    items.is_empty()
}

impl<'p> StaticParts<'p> {
    /// Returns the static parts of `policy`.
    #[must_use]
    pub fn of(policy: &'p Policy) -> Self {
        let filesystem = policy.filesystem();
        let run_as = policy.run_as();
        Self {
            filesystem_policy: FilesystemPart {
                include_workdir: filesystem.include_workdir,
                read_only: &filesystem.read_only,
                read_write: &filesystem.read_write,
                hidden: &filesystem.hidden,
                noexec: &filesystem.noexec,
            },
            landlock: LandlockPart {
                compatibility: match filesystem.compatibility {
                    Compatibility::BestEffort => "best_effort",
                    Compatibility::HardRequirement => "hard_requirement",
                },
            },
            process: ProcessPart {
                run_as_user: run_as.user.as_ref(),
                run_as_group: run_as.group.as_ref(),
                debug: policy.permits_debugging(),
            },
        }
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut network_policies = BTreeMap::new();
        for (name, policy) in self.network() {
            network_policies.insert(name.as_str(), NetworkPart::of(policy));
        }
        let document = Document {
            parts: StaticParts::of(self),
            network_policies,
        };
        document.serialize(serializer)
    }
}

impl<'p> NetworkPart<'p> {
    fn of(policy: &'p NetworkPolicy) -> Self {
        let binary = |binary: &Binary| BinaryPart {
            path: binary.to_string(),
            exact: binary.exact,
        };
        Self {
            endpoints: &policy.endpoints,
            binaries: policy.binaries.iter().map(binary).collect(),
        }
    }
}

impl Serialize for GrantedPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Name(name) => serializer.serialize_str(name),
            Self::Id(id) => serializer.serialize_u32(*id),
        }
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let l7 = self.l7();
        let tcp = self.is_tcp().then_some(Protocol::Tcp);
        let rpc = l7.and_then(|l7| l7.rpc.as_ref());
        let settings = |protocol| {
            let of_protocol = rpc.filter(|_| l7.is_some_and(|l7| l7.protocol == protocol));
            of_protocol.map(SettingsPart::of)
        };
        let part = EndpointPart {
            host: self.host().map(ToString::to_string),
            ports: self.ports().iter().map(|port| port.get()).collect(),
            path: self.path().map(Glob::as_str),
            tls: (self.tls() == TlsMode::Skip).then_some("skip"),
            allowed_ips: self.allowed_ips().iter().map(ToString::to_string).collect(),
            resolve: self.resolve().iter().map(ToString::to_string).collect(),
            allow_encoded_slash: self.allow_encoded_slash(),
            upgrades: self
                .upgrades()
                .iter()
                .map(|upgrade| upgrade.as_str())
                .collect(),
            leaks: self.allows_leaks().then_some("allow"),
            protocol: l7.map(|l7| l7.protocol).or(tcp).map(Protocol::as_str),
            enforcement: l7.map(|l7| l7.enforcement.as_str()),
            rules: l7.and_then(allowing),
            deny_rules: l7.map(denying).unwrap_or_default(),
            mcp: settings(Protocol::Mcp),
            json_rpc: settings(Protocol::JsonRpc),
            unsupported: self.unsupported(),
        };
        part.serialize(serializer)
    }
}

/// Returns the allow rules of `l7`, if it has any.
fn allowing(l7: &L7) -> Option<Vec<AllowPart<'_>>> {
    let rules = match &l7.rpc {
        None => l7.rules.iter().map(RuleRef::Http).collect(),
        Some(rpc) => rpc
            .rules
            .as_ref()?
            .iter()
            .map(RuleRef::Rpc)
            .collect::<Vec<_>>(),
    };
    Some(rules.into_iter().map(|allow| AllowPart { allow }).collect())
}

/// Returns the deny rules of `l7`.
fn denying(l7: &L7) -> Vec<RuleRef<'_>> {
    let of_http = l7.deny_rules.iter().map(RuleRef::HttpDeny);
    let of_rpc = l7.rpc.iter().flat_map(|rpc| &rpc.deny_rules);
    of_http.chain(of_rpc.map(RuleRef::Rpc)).collect()
}

impl<'p> RulePart<'p> {
    fn of(rule: &'p HttpRule) -> Self {
        let mut query = BTreeMap::new();
        for (key, matcher) in &rule.query {
            let any = matcher.globs().iter().map(|glob| glob.as_str()).collect();
            query.insert(key.as_str(), MatcherPart { any });
        }
        Self {
            method: rule.method.as_str(),
            path: rule.path.as_str(),
            query,
            case_sensitive: false,
        }
    }
}

impl Serialize for HttpRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RulePart::of(self).serialize(serializer)
    }
}

impl Serialize for DenyRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = RulePart {
            case_sensitive: self.case_sensitive,
            ..RulePart::of(&self.rule)
        };
        part.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use crate::yaml;

    #[test]
    fn the_document_reads_back_as_the_policy_that_it_was_made_of() {
        let yaml = r#"
filesystem_policy: {read_only: [/usr], read_write: [/tmp], include_workdir: false, hidden: [/tmp/x], noexec: [/tmp/y]}
landlock: {compatibility: hard_requirement}
process: {run_as_user: "7", run_as_group: staff, debug: true}
network_policies:
  a:
    endpoints:
      - {host: "*.a.test", ports: [1, 2], protocol: rest, enforcement: enforce, access: read-only, allowed_ips: [10.0.0.0/16]}
      - {host: b.test, port: 3, tls: skip}
      - {host: l.test, port: 7, leaks: allow}
      - host: c.test
        port: 4
        protocol: rest
        enforcement: audit
        allow_encoded_slash: true
        upgrades: [tcp]
        rules: [{allow: {method: get, path: /x, query: {a: "1", b: {any: ["2", "3"]}}}}]
        deny_rules: [{method: "*", path: "/**"}, {method: GET, path: /Priv, case_sensitive: true}]
      - {port: 5, allowed_ips: [10.1.0.0/16], resolve: ["*.corp.test", one.test]}
      - {host: db.test, port: 6, protocol: tcp}
      - host: m.test
        port: 9
        path: /mcp
        protocol: mcp
        enforcement: enforce
        mcp: {max_body_bytes: 2048, filter_lists: false, versions: ["2025-06-18"]}
        rules:
          - allow: {method: initialize}
          - allow: {method: tools/call, tool: {any: ["search_*", get]}}
          - allow: {method: tools/call, tool: put, other_arguments: deny, arguments: {repo: {in: [a/b, 7, null]}, "x[*].\"y.z\"": {glob: "a-*", optional: true}, n: {range: [1, null]}, m: {range: [-0.5, 2.25]}, t: {max_length: 20, any: ["a*"]}, u: {absent: true}, v: {equals: 1.5}, w: {}}}
          - allow: {method: resources/read, uri: "file:///docs/**"}
          - allow: {method: prompts/get, name: "review-*"}
        deny_rules: [{method: tools/call, params: {name: "delete_*"}}]
      - {host: m.test, port: 10, protocol: mcp, enforcement: audit, mcp: {allow_all_known_mcp_methods: true, strict_tool_names: false}, deny_rules: [{tool: x}, {method: ping}]}
      - {host: j.test, port: 9, protocol: json-rpc, enforcement: enforce, json_rpc: {max_body_bytes: 1024}, rules: [{allow: {method: "*"}}], deny_rules: [{method: sum}]}
      - {host: p.test, port: 8, path: "/api/**", protocol: rest, enforcement: enforce, access: full}
    binaries: [{path: /usr/bin/git}, {path: "/opt/*"}, {path: /opt/x, exact: true}]
"#;
        let (policy, _) = yaml::policy(yaml).unwrap();
        let document = serde_json::to_string(&policy).unwrap();
        let (again, _) = yaml::policy(&document).unwrap();
        assert_eq!(policy, again, "{document}");
    }

    #[test]
    fn what_a_gateway_asks_of_a_later_build_is_kept() {
        let json = r#"{"network_policies": {"a": {"endpoints": [{"host": "a.test", "port": 1, "unsupported": "`path`"}], "binaries": [{"path": "/x"}]}}}"#;
        let (policy, _) = yaml::policy_of_gateway(json).unwrap();
        let document = serde_json::to_string(&policy).unwrap();
        let (again, _) = yaml::policy_of_gateway(&document).unwrap();
        assert_eq!(policy, again, "{document}");
        assert!(document.contains("unsupported"), "{document}");
    }
}
