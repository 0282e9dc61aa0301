//! Reads files that belong to git and that an earlier command may have left in any form.

use std::io::{self, Read};
use std::path::Path;

use crate::paths::missing::is_missing;
use crate::paths::regular_files;

/// The largest number of bytes that are read of such a file.
const BYTES: u64 = 1024 * 1024;

/// Returns the content of a file; `None` if there is no file.
///
/// # Errors
/// Fails if the file is of another kind, cannot be read, or has more than [`BYTES`]: git could then
/// see in it what is not seen here.
pub(super) fn content_of(file: &Path) -> Result<Option<Vec<u8>>, String> {
    content_up_to(file, BYTES)
}

/// Returns the content of a file of at most `most` bytes; `None` if there is no file.
///
/// # Errors
/// Fails as [`content_of`] does.
pub(super) fn content_up_to(file: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    // An earlier run may have left a file of any kind. Git follows symlinks.
    let opened = match regular_files::open(file) {
        Err(error) if is_missing(&error) => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut content = Vec::new();
    opened
        .take(most + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if content.len() as u64 > most {
        Err(format!("{} has more than {most} bytes", file.display()))
    } else {
        Ok(Some(content))
    }
}
