//! Presets of package registries. Each client has its own setting for the registry's host, so the
//! preset is made on the machine: the client is asked for a package in an observed run.

use std::collections::BTreeSet;

use openshell_policy::network::endpoint::Endpoint;
use openshell_policy::policy::Policy;

/// A recipe for a preset.
#[derive(Debug)]
pub struct Recipe {
    /// The name of the preset.
    pub name: &'static str,
    /// The name of the client, for messages.
    pub client: &'static str,
    /// The shell script that makes the client download something small, run in an empty folder.
    pub script: &'static str,
    /// The preset, in which one endpoint stands for each registry.
    policy: &'static str,
}

macro_rules! recipe {
    ($name:literal, $client:literal) => {
        Recipe {
            name: $name,
            client: $client,
            script: include_str!(concat!("../../../../data/registries/", $name, ".sh")),
            policy: include_str!(concat!("../../../../data/registries/", $name, ".yaml")),
        }
    };
}

/// All recipes.
pub static RECIPES: &[Recipe] = &[
    recipe!("apt", "apt-get"),
    recipe!("go", "go"),
    recipe!("java", "mvn"),
    recipe!("node", "npm"),
    recipe!("python", "pip or uv"),
    recipe!("rust", "cargo"),
];

/// The text that stands for a registry in a recipe's policy.
const REGISTRY: &str = "$REGISTRY";

/// Returns the recipe for the preset `name`.
pub fn recipe(name: &str) -> Option<&'static Recipe> {
    RECIPES.iter().find(|recipe| recipe.name == name)
}

impl Recipe {
    /// Returns a line about the preset.
    pub fn purpose(&self) -> &'static str {
        purpose(self.policy)
    }

    /// Returns the policy for the run in which the client is asked. The client may read what the
    /// preset grants.
    pub fn policy_to_ask(&self) -> String {
        let readable = self
            .policy
            .lines()
            .find(|line| line.starts_with("  read_only:"))
            .unwrap_or_default();
        format!("filesystem_policy:\n  include_workdir: false\n{readable}\n")
    }

    /// Returns the preset for the registries that the policy of an observed run names, and a line
    /// about each registry; `None` if it names none.
    pub fn preset(&self, observed: &Policy) -> Option<(String, Vec<String>)> {
        let registries: BTreeSet<_> = endpoints(observed).filter_map(registry).flatten().collect();
        if registries.is_empty() {
            return None;
        }
        let (lines, written): (Vec<_>, Vec<_>) = registries.into_iter().unzip();
        let Self {
            name,
            client,
            policy,
            ..
        } = self;
        let mut text = policy.lines().next()?.to_owned();
        text.push_str(&format!(
            "\n# Made by `openshell-sandbox presets make {name}`, from what {client} asked for, \
             not reviewed: look at each endpoint.\n"
        ));
        for line in policy.lines().skip(1) {
            let lines = if line.contains(REGISTRY) {
                written
                    .iter()
                    .map(|registry| line.replace(REGISTRY, registry))
                    .collect()
            } else {
                vec![line.to_owned()]
            };
            for line in lines.iter() {
                text.extend([line, "\n"]);
            }
        }
        Some((text, lines))
    }
}

/// Returns the comment at the beginning of a preset.
pub(super) fn purpose(text: &str) -> &str {
    text.lines()
        .next()
        .and_then(|line| line.strip_prefix("# "))
        .unwrap_or_default()
}

fn endpoints(policy: &Policy) -> impl Iterator<Item = &Endpoint> {
    policy
        .network()
        .values()
        .flat_map(|network| &network.endpoints)
}

/// Returns, for each port of an endpoint with one host, a line about it and the beginning of the
/// endpoint in YAML.
fn registry(endpoint: &Endpoint) -> Option<Vec<(String, String)>> {
    let host = endpoint
        .host()
        .filter(|host| !host.to_string().contains('*'))?
        .to_string();
    let addresses: Vec<_> = endpoint
        .allowed_ips()
        .iter()
        .map(ToString::to_string)
        .collect();
    let mut internal = String::new();
    let mut listed = String::new();
    if !addresses.is_empty() {
        internal = format!(" at the internal address {}", addresses.join(", "));
        listed = format!(", allowed_ips: [\"{}\"]", addresses.join("\", \""));
    }
    let of_port = |port| {
        (
            format!("{host}:{port}{internal}"),
            format!("host: \"{host}\", port: {port}{listed}"),
        )
    };
    Some(endpoint.ports().iter().map(of_port).collect())
}

#[cfg(test)]
mod tests {
    use openshell_policy::yaml;

    use super::{RECIPES, endpoints};

    #[test]
    fn every_recipe_makes_a_valid_preset_with_all_that_was_asked() {
        let observed = "network_policies: {pip: {endpoints: [{host: index.test, port: 443, \
                        allowed_ips: [10.0.0.1]}, {host: files.test, ports: [80, 443]}, {host: \
                        '*.wild.test', port: 443}], binaries: [{path: /usr/bin/python3}]}}";
        let (observed, _) = yaml::policy(observed).unwrap();
        let nothing = yaml::policy("network_policies: {}").unwrap().0;
        for recipe in RECIPES {
            let name = recipe.name;
            let purpose = recipe.purpose();
            assert!(purpose.ends_with('.'), "{name}: {purpose}");
            let (text, lines) = recipe.preset(&observed).unwrap();
            let expected = [
                "files.test:443",
                "files.test:80",
                "index.test:443 at the internal address 10.0.0.1",
            ];
            assert_eq!(lines, expected, "{name}");
            let (policy, warnings) =
                yaml::policy(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
            assert!(warnings.is_empty(), "{name}: {warnings:?}");
            assert_eq!(text.matches("10.0.0.1").count(), 1, "{text}");
            assert!(text.starts_with("# "), "{text}");
            assert_eq!(endpoints(&policy).count(), 3, "{text}");
            assert_eq!(recipe.preset(&nothing), None, "{name}");
            let (asking, _) = yaml::policy(&recipe.policy_to_ask()).unwrap();
            assert_eq!(
                asking.filesystem().read_only,
                policy.filesystem().read_only,
                "{name}"
            );
        }
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/registries");
        assert_eq!(
            std::fs::read_dir(folder).unwrap().count(),
            2 * RECIPES.len()
        );
    }
}
