//! Conversion of a policy to the data of the rules.

use std::collections::BTreeMap;

use openshell_policy::network::endpoint::Endpoint;
use openshell_policy::network::rpc::RpcRule;
use openshell_policy::network::rpc::glob::Effect;
use openshell_policy::network::rule::Glob;
use openshell_policy::policy::Policy;
use serde_json::Value;

use crate::decide::engine::EngineError;
use crate::decide::message::rpc::conditions;
use crate::wire::http::target::{decoded, folded, without_case};

/// Builds the data of `policy` from its document. A binary that is a symlink in `links` gets a
/// second entry for the link's target, paths of deny rules are written in the form of the readings
/// with which they are compared, and rules with conditions on arguments get the names of these.
///
/// # Errors
/// No error occurs for a valid policy.
pub fn rego_data(policy: &Policy, links: &BTreeMap<String, String>) -> Result<Value, EngineError> {
    let mut data =
        serde_json::to_value(policy).map_err(|error| EngineError::Data(error.to_string()))?;
    for (name, typed) in policy.network() {
        let policies = data.get_mut("network_policies");
        let Some(policy) = policies.and_then(|policies| policies.get_mut(name.as_str())) else {
            continue;
        };
        if let Some(binaries) = list(policy, "binaries") {
            add_targets(binaries, links);
        }
        let endpoints = list(policy, "endpoints").into_iter().flatten();
        for (endpoint, typed) in endpoints.zip(&typed.endpoints) {
            for rule in list(endpoint, "deny_rules").into_iter().flatten() {
                make_readable(rule);
            }
            name_conditions(endpoint, typed);
        }
    }
    Ok(data)
}

/// The key of the name of a rule's conditions.
const NAME: &str = "conditions";

/// Adds the names of the conditions to the rules of `endpoint`.
fn name_conditions(endpoint: &mut Value, typed: &Endpoint) {
    let Some(rpc) = typed.l7().and_then(|l7| l7.rpc.as_ref()) else {
        return;
    };
    let add = |rule: &mut Value, typed: &RpcRule, effect: Effect| {
        if let Some(name) = conditions::name(typed, effect) {
            rule[NAME] = name.into();
        }
    };
    let allowing = list(endpoint, "rules").into_iter().flatten();
    for (rule, typed) in allowing.zip(rpc.rules.iter().flatten()) {
        add(&mut rule["allow"], typed, Effect::Allow);
    }
    let denying = list(endpoint, "deny_rules").into_iter().flatten();
    for (rule, typed) in denying.zip(&rpc.deny_rules) {
        add(rule, typed, Effect::Deny);
    }
}

/// Returns the document of `endpoints`, which rules have copied from their data.
///
/// # Errors
/// Fails if they have no form as a document.
pub(super) fn without_names(endpoints: &regorus::Value) -> Result<String, EngineError> {
    let document = serde_json::to_value(endpoints);
    let mut document = document.map_err(|error| EngineError::Evaluate(error.to_string()))?;
    for endpoint in document.as_array_mut().into_iter().flatten() {
        for rule in list(endpoint, "rules").into_iter().flatten() {
            remove_name(rule.get_mut("allow"));
        }
        for rule in list(endpoint, "deny_rules").into_iter().flatten() {
            remove_name(Some(rule));
        }
    }
    Ok(document.to_string())
}

fn remove_name(rule: Option<&mut Value>) {
    if let Some(rule) = rule.and_then(Value::as_object_mut) {
        rule.remove(NAME);
    }
}

/// Returns the list at `key` of `object`, if there is one.
fn list<'v>(object: &'v mut Value, key: &str) -> Option<&'v mut Vec<Value>> {
    object.get_mut(key)?.as_array_mut()
}

/// Adds an entry to `binaries` for the target of each symlink.
fn add_targets(binaries: &mut Vec<Value>, links: &BTreeMap<String, String>) {
    for index in 0..binaries.len() {
        let Some(binary) = binaries.get(index) else {
            return;
        };
        let path = binary.get("path").and_then(Value::as_str);
        if let Some(target) = path.and_then(|path| links.get(path)) {
            let mut other = binary.clone();
            other["path"] = target.as_str().into();
            binaries.push(other);
        }
    }
}

/// Writes the path of a deny `rule` in the form in which readings of paths are written.
fn make_readable(rule: &mut Value) {
    let is_case_sensitive = rule.get("case_sensitive") == Some(&Value::Bool(true));
    if let Some(Value::String(path)) = rule.get_mut("path") {
        let pattern = readable(path);
        *path = if is_case_sensitive {
            pattern
        } else {
            without_case(&pattern)
        };
    }
}

/// Normalizes the `pattern` of a deny rule or an endpoint for comparison with the readings of a path: decodes escapes
/// and folds repeated slashes. A decoded character is never a wildcard.
pub(super) fn readable(pattern: &str) -> String {
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
