//! Warnings about credentials that no policy allows to be sent.

use openshell_policy::credential::CredentialSpec;
use openshell_policy::policy::Policy;

/// Returns a line for each bound credential, unless one of `policies` permits one of its hosts.
pub fn unused(specs: &[CredentialSpec], policies: &[&Policy]) -> Vec<String> {
    let endpoints = || {
        policies
            .iter()
            .flat_map(|policy| policy.network().values())
            .flat_map(|policy| &policy.endpoints)
    };
    let mut lines = Vec::new();
    for spec in specs {
        let Some(hosts) = &spec.binding.hosts else {
            continue;
        };
        if !hosts
            .iter()
            .any(|host| endpoints().any(|endpoint| host.meets(endpoint)))
        {
            let hosts: Vec<_> = hosts.iter().map(ToString::to_string).collect();
            let name = &spec.name;
            let hosts = hosts.join(", ");
            lines.push(format!(
                "{name}: it is bound to {hosts}, and no endpoint of the policy permits that, so it \
                 is never sent"
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use openshell_policy::yaml;

    use super::unused;

    #[test]
    fn a_credential_is_named_if_no_endpoint_permits_any_of_its_hosts() {
        let credentials = "credentials:
  A: {env: A, hosts: [api.test]}
  B: {env: B, hosts: [\"api.test:8443\", other.test]}
  C: {env: C, hosts: [\"*.apps.test\"]}
  D: {env: D, hosts: [\"*.none.test\"]}
  E: {env: E, hosts: [api.apps.test]}
  F: {env: F}
";
        let (specs, _) = yaml::credentials(credentials, |_| false).unwrap();
        let endpoints = "{host: api.test, port: 443}, {host: \"*.apps.test\", port: 443}";
        let policy = format!(
            "network_policies: {{a: {{endpoints: [{endpoints}], binaries: [{{path: /x}}]}}}}"
        );
        let (policy, _) = yaml::policy(&policy).unwrap();
        let expected = "B: it is bound to api.test:8443, other.test:443, and no endpoint of the \
                        policy permits that, so it is never sent";
        // Two wildcards may have a host in common.
        assert_eq!(unused(&specs, &[&policy]), [expected]);
        assert_eq!(unused(&specs, &[]).len(), 5);
    }
}
