//! What git in every repository depends on: the configuration of who uses it outside, the caller.

use std::path::PathBuf;

use openshell_supervisor::environment::Environment;
use rustix::fs::Access;
use rustix::io::Errno;

use super::git_settings::{GitSettings, expanded};

/// Pairs of key and value in the environment that are looked at.
const PAIRS: usize = 1000;

/// The caller's use of git.
#[derive(Debug, Default)]
pub(crate) struct GitUse {
    /// True if the configuration of repositories is kept.
    pub(crate) has_config: bool,
    pub(crate) home: Option<PathBuf>,
    /// Values of `core.hooksPath` in the caller's and the system's configuration.
    pub(crate) hooks: Vec<PathBuf>,
    /// Files that these include.
    pub(crate) included: Vec<PathBuf>,
}

impl GitUse {
    /// Reads the configuration that the variables of `environment` lead to (git(1), ENVIRONMENT VARIABLES). To be called as the caller.
    ///
    /// # Errors
    /// In words: it cannot be read or understood.
    pub(crate) fn read(has_config: bool, environment: &Environment) -> Result<Self, String> {
        let path = |name: &str| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = path("HOME");
        let of_xdg = path("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
        let of_home =
            [of_xdg.map(|folder| folder.join("git/config")), home.as_ref().map(|home| home.join(".gitconfig"))];
        let system = path("GIT_CONFIG_SYSTEM").unwrap_or_else(|| PathBuf::from("/etc/gitconfig"));
        let files = match path("GIT_CONFIG_GLOBAL") {
            Some(global) => vec![system, global],
            None => std::iter::once(system).chain(of_home.into_iter().flatten()).collect(),
        };
        let mut git = Self { has_config, home, ..Self::default() };
        // What the caller may not read, its git does not read either.
        let is_closed = |file: &PathBuf| rustix::fs::access(file, Access::READ_OK) == Err(Errno::ACCESS);
        for file in files.iter().filter(|file| *file != "/dev/null" && !is_closed(file)) {
            let settings = GitSettings::read(file, git.home.as_deref())?;
            git.hooks.extend(settings.hooks);
            git.included.extend(settings.included);
        }
        let text = |name: &str| environment.get(name).and_then(|value| value.to_str());
        let pairs: usize = text("GIT_CONFIG_COUNT").and_then(|count| count.parse().ok()).unwrap_or(0);
        for number in 0..pairs.min(PAIRS) {
            let is_hooks =
                text(&format!("GIT_CONFIG_KEY_{number}")).is_some_and(|key| key.eq_ignore_ascii_case("core.hooksPath"));
            if let Some(value) = text(&format!("GIT_CONFIG_VALUE_{number}")).filter(|_| is_hooks) {
                let hooks = expanded(value.as_bytes(), git.home.as_deref());
                git.hooks.push(
                    hooks.ok_or_else(|| format!("GIT_CONFIG_VALUE_{number}: the path {value} is not understood"))?,
                );
            }
        }
        Ok(git)
    }
}
