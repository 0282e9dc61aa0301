//! The text of a policy, with a comment for each part.

use openshell_events::text::printable;
use openshell_sources::policy::presets::PresetEntry;
use openshell_sources::policy::schema::with_schema;

/// Longest line of a comment, in characters.
const WIDTH: usize = 100;

/// What the parts about files mean: the line of each, and the comment above it.
const FILE_PARTS: &[(&str, &str)] = &[
    (
        "filesystem_policy:",
        "Files. System folders such as /usr can be read; what is not listed here does not exist \
         inside. A path that ends with / or * may be missing. $WORKDIR is the folder in which you \
         start the sandbox, ~ the home of its user.",
    ),
    ("  read_only:", "The command can read and execute these."),
    (
        "  read_write:",
        "The command can also write these. Git hooks, and settings that editors and shells \
         execute, stay read-only.",
    ),
    (
        "  hidden:",
        "The command cannot see these. `**/` means: in each folder above, at any depth; of a path \
         with `*`, only in $WORKDIR.",
    ),
];

/// The same of the part about connections.
const NETWORK: (&str, &str) = (
    "network_policies:",
    "Connections. A program reaches a host only if one policy lists both; the end of a run names \
     what was refused, and the line to add. Start with --watch to apply a change during a run.",
);

/// The line of the network policy that flags make, and the one in a file.
const FLAGS: &str = "  command-line:";
const HOSTS: &str = "  hosts:";

/// What that policy is for.
const HOSTS_COMMENT: &str = "What every program may reach. `access: read-only` permits GET, HEAD \
                             and OPTIONS; without `protocol`, any request.";

/// Returns `policy`, a policy as the program writes it, with comments. `run` is the command line
/// that uses it, and `presets` say what their policies are for.
pub(super) fn commented(policy: &str, run: &str, presets: &[PresetEntry]) -> String {
    let mut text = String::new();
    text.push_str("# Written by `openshell-sandbox init`; change it as you like.\n");
    text.push_str(&format!("# {}\n", printable(run)));
    // The name of the hosts of flags, unless a preset has it.
    let hosts = if policy.contains("\n  hosts:\n") {
        FLAGS
    } else {
        HOSTS
    };
    let mut is_network = false;
    for line in policy.lines() {
        let line = if line == FLAGS { hosts } else { line };
        is_network |= line.starts_with(NETWORK.0);
        let comment = if !is_network {
            let part = FILE_PARTS.iter().find(|(part, _)| line.starts_with(part));
            part.map(|(_, comment)| *comment)
        } else if line.starts_with(NETWORK.0) {
            Some(NETWORK.1)
        } else if line == hosts {
            Some(HOSTS_COMMENT)
        } else {
            let name = line
                .strip_prefix("  ")
                .and_then(|line| line.strip_suffix(':'));
            let preset = presets
                .iter()
                .find(|preset| Some(preset.name.as_str()) == name);
            preset.map(|preset| preset.purpose.as_str())
        };
        if let Some(comment) = comment {
            let indent = line.len() - line.trim_start().len();
            text.push_str(&wrapped(comment, indent));
        }
        text.push_str(line);
        text.push('\n');
    }
    with_schema(&text)
}

/// Returns lines of a comment that are indented by `indent` blanks.
fn wrapped(comment: &str, indent: usize) -> String {
    let start = format!("{:indent$}#", "");
    let mut text = String::new();
    let mut line = start.clone();
    for word in comment.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line != start {
            text.push_str(&line);
            text.push('\n');
            line.clone_from(&start);
        }
        line.push(' ');
        line.push_str(word);
    }
    text + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn comments_are_wrapped_between_words() {
        let comment = "word ".repeat(40);
        let text = wrapped(&comment, 2);
        assert!(
            text.lines()
                .all(|line| line.starts_with("  # word") && line.len() <= 100)
        );
        assert_eq!(text.matches("word").count(), 40);
        assert_eq!(
            wrapped(&"w".repeat(200), 0),
            format!("# {}\n", "w".repeat(200))
        );
    }
}
