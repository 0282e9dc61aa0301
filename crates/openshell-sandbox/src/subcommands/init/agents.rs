//! The agents that `init` knows.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The answer and the value of `--agent` for a command that is no known agent.
pub(super) const NO_AGENT: &str = "none";

/// An agent.
pub(super) struct Agent {
    /// Its name, which is also that of its preset.
    pub(super) name: &'static str,
    /// The program.
    program: &'static str,
    /// How it is started in a sandbox.
    pub(super) command: &'static str,
    /// Another preset that it needs.
    more: Option<&'static str>,
}

/// All agents, the most used first.
pub(super) const AGENTS: &[Agent] = &[
    Agent {
        name: "claude-code",
        program: "claude",
        command: "claude",
        more: None,
    },
    Agent {
        name: "codex",
        program: "codex",
        command: "codex --no-daemon --dangerously-bypass-approvals-and-sandbox",
        more: None,
    },
    Agent {
        name: "opencode",
        program: "opencode",
        command: "opencode",
        more: Some("models"),
    },
    Agent {
        name: "gemini",
        program: "gemini",
        command: "gemini",
        more: None,
    },
    Agent {
        name: "copilot",
        program: "copilot",
        command: "copilot",
        more: None,
    },
    Agent {
        name: "aider",
        program: "aider",
        command: "aider",
        more: None,
    },
];

impl Agent {
    /// Returns the names of the presets that it needs.
    pub(super) fn presets(&self) -> Vec<String> {
        [Some(self.name), self.more]
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect()
    }
}

/// Returns the values of `--agent`.
pub(super) fn names() -> Vec<&'static str> {
    let names = AGENTS.iter().map(|agent| agent.name);
    names.chain([NO_AGENT]).collect()
}

/// Returns the agent of this name.
pub(super) fn find(name: &str) -> Option<&'static Agent> {
    AGENTS.iter().find(|agent| agent.name == name)
}

/// Returns the name of the first agent that is in a folder of `path`, the variable PATH.
pub(super) fn installed(path: &std::ffi::OsStr) -> Option<&'static str> {
    let is_program = |file: &Path| {
        let data = std::fs::metadata(file);
        data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    let is_installed = |agent: &&Agent| {
        std::env::split_paths(path).any(|folder| is_program(&folder.join(agent.program)))
    };
    AGENTS.iter().find(is_installed).map(|agent| agent.name)
}

#[cfg(test)]
mod tests {
    use super::{AGENTS, installed};

    #[test]
    fn each_agent_has_a_preset() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/presets");
        for preset in AGENTS.iter().flat_map(super::Agent::presets) {
            assert!(folder.join(format!("{preset}.yaml")).exists(), "{preset}");
        }
    }

    #[test]
    fn an_agent_is_installed_if_a_folder_of_path_has_its_program() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().as_os_str();
        std::fs::write(folder.path().join("codex"), "").unwrap();
        assert_eq!(installed(path), None);
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path().join("codex"), mode).unwrap();
        assert_eq!(installed(path), Some("codex"));
    }
}
