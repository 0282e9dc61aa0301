//! The folders of presets.

use std::path::{Path, PathBuf};

/// Folder of the machine's presets.
pub(crate) const SYSTEM_PRESETS: &str = "/etc/openshell/presets";

/// Returns the folder of the presets of this process's user, if it has one.
pub(crate) fn own_presets() -> Option<PathBuf> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the environment of this process, not of a command"
    )]
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    user_presets(
        variable("XDG_CONFIG_HOME"),
        variable("HOME")
            .filter(|home| home.is_absolute())
            .as_deref(),
    )
}

fn user_presets(config: Option<PathBuf>, home: Option<&Path>) -> Option<PathBuf> {
    let own = config
        .filter(|config| config.is_absolute())
        .or_else(|| home.map(|home| home.join(".config")));
    own.map(|own| own.join("openshell/presets"))
}

/// Returns the folders of presets: the user's, and the machine's.
pub(super) fn preset_folders(config: Option<PathBuf>, home: Option<&Path>) -> Vec<PathBuf> {
    user_presets(config, home)
        .into_iter()
        .chain([PathBuf::from(SYSTEM_PRESETS)])
        .collect()
}
