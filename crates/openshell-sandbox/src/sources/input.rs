//! Input files, opened without a wait that has no end.

use std::fs::File;
use std::io;
use std::path::Path;

/// Occasion of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the command runs. A file may be a pipe that the caller feeds.
    Start,
    /// While the command runs. A pipe has no writer any more, so a read would wait for ever.
    Reload,
}

/// Opens the file at `path`.
///
/// # Errors
/// The file cannot be opened, or is no regular file at a reload.
pub(super) fn open(path: &Path, phase: Phase) -> io::Result<File> {
    if phase == Phase::Reload && !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(path)
}
