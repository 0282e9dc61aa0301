//! Likely causes of a command that did not start.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::init::launch::LaunchError;

use crate::config::Config;

/// The circumstances of a command's start.
pub(super) struct StartContext<'c> {
    pub(super) config: &'c Config,
    /// Directory where the command should start.
    pub(super) start_dir: Option<&'c PathBuf>,
    /// Environment of the command.
    pub(super) environment: &'c Environment,
    /// File rules of the command.
    pub(super) granted: &'c Request,
}

impl StartContext<'_> {
    /// Adds the likely cause to `error`.
    pub(super) fn explain(&self, error: LaunchError) -> anyhow::Error {
        let context = match &error {
            LaunchError::Directory { .. } => self.forbidden_directory(),
            LaunchError::NotFound(_) => self.missing_grant().or_else(|| self.other_directory()),
            _ => self.other_directory(),
        };
        match context {
            Some(context) => anyhow!(error).context(context),
            None => error.into(),
        }
    }

    /// Explains that the user may not enter the working directory.
    fn forbidden_directory(&self) -> Option<String> {
        let user = self.environment.get("USER")?.display();
        let folder = self.start_dir?.display();
        Some(format!(
            "the workload's user {user} may not enter the working directory {folder}; let it in \
             (chmod, setfacl), or name another with --workdir"
        ))
    }

    /// Explains that the program exists on the host but the policy does not grant it.
    fn missing_grant(&self) -> Option<String> {
        let word = Path::new(self.config.command.words.first()?);
        let is_program = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|data| data.is_file());
        let found = if word.components().count() > 1 {
            Some(word.to_path_buf()).filter(|word| word.is_absolute() && is_program(word))
        } else {
            std::env::split_paths(self.environment.get("PATH")?)
                .map(|folder| folder.join(word))
                .find(is_program)
        };
        // A path that is granted must be out of reach for another reason.
        let found = std::fs::canonicalize(found?)
            .ok()
            .filter(|found| !(self.granted.grants_reading(found) && self.granted.shows(found)))?;
        let path = found.display();
        let folder = found.parent()?.display();
        Some(format!(
            "{path} exists, but the policy does not grant it; add `{folder}` to \
             filesystem_policy.read_only, and whatever else the program needs"
        ))
    }

    /// Explains that a relative path is looked up in the directory where the command starts.
    fn other_directory(&self) -> Option<String> {
        let word = Path::new(self.config.command.words.first()?);
        let is_relative = word.is_relative() && word.components().count() > 1;
        let wanted = self
            .config
            .command
            .current_dir
            .as_ref()
            .filter(|_| self.config.command.workdir.is_none() && is_relative)?;
        let is_elsewhere = self.start_dir != Some(wanted);
        is_elsewhere.then(|| {
            format!(
                "the policy does not grant the current directory {} (see --workdir)",
                wanted.display()
            )
        })
    }
}
