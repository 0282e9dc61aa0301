//! Conversion of policies: a gateway's message becomes a policy document, so that the same reader
//! validates policies of every source; and a policy becomes a message.

use std::collections::BTreeMap;

use openshell_policy::filesystem::{Compatibility, Filesystem};
use openshell_policy::network::endpoint::{Endpoint, Protocol, TlsMode};
use openshell_policy::network::rule::{Glob, HttpRule, QueryMatcher};
use openshell_policy::network::{NetworkPolicy, PolicyName};
use openshell_policy::policy::Policy;
use openshell_policy::yaml;
use prost::{DecodeError, Message as _};
use serde_json::{Map, Value, json};

use crate::convert::json::{fields, list, matcher, text};
use crate::convert::rpc::{fault, is_rpc, put_rules, rpc_fields};
use crate::convert::unknown::{self, Malformed, Unknown};
use crate::proto::sandbox::v1::{
    FilesystemPolicy, L7Allow, L7DenyRule, L7QueryMatcher, L7Rule, LandlockPolicy, NetworkBinary,
    NetworkEndpoint, NetworkPolicyRule, ProcessPolicy, SandboxPolicy,
};

/// A gateway's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPolicy {
    /// A policy document in JSON, not yet validated. An endpoint that needs a feature that this
    /// build lacks says so with `unsupported`.
    pub document: String,
    /// Endpoints that name a provider, whose credentials may be sent there.
    pub bindings: Vec<ProviderBinding>,
}

/// An endpoint to which the credentials of a provider may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderBinding {
    /// Name of the provider.
    pub provider: String,
    /// The endpoint's host, as a policy writes it.
    pub host: String,
    /// Its ports.
    pub ports: Vec<u32>,
}

/// The error of a policy that is not an encoded message.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum PolicyMalformed {
    #[error("the policy cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
    #[error("the policy cannot be searched for fields that are not known: {0}")]
    Scan(#[from] Malformed),
}

/// Decodes and converts the message of a policy. An empty text, 0 and an empty list mean that a
/// field is absent.
///
/// # Errors
/// Fails if the bytes are not such a message.
pub(crate) fn decode(bytes: &[u8]) -> Result<GatewayPolicy, PolicyMalformed> {
    let message = SandboxPolicy::decode(bytes)?;
    Ok(read(message, &unknown::scan(bytes)?))
}

pub(super) fn read(message: SandboxPolicy, unknown: &BTreeMap<String, Unknown>) -> GatewayPolicy {
    let mut document = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        document.extend(value.map(|value| (key.to_owned(), value)))
    };
    put(
        "version",
        (message.version != 0).then(|| message.version.into()),
    );
    put("filesystem_policy", message.filesystem.map(filesystem));
    let compatibility = message.landlock.map(|landlock| landlock.compatibility);
    put(
        "landlock",
        compatibility
            .as_deref()
            .and_then(text)
            .map(|word| json!({ "compatibility": word })),
    );
    put(
        "process",
        message.process.map(|process| {
            let ProcessPolicy {
                run_as_user,
                run_as_group,
            } = process;
            fields([
                ("run_as_user", text(&run_as_user)),
                ("run_as_group", text(&run_as_group)),
            ])
        }),
    );
    let has_middlewares = !message.network_middlewares.is_empty();
    let mut policies = Map::new();
    let mut bindings = Vec::new();
    for (key, rule) in message.network_policies {
        let NetworkPolicyRule {
            endpoints,
            binaries,
            ..
        } = rule;
        bindings.extend(endpoints.iter().filter_map(binding));
        let unknown = unknown.get(&key);
        let endpoints = endpoints.into_iter().enumerate().map(|(index, one)| {
            let unknown = unknown.and_then(|unknown| unknown.of_endpoint(index));
            endpoint(one, has_middlewares, unknown)
        });
        let endpoints: Vec<_> = endpoints.collect();
        let binaries: Vec<_> = binaries
            .iter()
            .map(|binary| json!({ "path": binary.path }))
            .collect();
        policies.insert(key, json!({ "endpoints": endpoints, "binaries": binaries }));
    }
    put("network_policies", Some(Value::Object(policies)));
    GatewayPolicy {
        document: Value::Object(document).to_string(),
        bindings,
    }
}

/// Returns the binding of the credentials of an endpoint, if it has one.
fn binding(endpoint: &NetworkEndpoint) -> Option<ProviderBinding> {
    let binding = endpoint.credential_binding.as_ref()?;
    Some(ProviderBinding {
        provider: binding.provider.clone(),
        host: endpoint.host.clone(),
        ports: ports(endpoint),
    })
}

fn filesystem(
    FilesystemPolicy {
        include_workdir,
        read_only,
        read_write,
    }: FilesystemPolicy,
) -> Value {
    json!({ "include_workdir": include_workdir, "read_only": read_only, "read_write": read_write })
}

fn endpoint(message: NetworkEndpoint, has_middlewares: bool, unknown: Option<&str>) -> Value {
    let mut known = vec![
        ("host", text(&message.host)),
        ("ports", Some(ports(&message).into())),
        ("tls", text(&message.tls)),
        (
            "allowed_ips",
            list(
                message
                    .allowed_ips
                    .iter()
                    .map(|range| Value::from(range.as_str())),
            ),
        ),
    ];
    let unknown = unknown.map(str::to_owned);
    match unknown.or_else(|| missing(&message, has_middlewares)) {
        // Without that feature, nobody knows what the endpoint would permit.
        Some(what) => known.push(("unsupported", Some(what.into()))),
        None if is_rpc(&message.protocol) => {
            let complete = fields(known.iter().cloned().chain(rpc_fields(&message)));
            match fault(&message, &complete) {
                None => return complete,
                Some(what) => known.push(("unsupported", Some(what.into()))),
            }
        }
        None => known.extend([
            ("path", text(&message.path)),
            ("protocol", text(&message.protocol)),
            ("enforcement", text(&message.enforcement)),
            ("access", text(&message.access)),
            (
                "allow_encoded_slash",
                message.allow_encoded_slash.then_some(Value::Bool(true)),
            ),
            // A rule that allows nothing is a violation, as it is in a file.
            (
                "rules",
                list(
                    message
                        .rules
                        .into_iter()
                        .map(|rule| json!({ "allow": allow(rule.allow.unwrap_or_default()) })),
                ),
            ),
            (
                "deny_rules",
                list(
                    message
                        .deny_rules
                        .into_iter()
                        .map(|rule| request(&rule.method, &rule.path, rule.query)),
                ),
            ),
        ]),
    }
    fields(known)
}

/// Returns the part of an endpoint that this build lacks and that changes its meaning, if there is
/// one.
fn missing(endpoint: &NetworkEndpoint, has_middlewares: bool) -> Option<String> {
    let is_rpc = is_rpc(&endpoint.protocol);
    let allow_is_later = |rule: &L7Rule| {
        let Some(rule) = &rule.allow else {
            return false;
        };
        has_operation(&rule.operation_type, &rule.operation_name, &rule.fields)
            || !rule.params.is_empty() && !is_rpc
    };
    let deny_is_later = |rule: &L7DenyRule| {
        has_operation(&rule.operation_type, &rule.operation_name, &rule.fields)
            || !rule.params.is_empty() && !is_rpc
    };
    let has_commands = endpoint
        .rules
        .iter()
        .filter_map(|rule| rule.allow.as_ref())
        .any(|rule| !rule.command.is_empty())
        || endpoint
            .deny_rules
            .iter()
            .any(|rule| !rule.command.is_empty());
    if !endpoint.protocol.is_empty() && Protocol::parse(&endpoint.protocol).is_err() {
        return Some(format!("`protocol: {}`", printable(&endpoint.protocol)));
    }
    let fields = [
        (has_middlewares, "`network_middlewares`"),
        (
            !endpoint.path.is_empty() && !is_rpc && !endpoint.protocol.eq_ignore_ascii_case("rest"),
            "`path` without `protocol: rest`",
        ),
        (
            !endpoint.path.is_empty() && Glob::parse(&endpoint.path).is_err(),
            "a `path` that is not a glob",
        ),
        (
            !endpoint.persisted_queries.is_empty()
                || !endpoint.graphql_persisted_queries.is_empty(),
            "`persisted_queries`",
        ),
        (
            !endpoint.credential_signing.is_empty(),
            "`credential_signing`",
        ),
        (
            endpoint.mcp.is_some() && !endpoint.protocol.eq_ignore_ascii_case("mcp"),
            "`mcp`",
        ),
        (
            endpoint.rules.iter().any(allow_is_later)
                || endpoint.deny_rules.iter().any(deny_is_later),
            "a rule for operations",
        ),
        (has_commands, "a rule for commands"),
    ];
    fields
        .iter()
        .find(|(is_there, _)| *is_there)
        .map(|(_, what)| (*what).to_owned())
}

fn has_operation(kind: &str, name: &str, fields: &[String]) -> bool {
    !kind.is_empty() || !name.is_empty() || !fields.is_empty()
}

/// Returns the first characters of a gateway's word, for messages.
fn printable(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(32).collect()
}

fn ports(endpoint: &NetworkEndpoint) -> Vec<u32> {
    let mut ports: Vec<_> = endpoint
        .ports
        .iter()
        .copied()
        .chain([endpoint.port])
        .filter(|port| *port != 0)
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn allow(rule: L7Allow) -> Value {
    request(&rule.method, &rule.path, rule.query)
}

fn request(
    method: &str,
    path: &str,
    query: impl IntoIterator<Item = (String, L7QueryMatcher)>,
) -> Value {
    let query: Map<_, _> = query
        .into_iter()
        .map(|(key, one)| (key, matcher(one)))
        .collect();
    let query = Some(query)
        .filter(|query| !query.is_empty())
        .map(Value::Object);
    fields([
        ("method", text(method)),
        ("path", text(path)),
        ("query", query),
    ])
}

/// Returns true if `policy` is the same after it was converted to a message and back. Messages
/// cannot express everything that a file can.
#[must_use]
pub fn survives(policy: &Policy) -> bool {
    let sent = read(message(policy), &BTreeMap::new());
    yaml::policy_of_gateway(&sent.document).is_ok_and(|(back, _)| back == *policy)
}

/// Returns the encoded message of `policy`, for gateways in tests, which have message types of
/// their own.
#[must_use]
pub fn encoded(policy: &Policy) -> Vec<u8> {
    prost::Message::encode_to_vec(&message(policy))
}

/// Returns the message of `policy`.
pub(crate) fn message(policy: &Policy) -> SandboxPolicy {
    let run_as = policy.run_as();
    let identity =
        |identity: Option<&openshell_policy::process::Identity>| identity.map(ToString::to_string);
    let user = identity(run_as.user.as_ref());
    let group = identity(run_as.group.as_ref());
    let process = (user.is_some() || group.is_some()).then(|| ProcessPolicy {
        run_as_user: user.unwrap_or_default(),
        run_as_group: group.unwrap_or_default(),
    });
    let Filesystem {
        include_workdir,
        read_only,
        read_write,
        compatibility,
        ..
    } = policy.filesystem();
    let paths = |paths: &[openshell_policy::filesystem::GrantedPath]| {
        paths.iter().map(ToString::to_string).collect()
    };
    let compatibility = match compatibility {
        Compatibility::BestEffort => "best_effort",
        Compatibility::HardRequirement => "hard_requirement",
    };
    SandboxPolicy {
        version: 1,
        filesystem: Some(FilesystemPolicy {
            include_workdir: *include_workdir,
            read_only: paths(read_only),
            read_write: paths(read_write),
        }),
        landlock: Some(LandlockPolicy {
            compatibility: compatibility.to_owned(),
        }),
        process,
        network_policies: policy
            .network()
            .iter()
            .map(|(name, policy)| rule(name, policy))
            .collect(),
        ..SandboxPolicy::default()
    }
}

pub(super) fn rule(name: &PolicyName, policy: &NetworkPolicy) -> (String, NetworkPolicyRule) {
    let binary = |binary: &openshell_policy::network::binary::Binary| NetworkBinary {
        path: binary.to_string(),
        ..NetworkBinary::default()
    };
    let name = name.as_str().to_owned();
    let rule = NetworkPolicyRule {
        name: name.clone(),
        endpoints: policy.endpoints.iter().map(endpoint_message).collect(),
        binaries: policy.binaries.iter().map(binary).collect(),
    };
    (name, rule)
}

fn endpoint_message(endpoint: &Endpoint) -> NetworkEndpoint {
    let l7 = endpoint.l7();
    let protocol = match l7 {
        Some(l7) => l7.protocol.as_str(),
        None if endpoint.is_tcp() => "tcp",
        None => "",
    };
    let ports = endpoint.ports().iter().map(|port| u32::from(port.get()));
    let tls = endpoint.tls();
    let rules = l7.iter().flat_map(|l7| &l7.rules).map(|rule| L7Rule {
        allow: Some(allow_message(rule)),
    });
    let deny_rules = l7.iter().flat_map(|l7| &l7.deny_rules).map(|deny| {
        let L7Allow {
            method,
            path,
            query,
            ..
        } = allow_message(&deny.rule);
        L7DenyRule {
            method,
            path,
            query,
            ..L7DenyRule::default()
        }
    });
    let mut message = NetworkEndpoint {
        host: endpoint.host().map(ToString::to_string).unwrap_or_default(),
        ports: ports.collect(),
        path: endpoint.path().map_or("", Glob::as_str).to_owned(),
        protocol: protocol.to_owned(),
        tls: if tls == TlsMode::Skip && !endpoint.is_tcp() {
            "skip".to_owned()
        } else {
            String::new()
        },
        enforcement: l7.map_or("", |l7| l7.enforcement.as_str()).to_owned(),
        rules: rules.collect(),
        deny_rules: deny_rules.collect(),
        allowed_ips: endpoint
            .allowed_ips()
            .iter()
            .map(ToString::to_string)
            .collect(),
        allow_encoded_slash: endpoint.allow_encoded_slash(),
        ..NetworkEndpoint::default()
    };
    if let Some(l7) = l7 {
        put_rules(l7, &mut message);
    }
    message
}

fn allow_message(rule: &HttpRule) -> L7Allow {
    let matcher = |matcher: &QueryMatcher| match matcher.globs() {
        [one] => L7QueryMatcher {
            glob: one.as_str().to_owned(),
            any: Vec::new(),
        },
        several => L7QueryMatcher {
            glob: String::new(),
            any: several
                .iter()
                .map(|glob| glob.as_str().to_owned())
                .collect(),
        },
    };
    L7Allow {
        method: rule.method.as_str().to_owned(),
        path: rule.path.as_str().to_owned(),
        query: rule
            .query
            .iter()
            .map(|(key, one)| (key.clone(), matcher(one)))
            .collect(),
        ..L7Allow::default()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::{GatewayPolicy, message, yaml};
    use crate::proto::sandbox::v1::{
        McpOptions, NetworkBinary, NetworkCredentialBinding, NetworkEndpoint,
        NetworkMiddlewareConfig, NetworkPolicyRule, SandboxPolicy,
    };

    fn read(policy: SandboxPolicy) -> GatewayPolicy {
        super::decode(&policy.encode_to_vec()).unwrap()
    }

    #[test]
    fn a_policy_survives_the_way_to_the_gateway_and_back() {
        let document = r#"
filesystem_policy: {include_workdir: false, read_only: [/, /opt, /srv/x/], read_write: [/data]}
landlock: {compatibility: hard_requirement}
process: {run_as_user: "1000", run_as_group: users}
network_policies:
  api:
    endpoints:
      - {host: "*.api.test", ports: [443, 8443], protocol: rest, enforcement: enforce, allowed_ips: [10.0.0.0/8],
         rules: [{allow: {method: GET, path: "/a/**", query: {k: {any: ["1*", "2"]}, j: x}}}],
         deny_rules: [{method: "*", path: "/a/b"}], allow_encoded_slash: true, path: "/a/**"}
      - {host: db.test, port: 5432, protocol: tcp}
      - {host: raw.test, port: 1, tls: skip}
    binaries: [{path: /usr/bin/curl}, {path: /opt/**}]
"#;
        let (policy, _) = yaml::policy(document).unwrap();
        let (back, _) = yaml::policy_of_gateway(&read(message(&policy)).document).unwrap();
        assert_eq!(back, policy);
        // A final `/` says that a path may be missing.
        let paths = message(&policy).filesystem.unwrap().read_only;
        assert_eq!(paths, ["/", "/opt", "/srv/x/"]);
    }

    #[test]
    fn what_messages_cannot_say_does_not_survive() {
        let with = |binary: &str| {
            let text = format!(
                "network_policies: {{a: {{endpoints: [{{host: a.test, port: 1}}], binaries: \
                 [{{{binary}}}]}}}}"
            );
            yaml::policy(&text).unwrap().0
        };
        assert!(super::survives(&with("path: /bin/a")));
        assert!(!super::survives(&with("path: /bin/a, exact: true")));
    }

    #[test]
    fn an_empty_text_and_zero_mean_absent() {
        let read = read(SandboxPolicy::default());
        assert_eq!(
            (read.document.as_str(), read.bindings.len()),
            ("{\"network_policies\":{}}", 0)
        );
    }

    fn with(endpoint: NetworkEndpoint) -> SandboxPolicy {
        let endpoint = NetworkEndpoint {
            host: "a.test".to_owned(),
            port: 443,
            ..endpoint
        };
        let binaries = vec![NetworkBinary {
            path: "/bin/a".to_owned(),
            harness: true,
        }];
        let rule = NetworkPolicyRule {
            name: String::new(),
            endpoints: vec![endpoint],
            binaries,
        };
        SandboxPolicy {
            network_policies: [("a".to_owned(), rule)].into(),
            ..SandboxPolicy::default()
        }
    }

    #[test]
    fn an_endpoint_that_needs_what_this_build_lacks_is_kept_and_named() {
        let word = |word: &str| word.to_owned();
        let mut policies = vec![
            (
                with(NetworkEndpoint {
                    protocol: word("graphql"),
                    ..Default::default()
                }),
                "`protocol: graphql`",
            ),
            (
                with(NetworkEndpoint {
                    path: word("/x"),
                    protocol: word("sql"),
                    ..Default::default()
                }),
                "`path` without `protocol: rest`",
            ),
            (
                with(NetworkEndpoint {
                    mcp: Some(McpOptions::default()),
                    ..Default::default()
                }),
                "`mcp`",
            ),
            (
                with(NetworkEndpoint {
                    credential_signing: word("sigv4"),
                    ..Default::default()
                }),
                "`credential_signing`",
            ),
        ];
        let mut filtered = with(NetworkEndpoint::default());
        filtered
            .network_middlewares
            .insert(word("m"), NetworkMiddlewareConfig::default());
        policies.push((filtered, "`network_middlewares`"));
        for (policy, what) in policies {
            let (policy, warnings) = yaml::policy_of_gateway(&read(policy).document).unwrap();
            let endpoints = policy
                .network()
                .values()
                .flat_map(|policy| &policy.endpoints);
            assert_eq!(
                endpoints
                    .filter_map(|endpoint| endpoint.unsupported())
                    .collect::<Vec<_>>(),
                [what]
            );
            assert_eq!(warnings.len(), 1, "{what}");
            let document = read(with(NetworkEndpoint {
                protocol: word("graphql"),
                ..Default::default()
            }))
            .document;
            assert!(yaml::policy(&document).is_err(), "a file cannot say so");
        }
    }

    #[test]
    fn an_endpoint_may_name_the_provider_of_its_credentials() {
        let credential_binding = Some(NetworkCredentialBinding {
            provider: "github".to_owned(),
        });
        let read = read(with(NetworkEndpoint {
            credential_binding,
            ..Default::default()
        }));
        let [binding] = &read.bindings[..] else {
            panic!("{read:?}")
        };
        assert_eq!(
            (
                binding.provider.as_str(),
                binding.host.as_str(),
                &binding.ports[..]
            ),
            ("github", "a.test", &[443][..])
        );
        assert!(yaml::policy_of_gateway(&read.document).is_ok());
    }
}
