//! A policy as the data of the rules.

use std::collections::BTreeMap;

use openshell_policy::filesystem::{Compatibility, GrantedPath};
use openshell_policy::network::NetworkPolicy;
use openshell_policy::network::endpoint::{Endpoint, Protocol, TlsMode};
use openshell_policy::network::rule::{DenyRule, Glob, HttpRule};
use openshell_policy::policy::Policy;
use openshell_policy::process::Identity;
use serde_json::{Map, Value, json};

use crate::wire::http::target::{decoded, folded, without_case};

/// Builds the data of `policy`: ports as `ports`, presets expanded, absent fields left out, and the
/// targets of binaries that are symlinks, those of `links`, beside them.
#[must_use]
pub fn rego_data(policy: &Policy, links: &BTreeMap<String, String>) -> Value {
    let networks = policy
        .network()
        .iter()
        .map(|(name, policy)| (name.as_str().to_owned(), network(policy, links)));
    let mut data = static_data(policy);
    data["network_policies"] = networks.collect::<Map<_, _>>().into();
    data
}

/// The static parts of `policy`, which take effect at a start alone, in the form of a policy
/// document.
#[must_use]
pub fn static_data(policy: &Policy) -> Value {
    let filesystem = policy.filesystem();
    let paths = |paths: &[GrantedPath]| -> Value {
        paths.iter().map(|path| json!(path.to_string())).collect()
    };
    let compatibility = match filesystem.compatibility {
        Compatibility::BestEffort => "best_effort",
        Compatibility::HardRequirement => "hard_requirement",
    };
    let mut process = Map::new();
    let run_as = policy.run_as();
    for (key, named) in [
        ("run_as_user", &run_as.user),
        ("run_as_group", &run_as.group),
    ] {
        process.extend(named.iter().map(|named| (key.to_owned(), identity(named))));
    }
    if policy.permits_debugging() {
        process.insert("debug".to_owned(), json!(true));
    }
    let mut folders = json!({
        "include_workdir": filesystem.include_workdir,
        "read_only": paths(&filesystem.read_only),
        "read_write": paths(&filesystem.read_write),
    });
    for (key, listed) in [
        ("hidden", &filesystem.hidden),
        ("noexec", &filesystem.noexec),
    ] {
        if !listed.is_empty() {
            folders[key] = paths(listed);
        }
    }
    json!({
        "filesystem_policy": folders,
        "landlock": { "compatibility": compatibility },
        "process": process,
    })
}

fn identity(identity: &Identity) -> Value {
    match identity {
        Identity::Name(name) => json!(name),
        Identity::Id(id) => json!(id),
    }
}

fn network(policy: &NetworkPolicy, links: &BTreeMap<String, String>) -> Value {
    let binaries = policy.binaries.iter().flat_map(|binary| {
        let path = binary.to_string();
        let target = links.get(&path).cloned();
        let meant = [Some(path), target].into_iter().flatten();
        meant.map(|path| {
            if binary.exact {
                json!({ "path": path, "exact": true })
            } else {
                json!({ "path": path })
            }
        })
    });
    json!({
        "endpoints": policy.endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "binaries": binaries.collect::<Vec<_>>(),
    })
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| object.insert(key.to_owned(), value);
    if let Some(host) = endpoint.host() {
        set("host", json!(host.to_string()));
    }
    set(
        "ports",
        endpoint
            .ports()
            .iter()
            .map(|port| json!(port.get()))
            .collect(),
    );
    if endpoint.tls() == TlsMode::Skip {
        set("tls", json!("skip"));
    }
    if !endpoint.allowed_ips().is_empty() {
        set(
            "allowed_ips",
            endpoint
                .allowed_ips()
                .iter()
                .map(|range| json!(range.to_string()))
                .collect(),
        );
    }
    if !endpoint.resolve().is_empty() {
        set(
            "resolve",
            endpoint
                .resolve()
                .iter()
                .map(|pattern| json!(pattern.to_string()))
                .collect(),
        );
    }
    if endpoint.is_tcp() {
        set("protocol", json!(Protocol::Tcp.as_str()));
    }
    if endpoint.allow_encoded_slash() {
        set("allow_encoded_slash", json!(true));
    }
    if !endpoint.upgrades().is_empty() {
        set(
            "upgrades",
            endpoint
                .upgrades()
                .iter()
                .map(|upgrade| json!(upgrade.as_str()))
                .collect(),
        );
    }
    if endpoint.allows_leaks() {
        set("leaks", json!("allow"));
    }
    if let Some(l7) = endpoint.l7() {
        set("protocol", json!(l7.protocol.as_str()));
        set("enforcement", json!(l7.enforcement.as_str()));
        set(
            "rules",
            l7.rules
                .iter()
                .map(|rule| json!({ "allow": http_rule(rule) }))
                .collect(),
        );
        if !l7.deny_rules.is_empty() {
            set("deny_rules", l7.deny_rules.iter().map(deny_rule).collect());
        }
    }
    Value::Object(object)
}

fn deny_rule(deny: &DenyRule) -> Value {
    let mut object = http_rule(&deny.rule);
    let path = readable(deny.rule.path.as_str());
    object["path"] = json!(if deny.case_sensitive {
        path
    } else {
        without_case(&path)
    });
    if deny.case_sensitive {
        object["case_sensitive"] = json!(true);
    }
    object
}

/// Normalizes a deny rule's `pattern` for comparison with the readings of a path: escapes decoded,
/// repeated slashes folded. A decoded character is never a wildcard.
fn readable(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        let (before, escapes) = rest.split_at(at);
        text.push_str(before);
        // One UTF-8 character takes up to four escapes.
        let length = (1..=4).map(|count| 3 * count).find(|length| {
            escapes
                .get(..*length)
                .is_some_and(|escapes| !decoded(escapes).contains('%'))
        });
        let length = length.unwrap_or(1);
        let character = escapes.get(..length).unwrap_or("%");
        text.push_str(&if length > 1 {
            Glob::literal(&decoded(character))
        } else {
            character.to_owned()
        });
        rest = escapes.get(length..).unwrap_or_default();
    }
    folded(&(text + rest))
}

fn http_rule(rule: &HttpRule) -> Value {
    let mut object = json!({ "method": rule.method.as_str(), "path": rule.path.as_str() });
    if !rule.query.is_empty() {
        let matcher = |globs: &[_]| json!({ "any": globs });
        let globs = rule
            .query
            .iter()
            .map(|(key, matcher)| (key, matcher.globs().iter().map(|glob| glob.as_str())));
        let query: Map<_, _> = globs
            .map(|(key, globs)| (key.clone(), matcher(&globs.collect::<Vec<_>>())))
            .collect();
        object["query"] = Value::Object(query);
    }
    object
}
