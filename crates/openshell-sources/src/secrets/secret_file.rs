//! Files that hold secrets, which only their owner may read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::credential::{self, MAX_SECRET_BYTES};
use openshell_policy::secret::Secret;
use openshell_supervisor::paths::trusted_symlinks::is_on_read_only_mount;
use zeroize::Zeroizing;

use crate::input::{self, Phase};

/// The fault of a file that holds secrets and is not private.
pub const PUBLIC: &str = "others may read it; remove that permission with `chmod go-rwx`";

/// Reads the secret in the file at `path`, without a newline at its end.
///
/// # Errors
/// Fails if the file cannot be read, others may read it, or its content cannot be a secret.
pub fn read(path: &Path, phase: Phase) -> anyhow::Result<Secret> {
    let failed = || format!("failed to read {}", path.display());
    let (secret, is_private) = open(path, MAX_SECRET_BYTES + 1, phase).with_context(failed)?;
    if !is_private {
        return Err(anyhow!(PUBLIC)).with_context(failed);
    }
    checked(secret.without_last_newline())
}

/// Returns `secret` if it is valid.
///
/// # Errors
/// Fails if it is empty or too long, could end a header line, or could be taken for a placeholder.
pub fn checked(secret: Secret) -> anyhow::Result<Secret> {
    credential::check_secret(secret.expose()).map_err(|fault| anyhow!("{fault}"))?;
    Ok(secret)
}

/// Reads a file of at most `limit` bytes. Also returns true if only its owner may read it.
///
/// # Errors
/// Fails if the file cannot be read, or has more bytes.
pub fn open(path: &Path, limit: usize, phase: Phase) -> anyhow::Result<(Secret, bool)> {
    let input = input::open(path, phase)?;
    let metadata = input.file().metadata()?;
    let is_private = is_private(input.file())?;
    // A buffer that grows would leave copies of the secret behind.
    let length = usize::try_from(metadata.len()).unwrap_or(limit).min(limit);
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
    input.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        bail!("it has more than {limit} bytes");
    }
    Ok((Secret::new(std::mem::take(&mut *bytes)), is_private))
}

/// Returns true if only the owner of a file with secrets may access it. Its group may read it too
/// if this user can read it only through the group, or if the mount is read-only, as for secrets
/// that Kubernetes mounts with `fsGroup`.
///
/// # Errors
/// Fails if the file cannot be inspected.
pub fn is_private(file: &File) -> io::Result<bool> {
    let data = file.metadata()?;
    let own = rustix::process::geteuid();
    let is_by_group = !own.is_root() && data.uid() != own.as_raw();
    let public = if is_by_group || is_on_read_only_mount(file)? {
        0o027
    } else {
        0o066
    };
    Ok(data.mode() & public == 0)
}
