//! Files with secrets in them, which nobody else may read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::credential::{self, MAX_SECRET_BYTES};
use openshell_policy::secret::Secret;
use zeroize::Zeroizing;

/// What is wrong with a file that holds secrets and is not private.
pub(crate) const PUBLIC: &str = "others may read it; take that away with `chmod go-rwx`";

/// The secret in the file at `path`, less a newline at its end.
///
/// # Errors
/// It cannot be read, others may read it, or what it holds can be no secret.
pub(crate) fn read(path: &Path, is_start: bool) -> anyhow::Result<Secret> {
    let failed = || format!("failed to read {}", path.display());
    let (secret, is_private) = open(path, MAX_SECRET_BYTES + 1, is_start).with_context(failed)?;
    if !is_private {
        return Err(anyhow!(PUBLIC)).with_context(failed);
    }
    checked(secret.without_last_newline())
}

/// `secret`, if it can be one.
///
/// # Errors
/// It cannot.
pub(crate) fn checked(secret: Secret) -> anyhow::Result<Secret> {
    credential::check_secret(secret.expose()).map_err(|fault| anyhow!("{fault}"))?;
    Ok(secret)
}

/// The bytes of a file, at most `limit`, and whether nobody but its owner may read it.
///
/// # Errors
/// It cannot be read, or has more.
pub(crate) fn open(path: &Path, limit: usize, is_start: bool) -> anyhow::Result<(Secret, bool)> {
    // A start may read from a pipe; later there is nobody at its other end.
    if !is_start && !std::fs::metadata(path)?.is_file() {
        bail!("it is not a regular file");
    }
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let is_private = metadata.mode() & 0o044 == 0;
    // Of what grows a copy would be left behind.
    let length = usize::try_from(metadata.len()).unwrap_or(limit).min(limit);
    let mut bytes = Zeroizing::new(Vec::with_capacity(length + 1));
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        bail!("it has more than {limit} bytes");
    }
    Ok((Secret::new(std::mem::take(&mut *bytes)), is_private))
}
