//! Presets: policies for usual needs, by name. The user's and the machine's are files, and count before those that are built in.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::yaml;

use crate::sources::input::{self, Phase};

const BUILT_IN: &[(&str, &str)] = &[
    ("claude-code", include_str!("../../../../data/presets/claude-code.yaml")),
    ("codex", include_str!("../../../../data/presets/codex.yaml")),
    ("git-read", include_str!("../../../../data/presets/git-read.yaml")),
    ("github", include_str!("../../../../data/presets/github.yaml")),
    ("models", include_str!("../../../../data/presets/models.yaml")),
];

/// A preset.
pub(crate) struct Preset {
    pub(super) text: String,
    /// Its file, if it is not built in.
    pub(super) file: Option<PathBuf>,
}

impl Preset {
    /// Returns the preset `name`: `NAME.yaml` of the first of `folders` that has one, else one that is built in.
    ///
    /// # Errors
    /// There is none, or its file cannot be read or is invalid.
    pub(super) fn find(name: &str, folders: &[PathBuf]) -> anyhow::Result<Self> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || !name.bytes().all(is_name) {
            bail!("--preset {name}: a name has letters, digits, `-` and `_`; a file is given with --policy-data");
        }
        let files = folders.iter().map(|folder| folder.join(format!("{name}.yaml")));
        if let Some(file) = files.into_iter().find(|file| file.symlink_metadata().is_ok()) {
            let failed = || format!("--preset {name}: {}", file.display());
            let text = input::read(&file, Phase::Start).with_context(failed)?;
            yaml::policy(&text).map_err(|violations| anyhow!("{}: {violations}", failed()))?;
            return Ok(Self { text, file: Some(file) });
        }
        let built_in = BUILT_IN.iter().find(|(known, _)| *known == name);
        let text = built_in.map(|(_, text)| (*text).to_owned()).with_context(|| unknown(name, folders))?;
        Ok(Self { text, file: None })
    }
}

fn unknown(name: &str, folders: &[PathBuf]) -> String {
    let of_files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let of_files = of_files.filter_map(|entry| Some(Path::new(&entry.file_name()).file_stem()?.to_str()?.to_owned()));
    let mut known: Vec<_> = BUILT_IN.iter().map(|(known, _)| (*known).to_owned()).chain(of_files).collect();
    known.sort();
    known.dedup();
    let own = folders.first().map(|folder| format!("; a policy in {}/{name}.yaml would be one", folder.display()));
    format!("--preset {name} is unknown; there are {}{}", known.join(", "), own.unwrap_or_default())
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
