//! What programs inside may read of a policy.

use serde_json::Value;

use crate::policy::Policy;
use crate::yaml;

/// Returns `policy` as a YAML text, without what programs inside may not know: what is hidden from
/// them, addresses that hosts may have, and how a person is asked.
///
/// # Errors
/// Says why the text cannot be written.
pub fn outline(policy: &Policy) -> Result<String, String> {
    let mut document = serde_json::to_value(policy).map_err(|error| error.to_string())?;
    remove(document.get_mut("filesystem_policy"), "hidden");
    let policies = document.get_mut("network_policies");
    for policy in policies
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        let endpoints = policy.1.get_mut("endpoints");
        for endpoint in endpoints
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            remove(Some(endpoint), "allowed_ips");
        }
    }
    // JSON is YAML, which is written anew.
    yaml::merged(&[&document.to_string()]).map_err(|error| error.to_string())
}

fn remove(object: Option<&mut Value>, key: &str) {
    if let Some(object) = object.and_then(Value::as_object_mut) {
        object.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::outline;
    use crate::yaml;

    #[test]
    fn a_policy_is_shown_without_what_is_kept_from_programs() {
        let text = "
            filesystem_policy: {read_only: [/srv], hidden: [/srv/secret]}
            approvals: {hold: 60s}
            network_policies:
              hidden: {endpoints: [{host: a.test, port: 443, allowed_ips: [10.1.2.0/24]}],
                binaries: [{path: /x}]}";
        let (policy, _) = yaml::policy(text).unwrap();
        let shown = outline(&policy).unwrap();
        for kept in ["secret", "10.1.2.0", "approvals", "hold"] {
            assert!(!shown.contains(kept), "{kept}: {shown}");
        }
        for told in ["/srv", "hidden", "a.test", "443", "/x"] {
            assert!(shown.contains(told), "{told}: {shown}");
        }
    }
}
