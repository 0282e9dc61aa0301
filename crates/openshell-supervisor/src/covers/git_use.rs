//! What git in every repository depends on: the configuration of who uses it outside, the caller.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use super::git_settings::{GitSettings, expanded};
use crate::command::environment::Environment;
use crate::files::filesystem::Placeholder;

/// Pairs of key and value in the environment that are looked at.
const PAIRS: usize = 1000;

/// The caller's use of git.
#[derive(Debug, Default)]
pub struct GitUse {
    /// True if the configuration of repositories is kept.
    pub(super) has_config: bool,
    pub(super) home: Option<PathBuf>,
    /// Values of `core.hooksPath` in the caller's and the system's configuration.
    pub(super) hooks: Vec<PathBuf>,
    /// What else these lead to, and the files themselves where they lie outside of the home (a
    /// repository of dotfiles), each with what stands in for it.
    pub(super) kept: Vec<(PathBuf, Placeholder<'static>)>,
}

impl GitUse {
    /// Reads the configuration that the variables of `environment` lead to (git(1), ENVIRONMENT
    /// VARIABLES). To be called as the caller.
    ///
    /// # Errors
    /// In words: it cannot be read or understood.
    pub fn read(has_config: bool, environment: &Environment) -> Result<Self, String> {
        let path = |name: &str| {
            environment
                .get(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let home = path("HOME");
        let of_xdg = path("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
        let of_home = [
            of_xdg.map(|folder| folder.join("git/config")),
            home.as_ref().map(|home| home.join(".gitconfig")),
        ];
        let named = |name: &str| match environment.get(name).map(PathBuf::from) {
            Some(file) if file.is_absolute() || file.as_os_str().is_empty() => Ok(Some(file)),
            Some(file) => Err(format!(
                "{name}: {} is another file in each folder; name it from the root",
                file.display()
            )),
            None => Ok(None),
        };
        let system = named("GIT_CONFIG_SYSTEM")?.unwrap_or_else(|| PathBuf::from("/etc/gitconfig"));
        let files = match named("GIT_CONFIG_GLOBAL")? {
            Some(global) => vec![system, global],
            None => std::iter::once(system)
                .chain(of_home.into_iter().flatten())
                .collect(),
        };
        let mut git = Self {
            has_config,
            home,
            ..Self::default()
        };
        // What the caller may not read, its git does not read either.
        let is_closed =
            |file: &PathBuf| rustix::fs::access(file, Access::READ_OK) == Err(Errno::ACCESS);
        let is_none = |file: &PathBuf| file == "/dev/null" || file.as_os_str().is_empty();
        for file in files
            .iter()
            .filter(|file| !is_none(file) && !is_closed(file))
        {
            let settings = GitSettings::read(file, git.home.as_deref())?;
            git.hooks.extend(settings.hooks);
            git.kept.extend(
                settings
                    .included
                    .into_iter()
                    .map(|file| (file, Placeholder::File(""))),
            );
            git.kept.extend(
                settings
                    .templates
                    .into_iter()
                    .map(|folder| (folder, Placeholder::Folder)),
            );
            if has_config {
                git.kept.extend(
                    elsewhere(file, git.home.as_deref()).map(|file| (file, Placeholder::File(""))),
                );
            }
        }
        // What `git -c` hands on to the programs that it runs.
        let handed_on = environment
            .get("GIT_CONFIG_PARAMETERS")
            .unwrap_or_default()
            .to_ascii_lowercase();
        if ["hookspath", "include"]
            .iter()
            .any(|key| holds(handed_on.as_bytes(), key.as_bytes()))
        {
            return Err(
                "GIT_CONFIG_PARAMETERS names hooks or includes; start outside of `git -c`"
                    .to_owned(),
            );
        }
        let count = environment
            .get("GIT_CONFIG_COUNT")
            .map(|count| count.to_str().and_then(|count| count.parse().ok()));
        let pairs: usize = count
            .unwrap_or(Some(0))
            .filter(|pairs| *pairs <= PAIRS)
            .ok_or_else(|| format!("GIT_CONFIG_COUNT is no number up to {PAIRS}"))?;
        for number in 0..pairs {
            let value = |what: &str| environment.get(&format!("GIT_CONFIG_{what}_{number}"));
            let is_hooks =
                value("KEY").is_some_and(|key| key.eq_ignore_ascii_case("core.hooksPath"));
            if let Some(hooks) = value("VALUE")
                && is_hooks
            {
                let path = expanded(hooks.as_bytes(), git.home.as_deref());
                let path = path.ok_or_else(|| {
                    format!(
                        "GIT_CONFIG_VALUE_{number}: the path {} is not understood",
                        hooks.display()
                    )
                })?;
                git.hooks.push(path);
            }
        }
        Ok(git)
    }
}

/// Returns the place of `file` if that is another one than in the `home`, to which a symlink leads.
/// Where it cannot be looked at, the programs of this user do not read it either.
pub(super) fn elsewhere(file: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let real = std::fs::canonicalize(file).ok()?;
    let own = home.and_then(|home| {
        Some(
            std::fs::canonicalize(home)
                .ok()?
                .join(file.strip_prefix(home).ok()?),
        )
    });
    (own.as_ref() != Some(&real)).then_some(real)
}

fn holds(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::PathBuf;

    use crate::command::environment::Environment;

    use super::{GitUse, PAIRS};

    #[test]
    fn hooks_that_variables_name_are_known_and_what_is_not_understood_is_an_error() {
        let read = |count: &str, value: &[u8]| {
            let variables = [
                ("GIT_CONFIG_GLOBAL", OsString::from("/dev/null")),
                ("GIT_CONFIG_SYSTEM", OsString::from("/dev/null")),
                ("GIT_CONFIG_COUNT", OsString::from(count)),
                ("GIT_CONFIG_KEY_0", OsString::from("Core.HooksPath")),
                ("GIT_CONFIG_VALUE_0", OsString::from_vec(value.to_vec())),
            ];
            let variables = variables.map(|(name, value)| (OsString::from(name), value));
            GitUse::read(true, &Environment::new(variables)).map(|git| git.hooks)
        };
        assert_eq!(read("1", b"hk"), Ok(vec![PathBuf::from("hk")]));
        assert_eq!(
            read("1", b"h\xff"),
            Ok(vec![PathBuf::from(OsString::from_vec(b"h\xff".to_vec()))])
        );
        assert_eq!(read("0", b"hk"), Ok(vec![]));
        for (count, value) in [
            ("x", "hk"),
            (&*(PAIRS + 1).to_string(), "hk"),
            ("1", "~other/hk"),
        ] {
            assert!(read(count, value.as_bytes()).is_err(), "{count} {value}");
        }
    }

    #[test]
    fn a_configuration_that_depends_on_the_folder_is_an_error_and_none_is_none() {
        let read = |global: &str| {
            let variables = [("GIT_CONFIG_GLOBAL", global), ("GIT_CONFIG_SYSTEM", "")];
            let variables =
                variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
            GitUse::read(true, &Environment::new(variables)).map(|git| git.hooks)
        };
        assert_eq!(
            [read(""), read("/dev/null"), read("/nowhere/gitconfig")],
            [const { Ok(Vec::new()) }; 3]
        );
        assert!(read("../gitconfig").unwrap_err().contains("../gitconfig"));
    }
}
