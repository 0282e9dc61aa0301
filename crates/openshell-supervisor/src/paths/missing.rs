//! The errors that mean that a file does not exist.

use std::io;

/// Returns true if the error means that the file does not exist. A file that this process may not
/// look at does not count: its owner may open the folders above it again.
#[must_use]
pub fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
