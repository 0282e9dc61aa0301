//! Reader of network policies.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use crate::address::AddressRange;
use crate::approvals::HOST as OWN_HOST;
use crate::network::binary::{Binary, BinaryPattern};
use crate::network::endpoint::{Endpoint, EndpointParts, Enforcement, Protocol, UpgradeProtocol};
use crate::network::host::HostPattern;
use crate::network::preset::Access;
use crate::network::rule::{DenyRule, Glob, HttpRule, MethodPattern, QueryMatcher};
use crate::network::{NetworkPolicies, NetworkPolicy, PolicyName};
use crate::violation::{ViolationKind, WarningKind};
use crate::yaml::keys::Keys;
use crate::yaml::node::Value;
use crate::yaml::reader::{At, Fields, Reader};
use crate::yaml::rpc::rpc;

const ENDPOINT_KEYS: &[&str] = &[
    "host",
    "port",
    "ports",
    "path",
    "protocol",
    "enforcement",
    "tls",
    "access",
    "rules",
    "deny_rules",
    "mcp",
    "json_rpc",
    "allowed_ips",
    "resolve",
    "allow_encoded_slash",
    "upgrades",
    "leaks",
];

pub(super) fn policies(reader: &mut Reader, at: &At<'_>) -> NetworkPolicies {
    let mut policies = NetworkPolicies::new();
    for (key, at) in reader.entries(at).unwrap_or_default() {
        let name = reader.check(&at, PolicyName::parse(key));
        let policy = policy(reader, &at);
        policies.extend(name.zip(policy));
    }
    policies
}

fn policy(reader: &mut Reader, at: &At<'_>) -> Option<NetworkPolicy> {
    let mut fields = reader.mapping(at, &["name", "endpoints", "binaries"])?;
    // Only people read it.
    if let Some(at) = fields.take("name") {
        let _ = reader.text(&at, |_| Ok(()));
    }
    let items = fields
        .take("endpoints")
        .and_then(|at| reader.sequence(&at))
        .unwrap_or_default();
    let endpoints = items
        .iter()
        .filter_map(|item| endpoint(reader, item))
        .collect();
    let items = fields
        .take("binaries")
        .and_then(|at| reader.sequence(&at))
        .unwrap_or_default();
    let binaries = items
        .iter()
        .filter_map(|item| binary(reader, item))
        .collect();
    Some(NetworkPolicy {
        endpoints,
        binaries,
    })
}

fn binary(reader: &mut Reader, at: &At<'_>) -> Option<Binary> {
    // `harness` is an obsolete flag without effect.
    let mut fields = reader.mapping(at, &["path", "exact", "pinned", "harness"])?;
    let mut flag = |key: &str, default| {
        fields
            .take(key)
            .map_or(Some(default), |at| reader.boolean(&at))
    };
    let exact = flag("exact", false);
    let pinned = flag("pinned", true);
    let Some(path) = fields.take("path") else {
        reader.reject(at, ViolationKind::Missing("path"));
        return None;
    };
    Some(Binary {
        path: reader.text(&path, BinaryPattern::parse)?,
        exact: exact?,
        pinned: pinned?,
    })
}

/// Parses `allow`, the only handling of secrets in requests that an endpoint can name.
fn leaks(word: &str) -> Result<(), ViolationKind> {
    match word {
        "allow" => Ok(()),
        _ => Err(ViolationKind::UnknownWord {
            word: word.to_owned(),
            known: "allow",
        }),
    }
}

pub(super) fn endpoint(reader: &mut Reader, at: &At<'_>) -> Option<Endpoint> {
    let before = reader.violation_count();
    let of_gateway = [ENDPOINT_KEYS, &["unsupported"]].concat();
    let known = if reader.is_of_gateway {
        &of_gateway
    } else {
        ENDPOINT_KEYS
    };
    let mut keys = Keys::new(reader.mapping(at, known)?);
    let parts = endpoint_parts(reader, &mut keys);
    warn_of(reader, at, &parts);
    let (endpoint, violations) = match Endpoint::new(parts) {
        Ok(endpoint) => (Some(endpoint), Vec::new()),
        Err(violations) => (None, violations),
    };
    for violation in keys.contradictions(violations) {
        reader.reject(at, violation);
    }
    endpoint.filter(|_| reader.violation_count() == before)
}

/// Parses the host of an endpoint, which is not one of the sandbox's own.
fn host(text: &str) -> Result<HostPattern, ViolationKind> {
    let host = HostPattern::parse(text)?;
    if host.to_string() == OWN_HOST {
        return Err(ViolationKind::OwnHost(OWN_HOST));
    }
    Ok(host)
}

/// Reads what is written of an endpoint.
fn endpoint_parts(reader: &mut Reader, keys: &mut Keys<'_>) -> EndpointParts {
    let mut parts = EndpointParts {
        host: keys.read(reader, "host", |reader, at| reader.text(at, host)),
        port: keys.read(reader, "port", port),
        ports: keys.read(reader, "ports", |reader, at| {
            let items = reader.sequence(at)?;
            Some(items.iter().filter_map(|item| port(reader, item)).collect())
        }),
        protocol: keys.read(reader, "protocol", |reader, at| {
            reader.text(at, Protocol::parse)
        }),
        enforcement: keys.read(reader, "enforcement", |reader, at| {
            reader.text(at, Enforcement::parse)
        }),
        access: keys.read(reader, "access", |reader, at| {
            reader.text(at, Access::parse)
        }),
        allow_encoded_slash: keys
            .read(reader, "allow_encoded_slash", Reader::boolean)
            .unwrap_or(false),
        ..EndpointParts::default()
    };
    parts.path = keys.read(reader, "path", |reader, at| reader.text(at, Glob::parse));
    parts.upgrades = keys.read(reader, "upgrades", |reader, at| {
        Some(
            reader
                .texts(at, UpgradeProtocol::parse)
                .into_iter()
                .collect(),
        )
    });
    parts.allows_leaks = keys
        .read(reader, "leaks", |reader, at| reader.text(at, leaks))
        .is_some();
    parts.tls_skip = keys
        .read(reader, "tls", |reader, at| Some(tls_skip(reader, at)))
        .unwrap_or(false);
    parts.rpc = rpc(reader, keys, parts.protocol);
    if parts.rpc.is_none() {
        parts.rules = keys.read(reader, "rules", |reader, at| rules(reader, at, allow_rule));
        parts.deny_rules = keys.read(reader, "deny_rules", |reader, at| {
            rules(reader, at, deny_rule)
        });
    }
    parts.allowed_ips = keys
        .read(reader, "allowed_ips", |reader, at| Some(ranges(reader, at)))
        .unwrap_or_default();
    parts.resolve = keys
        .read(reader, "resolve", |reader, at| {
            Some(reader.texts(at, HostPattern::parse))
        })
        .unwrap_or_default();
    parts.unsupported = keys.read(reader, "unsupported", |reader, at| {
        reader.text(at, |text| Ok(text.to_owned()))
    });
    parts
}

/// Warns of values that may not be intended.
fn warn_of(reader: &mut Reader, at: &At<'_>, parts: &EndpointParts) {
    if let Some(what) = &parts.unsupported {
        reader.warn(at, WarningKind::Unsupported(what.clone()));
    }
    if parts.protocol == Some(Protocol::Sql) {
        reader.warn(at, WarningKind::SqlNotInspected);
    }
    if parts.host.is_none() && parts.resolve.is_empty() {
        reader.warn(at, WarningKind::NamesNotResolved);
    }
    if parts
        .protocol
        .is_some_and(|protocol| protocol != Protocol::Tcp)
        && parts.enforcement.is_none()
    {
        let host = parts
            .host
            .as_ref()
            .map_or_else(|| "any host".to_owned(), ToString::to_string);
        let ports = parts.port.iter().chain(parts.ports.iter().flatten());
        let ports: Vec<_> = ports.map(ToString::to_string).collect();
        reader.warn(
            at,
            WarningKind::EnforcementDefaults(format!("{host}:{}", ports.join(","))),
        );
    }
}

fn port(reader: &mut Reader, at: &At<'_>) -> Option<NonZeroU16> {
    let port = match at.node.value() {
        Value::Integer(number) => u16::try_from(*number).ok().and_then(NonZeroU16::new),
        _ => None,
    };
    reader.check(at, port.ok_or(ViolationKind::PortInvalid))
}

fn tls_skip(reader: &mut Reader, at: &At<'_>) -> bool {
    let word = reader.text(at, |word| match word {
        "skip" | "terminate" | "passthrough" => Ok(word.to_owned()),
        _ => Err(ViolationKind::UnknownWord {
            word: word.to_owned(),
            known: "skip (or leave `tls` out)",
        }),
    });
    match word {
        Some(word) if word != "skip" => {
            reader.warn(at, WarningKind::TlsWordDeprecated(word));
            false
        }
        word => word.is_some(),
    }
}

fn ranges(reader: &mut Reader, at: &At<'_>) -> Vec<AddressRange> {
    let mut ranges = Vec::new();
    for item in reader.sequence(at).unwrap_or_default() {
        let Some(range) = reader.text(&item, AddressRange::parse) else {
            continue;
        };
        if range.is_broad() {
            reader.warn(&item, WarningKind::BroadRange(range.to_string()));
        }
        ranges.push(range);
    }
    ranges
}

fn rules<R>(
    reader: &mut Reader,
    at: &At<'_>,
    rule: fn(&mut Reader, &At<'_>) -> Option<R>,
) -> Option<Vec<R>> {
    let items = reader.sequence(at)?;
    Some(items.iter().filter_map(|item| rule(reader, item)).collect())
}

fn allow_rule(reader: &mut Reader, at: &At<'_>) -> Option<HttpRule> {
    let Some(allow) = reader.mapping(at, &["allow"])?.take("allow") else {
        reader.reject(at, ViolationKind::Missing("allow"));
        return None;
    };
    let mut fields = reader.mapping(&allow, RULE_KEYS)?;
    http_rule(reader, &allow, &mut fields)
}

fn deny_rule(reader: &mut Reader, at: &At<'_>) -> Option<DenyRule> {
    let mut fields = reader.mapping(at, &[RULE_KEYS, &["case_sensitive"]].concat())?;
    let case_sensitive = fields
        .take("case_sensitive")
        .and_then(|at| reader.boolean(&at))
        .unwrap_or(false);
    Some(DenyRule {
        rule: http_rule(reader, at, &mut fields)?,
        case_sensitive,
    })
}

const RULE_KEYS: &[&str] = &["method", "path", "query"];

fn http_rule(reader: &mut Reader, at: &At<'_>, fields: &mut Fields<'_>) -> Option<HttpRule> {
    let mut required = |reader: &mut Reader, key| {
        let field = fields.take(key);
        if field.is_none() {
            reader.reject(at, ViolationKind::Missing(key));
        }
        field
    };
    let method = required(reader, "method").and_then(|at| {
        let method = reader.text(&at, MethodPattern::parse)?;
        if !method.is_known() {
            reader.warn(&at, WarningKind::UnknownMethod(method.as_str().to_owned()));
        }
        Some(method)
    });
    let path = required(reader, "path").and_then(|at| reader.text(&at, Glob::parse));
    let query = fields
        .take("query")
        .map(|at| query(reader, &at))
        .unwrap_or_default();
    Some(HttpRule {
        method: method?,
        path: path?,
        query,
    })
}

fn query(reader: &mut Reader, at: &At<'_>) -> BTreeMap<String, QueryMatcher> {
    if !matches!(at.node.value(), Value::Mapping(_)) {
        reader.reject(at, ViolationKind::QueryNotMap);
        return BTreeMap::new();
    }
    let entries = reader.entries(at).unwrap_or_default();
    entries
        .iter()
        .filter_map(|(key, at)| Some(((*key).to_owned(), matcher(reader, at)?)))
        .collect()
}

fn matcher(reader: &mut Reader, at: &At<'_>) -> Option<QueryMatcher> {
    if matches!(at.node.value(), Value::Text(_)) {
        let glob = reader.text(at, Glob::parse)?;
        return reader.check(at, QueryMatcher::any(vec![glob]));
    }
    if !matches!(at.node.value(), Value::Mapping(_)) {
        reader.reject(at, ViolationKind::MatcherShape);
        return None;
    }
    let mut fields = reader.mapping(at, &["glob", "any"])?;
    match (fields.take("glob"), fields.take("any")) {
        (Some(_), Some(_)) => reader.check(at, Err(ViolationKind::MatcherGlobAndAny)),
        (None, None) => reader.check(at, Err(ViolationKind::MatcherShape)),
        (Some(glob), None) => {
            let glob = reader.text(&glob, Glob::parse)?;
            reader.check(at, QueryMatcher::any(vec![glob]))
        }
        (None, Some(any)) => {
            let globs = reader.texts(&any, Glob::parse);
            reader.check(&any, QueryMatcher::any(globs))
        }
    }
}
