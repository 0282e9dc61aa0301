//! Input files, opened without a wait that has no end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use openshell_policy::yaml;

/// Bytes of the largest document, and of the largest rules.
const BYTES: u64 = yaml::MAX_DOCUMENT_BYTES as u64;

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

/// Reads a text of at most [`BYTES`]; more of an endless file would only take memory.
pub(super) fn read(path: &Path, phase: Phase) -> io::Result<String> {
    let mut text = String::new();
    open(path, phase)?.take(BYTES + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::other("it is not UTF-8 text"),
        _ => error,
    })?;
    if text.len() as u64 > BYTES {
        return Err(io::Error::other("it has more than 4 MiB"));
    }
    Ok(text)
}
