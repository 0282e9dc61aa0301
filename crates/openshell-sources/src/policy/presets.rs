//! Presets: policies for common needs, by name. Built-in presets win over the user's and the
//! machine's, which are files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::yaml;
use openshell_supervisor::paths::missing::is_missing;

use crate::input::{self, Phase};
use crate::policy::registries;

const BUILT_IN: &[(&str, &str)] = &[
    ("aider", include_str!("../../../../data/presets/aider.yaml")),
    (
        "claude-code",
        include_str!("../../../../data/presets/claude-code.yaml"),
    ),
    ("codex", include_str!("../../../../data/presets/codex.yaml")),
    (
        "copilot",
        include_str!("../../../../data/presets/copilot.yaml"),
    ),
    (
        "gemini",
        include_str!("../../../../data/presets/gemini.yaml"),
    ),
    (
        "git-read",
        include_str!("../../../../data/presets/git-read.yaml"),
    ),
    (
        "github",
        include_str!("../../../../data/presets/github.yaml"),
    ),
    (
        "models",
        include_str!("../../../../data/presets/models.yaml"),
    ),
    (
        "opencode",
        include_str!("../../../../data/presets/opencode.yaml"),
    ),
];

/// A preset.
pub struct Preset {
    pub(super) text: String,
    /// The file of the preset, if it is not built in.
    pub(super) file: Option<PathBuf>,
}

impl Preset {
    /// Returns the preset `name`: the built-in one, or `NAME.yaml` in the first of `folders` that
    /// has it.
    ///
    /// # Errors
    /// Fails if there is none; or if its file cannot be read, can be written by others, or is
    /// invalid.
    pub(super) fn find(name: &str, folders: &[PathBuf]) -> anyhow::Result<Self> {
        if !is_name(name) {
            bail!(
                "--preset {name}: a name has only letters, digits, `-` and `_`; name a file with \
                 --policy-data"
            );
        }
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Ok(Self {
                text: (*text).to_owned(),
                file: None,
            });
        }
        let files = folders
            .iter()
            .map(|folder| folder.join(format!("{name}.yaml")));
        if let Some(file) = files.into_iter().find(|file| {
            !file
                .symlink_metadata()
                .is_err_and(|error| is_missing(&error))
        }) {
            let failed = || format!("--preset {name}: {}", file.display());
            // Not `Phase::Start`, because then a pipe would be waited for without end.
            let text = input::read(&file, Phase::Reload).with_context(failed)?;
            check_mode(&file).with_context(failed)?;
            yaml::policy(&text).map_err(|violations| anyhow!("{}: {violations}", failed()))?;
            return Ok(Self {
                text,
                file: Some(file),
            });
        }
        bail!(unknown(name, folders))
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Checks that only the owner can write to a preset and its folder: users do not name its file.
fn check_mode(file: &Path) -> anyhow::Result<()> {
    for path in [Some(file), file.parent()].into_iter().flatten() {
        let data = std::fs::metadata(path)?;
        // A user's own group often has no other member.
        let others = if data.gid() == rustix::process::getegid().as_raw() {
            0o002
        } else {
            0o022
        };
        if data.mode() & others != 0 {
            bail!(
                "others can write to {}; remove that permission with `chmod go-w`",
                path.display()
            );
        }
    }
    Ok(())
}

fn unknown(name: &str, folders: &[PathBuf]) -> String {
    if let Some(recipe) = registries::recipe(name) {
        return format!(
            "--preset {name} does not exist on this machine yet; run `openshell-sandbox presets \
             make {name}`, which asks {} for its registry",
            recipe.client
        );
    }
    let known: Vec<_> = all(folders).into_iter().map(|entry| entry.name).collect();
    let own = folders.first().map(|folder| {
        format!(
            "; to add it, write a policy to {}/{name}.yaml",
            folder.display()
        )
    });
    format!(
        "--preset {name} is unknown; there are {}{}",
        known.join(", "),
        own.unwrap_or_default()
    )
}

/// An entry in the list of presets.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PresetEntry {
    /// The name.
    pub name: String,
    /// Where the preset comes from.
    pub source: PresetSource,
    /// One line about the preset.
    pub purpose: String,
}

/// Where a preset comes from.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PresetSource {
    /// This program contains it.
    BuiltIn,
    /// This file contains it.
    File(PathBuf),
    /// It can be made, but has not been.
    Recipe,
}

/// Returns all presets by name: the built-in ones, the files in `folders`, and those that can be
/// made.
pub fn all(folders: &[PathBuf]) -> Vec<PresetEntry> {
    let text = |name: &str, source: PresetSource, purpose: &str| PresetEntry {
        name: name.to_owned(),
        source,
        purpose: purpose.to_owned(),
    };
    let built_in = BUILT_IN
        .iter()
        .map(|(name, content)| text(name, PresetSource::BuiltIn, registries::purpose(content)));
    let files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let files = files.filter_map(|entry| {
        let name = entry
            .file_name()
            .to_str()?
            .strip_suffix(".yaml")
            .filter(|name| is_name(name))?
            .to_owned();
        let content = input::read(&entry.path(), Phase::Reload).unwrap_or_default();
        Some(text(
            &name,
            PresetSource::File(entry.path()),
            registries::purpose(&content),
        ))
    });
    let recipes = registries::RECIPES
        .iter()
        .map(|recipe| text(recipe.name, PresetSource::Recipe, recipe.purpose()));
    let mut known: Vec<PresetEntry> = Vec::new();
    for entry in built_in.chain(files).chain(recipes) {
        if known.iter().all(|known| known.name != entry.name) {
            known.push(entry);
        }
    }
    known.sort();
    known
}

#[cfg(test)]
mod tests {
    use openshell_policy::yaml;

    use super::BUILT_IN;

    #[test]
    fn built_in_presets_are_valid_and_the_folder_has_no_others() {
        for (name, text) in BUILT_IN {
            let read = yaml::policy(text);
            assert!(read.is_ok(), "{name}: {}", read.unwrap_err());
            assert!(text.starts_with("# "), "{name} says what it is for");
        }
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/presets");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), BUILT_IN.len());
    }
}
