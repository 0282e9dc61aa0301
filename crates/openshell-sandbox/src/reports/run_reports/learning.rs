//! The files that a run with `--observe-files` shows its command, to learn which of them it reads.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_policy::filesystem::{Filesystem, GrantedPath};
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::files::landlock::Learning;
use openshell_supervisor::identity::run_as::User;
use openshell_supervisor::paths::missing::is_missing;

/// Folders at the root that belong to the kernel, to services, or to the sandbox itself.
const LEFT_OUT: &[&str] = &["/proc", "/sys", "/dev", "/run", "/tmp"];

/// The parent of most homes, and the most folders in it that are examined.
const HOMES: &str = "/home";
const MAX_HOMES: usize = 1000;

/// Keys, tokens, histories, and profiles of browsers, mail and chat programs, in a home.
const PRIVATE: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".pki",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".kube",
    ".docker/config.json",
    ".config/containers/auth.json",
    ".terraform.d/credentials.tfrc.json",
    ".vault-token",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".config/op",
    ".config/sops",
    ".config/rclone",
    ".config/github-copilot",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".s3cfg",
    ".boto",
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".config/opera",
    ".cache/mozilla",
    ".cache/google-chrome",
    ".cache/chromium",
    ".config/Slack",
    ".config/discord",
    ".config/Signal",
    "snap/firefox",
    "snap/chromium",
    ".var/app",
    ".bash_history",
    ".zsh_history",
    ".local/share/fish/fish_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mylogin.cnf",
    ".smbcredentials",
    ".msmtprc",
    ".subversion/auth",
    ".step",
    ".minikube",
    ".cloudflared",
    ".putty",
    ".Xauthority",
    ".bitcoin",
    ".ethereum",
    ".electrum",
    ".config/solana",
    ".oci",
    ".config/doctl",
    ".config/hcloud",
    ".pulumi",
    ".fly",
    ".databrickscfg",
    ".snowsql",
    ".terraformrc",
    ".config/stripe",
    ".huggingface",
    ".cache/huggingface/token",
    ".kaggle",
    ".config/composer/auth.json",
    ".config/Bitwarden",
    ".config/1Password",
    ".config/rbw",
    ".local/share/TelegramDesktop",
    ".librewolf",
    ".waterfox",
    ".mysql_history",
    ".sqlite_history",
    ".rediscli_history",
    ".age",
    ".config/age",
    ".config/gopass",
    ".local/share/gopass",
    ".local/share/password-store",
    ".config/keepassxc",
    ".cache/keepassxc",
    ".config/KeePass",
    ".config/google-chrome-beta",
    ".config/google-chrome-unstable",
    ".config/microsoft-edge-dev",
    ".config/yandex-browser",
    ".config/qutebrowser",
    ".config/falkon",
    ".config/Element",
    ".local/share/qutebrowser",
    ".local/share/epiphany",
    ".cache/BraveSoftware",
    ".cache/microsoft-edge",
    ".cache/vivaldi",
    ".zen",
    ".floorp",
    ".tor-browser",
    ".local/share/torbrowser",
    // The log of all sandboxes of this user.
    ".local/state/openshell",
];

/// Folders in a home whose password databases stay hidden, and the most entries that are examined
/// in each.
const DATABASE_FOLDERS: &[&str] = &["", "Documents", "Desktop", "Downloads"];
const MAX_ENTRIES: usize = 10_000;

/// Returns what is shown: the folders at the root, and `home`.
///
/// # Errors
/// Fails if the root cannot be listed.
pub(crate) fn learning(home: Option<&Path>) -> anyhow::Result<Learning> {
    let context = "cannot list the root, whose folders --observe-files shows";
    let entries = std::fs::read_dir("/")
        .context(context)?
        .collect::<Result<Vec<_>, _>>()
        .context(context)?;
    let folders = entries
        .iter()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let is_left_out = |path: &Path| LEFT_OUT.iter().any(|left| path.starts_with(left));
    let folders = folders
        .map(|entry| entry.path())
        .filter(|path| !is_left_out(path))
        .collect();
    let is_home = |home: &&Path| home.parent().is_some() && home.is_dir() && !is_left_out(home);
    Ok(Learning {
        folders,
        home: home.filter(is_home).map(Path::to_owned),
    })
}

/// Returns the folders in which `user` may keep keys, without symlinks: its home; HOME of the
/// caller, who may have no entry in the user database; and its folders in /home.
pub(crate) fn homes(user: &User, caller: &Environment) -> BTreeSet<PathBuf> {
    let named = user
        .home
        .clone()
        .into_iter()
        .chain(caller.get("HOME").map(PathBuf::from));
    // A folder that cannot be examined may belong to this user, and is shown like all others.
    let is_own = |path: &PathBuf| {
        std::fs::metadata(path).map_or(true, |data| data.uid() == user.identity.uid)
    };
    let entries = std::fs::read_dir(HOMES)
        .into_iter()
        .flatten()
        .take(MAX_HOMES)
        .flatten();
    let homes = named.chain(entries.map(|entry| entry.path()).filter(is_own));
    let real = homes.filter_map(|home| match std::fs::canonicalize(&home) {
        Err(error) if is_missing(&error) => None,
        Err(_) => Some(home),
        Ok(real) => Some(real),
    });
    // The root of the file system is nobody's home.
    real.filter(|home| home.parent().is_some() && !home.is_file())
        .collect()
}

/// Returns the password databases in the usual folders of `home`.
fn password_databases(home: &Path) -> Vec<PathBuf> {
    let folders = DATABASE_FOLDERS.iter().map(|name| home.join(name));
    let entries = folders.flat_map(|folder| {
        std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .take(MAX_ENTRIES)
            .flatten()
    });
    let is_database = |path: &PathBuf| {
        path.extension()
            .is_some_and(|kind| kind == "kdbx" || kind == "kdb")
    };
    entries
        .map(|entry| entry.path())
        .filter(is_database)
        .collect()
}

/// Returns the paths in `homes` that stay hidden, whether or not they exist, except those that the
/// policy grants by name.
pub(crate) fn private_paths(
    homes: &BTreeSet<PathBuf>,
    filesystem: &Filesystem,
) -> Vec<GrantedPath> {
    let granted = || {
        filesystem
            .read_only
            .iter()
            .chain(&filesystem.read_write)
            .map(GrantedPath::as_path)
    };
    let is_meant = |path: &Path| granted().any(|granted| granted.starts_with(path));
    let paths = homes
        .iter()
        .flat_map(|home| PRIVATE.iter().map(move |name| home.join(name)));
    let paths = paths.chain(homes.iter().flat_map(|home| password_databases(home)));
    paths
        .filter(|path| !is_meant(path))
        .map(GrantedPath::found)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use openshell_policy::filesystem::{Filesystem, GrantedPath};

    use super::private_paths;

    #[test]
    fn password_databases_and_the_log_of_all_sandboxes_stay_hidden_from_an_observed_run() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("Documents")).unwrap();
        for name in ["Documents/mine.kdbx", "old.kdb", "notes.txt"] {
            std::fs::write(home.path().join(name), "").unwrap();
        }
        let homes = BTreeSet::from([home.path().to_owned()]);
        let hidden = private_paths(&homes, &Filesystem::default());
        let is_hidden = |name: &str| {
            hidden
                .iter()
                .map(GrantedPath::as_path)
                .any(|path| path == home.path().join(name))
        };
        for name in [
            "Documents/mine.kdbx",
            "old.kdb",
            ".config/age",
            ".local/state/openshell",
            ".ssh",
        ] {
            assert!(is_hidden(name), "{name}");
        }
        assert!(!is_hidden("notes.txt"));
    }
}
