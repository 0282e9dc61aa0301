//! The schema that an editor needs to complete and check a policy.

use std::path::Path;

/// Where the package puts the schema of policies.
const SCHEMA: &str = "/usr/share/doc/openshell-sandbox/data/schema/policy.schema.json";

/// The start of the comment that names a schema to the YAML language server.
const NAMES_SCHEMA: &str = "# yaml-language-server: $schema=";

/// Returns `policy`, a text that begins with a comment, with a second line that names the schema,
/// if this machine has it.
#[must_use]
pub fn with_schema(policy: &str) -> String {
    let schema = Some(SCHEMA).filter(|schema| Path::new(schema).exists());
    naming(policy, schema)
}

fn naming(policy: &str, schema: Option<&str>) -> String {
    let mut lines = policy.split_inclusive('\n');
    let mut text = lines.next().unwrap_or_default().to_owned();
    if let Some(schema) = schema {
        text.push_str(&format!("{NAMES_SCHEMA}{schema}\n"));
    }
    // A path from another place.
    text.extend(lines.filter(|line| !line.starts_with(NAMES_SCHEMA)));
    text
}

#[cfg(test)]
mod tests {
    use super::naming;

    #[test]
    fn the_schema_is_named_once_behind_the_first_line_where_the_machine_has_it() {
        let policy = "# One.\n# yaml-language-server: $schema=../a.json\nnetwork_policies: {}\n";
        assert_eq!(naming(policy, None), "# One.\nnetwork_policies: {}\n");
        assert_eq!(
            naming(policy, Some("/b.json")),
            "# One.\n# yaml-language-server: $schema=/b.json\nnetwork_policies: {}\n"
        );
    }
}
