//! Reads the git configuration of the caller, who uses git outside. It affects git in every
//! repository.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use super::git_settings::{GitSettings, expanded};
use crate::command::environment::Environment;
use crate::files::filesystem::Placeholder;

/// The largest number of pairs of key and value in the environment that are looked at.
const PAIRS: usize = 1000;

/// The caller's use of git.
#[derive(Debug, Default)]
pub struct GitUse {
    /// True if the configuration of repositories is kept from being written.
    pub(super) has_config: bool,
    pub(super) home: Option<PathBuf>,
    /// The values of `core.hooksPath` in the caller's and the system's configuration.
    pub(super) hooks: Vec<PathBuf>,
    /// The files that these configurations include and their template folders, each with its
    /// placeholder. With `has_config`, also the real path of each configuration file that is not in
    /// its own place in the home, for example because it is in a repository of dotfiles.
    pub(super) kept: Vec<(PathBuf, Placeholder<'static>)>,
}

impl GitUse {
    /// Reads the configuration that the variables of `environment` lead to (git(1), ENVIRONMENT
    /// VARIABLES). Call this as the caller.
    ///
    /// # Errors
    /// Fails with a message if the configuration cannot be read or understood.
    pub fn read(has_config: bool, environment: &Environment) -> Result<Self, String> {
        let home = absolute(environment, "HOME");
        let files = config_files(environment, home.as_deref())?;
        let mut git = Self {
            has_config,
            home,
            ..Self::default()
        };
        // If the caller may not read a file, the caller's git does not read it either.
        let is_closed =
            |file: &PathBuf| rustix::fs::access(file, Access::READ_OK) == Err(Errno::ACCESS);
        let is_none = |file: &PathBuf| file == "/dev/null" || file.as_os_str().is_empty();
        for file in files {
            if !is_none(&file) && !is_closed(&file) {
                git.add_file(&file)?;
            }
        }
        git.add_variables(environment)?;
        Ok(git)
    }

    /// Adds what `file`, one of the configuration files, names.
    fn add_file(&mut self, file: &Path) -> Result<(), String> {
        let settings = GitSettings::read(file, self.home.as_deref())?;
        self.hooks.extend(settings.hooks);
        for file in settings.included {
            self.kept.push((file, Placeholder::File("")));
        }
        for folder in settings.templates {
            self.kept.push((folder, Placeholder::Folder));
        }
        if self.has_config {
            let elsewhere = elsewhere(file, self.home.as_deref());
            self.kept
                .extend(elsewhere.map(|file| (file, Placeholder::File(""))));
        }
        Ok(())
    }

    /// Adds what the variables `GIT_CONFIG_KEY_n` and `GIT_CONFIG_VALUE_n` name. Fails if
    /// `GIT_CONFIG_PARAMETERS`, in which `git -c` hands settings on to the programs that it runs,
    /// names hooks or includes.
    fn add_variables(&mut self, environment: &Environment) -> Result<(), String> {
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
            .ok_or_else(|| format!("GIT_CONFIG_COUNT is not a number up to {PAIRS}"))?;
        for number in 0..pairs {
            let value = |what: &str| environment.get(&format!("GIT_CONFIG_{what}_{number}"));
            let is_hooks =
                value("KEY").is_some_and(|key| key.eq_ignore_ascii_case("core.hooksPath"));
            if let Some(hooks) = value("VALUE")
                && is_hooks
            {
                let path = expanded(hooks.as_bytes(), self.home.as_deref());
                let path = path.ok_or_else(|| {
                    format!(
                        "GIT_CONFIG_VALUE_{number}: the path {} is not understood",
                        hooks.display()
                    )
                })?;
                self.hooks.push(path);
            }
        }
        Ok(())
    }
}

/// Returns the path in the variable `name` if it is absolute.
fn absolute(environment: &Environment, name: &str) -> Option<PathBuf> {
    environment
        .get(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// Returns the configuration files that the caller's git reads: those of the system, and those of
/// the user with this `home`.
fn config_files(environment: &Environment, home: Option<&Path>) -> Result<Vec<PathBuf>, String> {
    let named = |name: &str| match environment.get(name).map(PathBuf::from) {
        Some(file) if file.is_absolute() || file.as_os_str().is_empty() => Ok(Some(file)),
        Some(file) => Err(format!(
            "{name}: {} is a relative path, which means another file in each folder; use an \
             absolute path",
            file.display()
        )),
        None => Ok(None),
    };
    let mut files =
        vec![named("GIT_CONFIG_SYSTEM")?.unwrap_or_else(|| PathBuf::from("/etc/gitconfig"))];
    if let Some(global) = named("GIT_CONFIG_GLOBAL")? {
        files.push(global);
        return Ok(files);
    }
    let of_xdg = absolute(environment, "XDG_CONFIG_HOME");
    let of_xdg = of_xdg.or_else(|| Some(home?.join(".config")));
    files.extend(of_xdg.map(|folder| folder.join("git/config")));
    files.extend(home.map(|home| home.join(".gitconfig")));
    Ok(files)
}

/// Returns the real path of `file`, unless that is the file's own place in the `home`. Returns
/// `None` too if the path cannot be followed: the programs of this user do not read the file then
/// either.
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
