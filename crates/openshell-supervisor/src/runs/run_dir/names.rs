//! Names of sandboxes, and the places where clients look for them and for run directories. A name
//! is unique among those of one user in one parent of run directories.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::lock::{NameClaim, PREFIX, RunDir, is_ours, open_regular};
use super::{FALLBACKS, private_defaults};
use crate::host::privilege::is_caller_root;

/// A failure to take a name.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum NameError {
    #[error(
        "a sandbox named {0} runs already; choose another --name, or end that one \
         (`openshell-sandbox ps` lists all)"
    )]
    Taken(String),
    #[error("cannot take the name {name} in {path}")]
    File {
        name: String,
        path: PathBuf,
        source: io::Error,
    },
}

impl RunDir {
    /// Takes `name` for the sandbox of this directory, until the directory is removed. The name
    /// becomes part of a file's name.
    ///
    /// # Errors
    /// Fails if another sandbox has the name, or if its file cannot be written.
    pub fn claim(&mut self, name: &str) -> Result<(), NameError> {
        let parent = self.reached().parent();
        let own = self.reached().file_name();
        let (Some(parent), Some(own)) = (parent, own) else {
            return Ok(());
        };
        let path = path_of(parent, name);
        let claimed = lock(&path, own.as_encoded_bytes());
        let lock = claimed.map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => NameError::Taken(name.to_owned()),
            _ => NameError::File {
                name: name.to_owned(),
                path: self.path().with_file_name(""),
                source,
            },
        })?;
        self.name = Some(NameClaim::new(path, lock));
        Ok(())
    }
}

/// Creates and locks the file of a name, and writes `content` to it.
///
/// # Errors
/// Fails with `WouldBlock` if another process holds the lock; other errors come from the file
/// system.
fn lock(path: &Path, content: &[u8]) -> io::Result<File> {
    loop {
        let mut options = File::options();
        let mut file = open_regular(
            path,
            options.read(true).write(true).create(true).mode(0o600),
        )?;
        if file.metadata()?.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let identity = |data: std::fs::Metadata| (data.dev(), data.ino());
        // The last owner may have removed the file before the lock was taken.
        if std::fs::symlink_metadata(path).map(identity).ok() == Some(identity(file.metadata()?)) {
            file.set_len(0)?;
            file.write_all(content)?;
            return Ok(file);
        }
    }
}

fn path_of(parent: &Path, name: &str) -> PathBuf {
    // In a user namespace, root has another uid than outside, where the clients are.
    let uid = if is_caller_root() {
        0
    } else {
        rustix::process::geteuid().as_raw()
    };
    parent.join(format!("{PREFIX}name-{uid}-{name}"))
}

/// Returns the folders where run directories of this user may be: `parent` if given, otherwise the
/// ones that [`RunDir::create`] tries.
#[must_use]
pub fn parents(parent: Option<&Path>, runtime_dir: Option<&Path>) -> Vec<PathBuf> {
    match parent {
        Some(parent) => vec![parent.to_owned()],
        None => private_defaults(runtime_dir)
            .chain(FALLBACKS.map(PathBuf::from))
            .collect(),
    }
}

/// The longest name of a run directory, in bytes.
const NAME_BYTES: u64 = 64;

/// Returns the run directory of the sandbox `name` in `parent`.
///
/// # Errors
/// Fails if this user has no such sandbox, or if its file cannot be read.
pub fn find(parent: &Path, name: &str) -> io::Result<PathBuf> {
    let file = open_regular(&path_of(parent, name), File::options().read(true))?;
    let is_own = file.metadata()?.uid() == rustix::process::geteuid().as_raw();
    let mut text = String::new();
    file.take(NAME_BYTES).read_to_string(&mut text)?;
    let path = parent.join(&text);
    if is_own && !text.contains('/') && is_ours(&path) {
        Ok(path)
    } else {
        Err(Errno::NOENT.into())
    }
}

/// Returns the run directories of this user in `parent`.
#[must_use]
pub fn list(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| is_ours(path))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{NameError, RunDir, find, list};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_name_has_one_owner_and_is_free_again_after_it() {
        let parent = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .unwrap();
        let make = || RunDir::create(Some(parent.path()), None).unwrap();
        let mut one = make();
        let mut other = make();
        one.claim("web").unwrap();
        other.claim("web-2").unwrap();
        assert!(matches!(other.claim("web"), Err(NameError::Taken(name)) if name == "web"));
        assert_eq!(find(parent.path(), "web").unwrap(), one.path());
        assert_eq!(list(parent.path()).len(), 2);
        drop(one);
        assert!(find(parent.path(), "web").is_err());
        other.claim("web").unwrap();
        assert_eq!(find(parent.path(), "web").unwrap(), other.path());
        drop(other);
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_name_of_a_killed_owner_is_taken_over_and_a_symlink_is_not_followed() {
        let parent = tempfile::Builder::new()
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir()
            .unwrap();
        let mut one = RunDir::create(Some(parent.path()), None).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let left = parent.path().join(format!("openshell-name-{uid}-web"));
        std::fs::write(&left, "openshell-0123456789abcdef").unwrap();
        assert!(find(parent.path(), "web").is_err(), "its folder is gone");
        one.claim("web").unwrap();
        std::os::unix::fs::symlink(
            "elsewhere",
            parent.path().join(format!("openshell-name-{uid}-link")),
        )
        .unwrap();
        assert!(matches!(one.claim("link"), Err(NameError::File { .. })));
    }
}
