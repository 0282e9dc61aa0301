//! Errors that mean that there is no file, and no others.

use std::io;

/// Returns true if there is no file. One that this process may not look at is none of these: its
/// owner may open the folders above it again.
#[must_use]
pub fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
