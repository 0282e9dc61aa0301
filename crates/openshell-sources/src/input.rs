//! Input files, opened so that no wait is endless.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use openshell_policy::yaml;
use openshell_supervisor::paths::regular_files;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

/// The size in bytes of the largest document, and of the largest rules.
const BYTES: u64 = yaml::MAX_DOCUMENT_BYTES as u64;

/// When a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the command runs. A file may be a pipe that the caller feeds.
    Start,
    /// While the command runs. A pipe has no writer any more, so a read would wait forever.
    Reload,
}

/// The longest wait for the writer of a FIFO, which a command may have put there.
const SILENCE: Duration = Duration::from_secs(3);

/// An input file.
pub(super) struct Input {
    file: File,
    /// True for a FIFO: reads wait for its writer no longer than [`SILENCE`].
    is_bounded: bool,
}

impl Input {
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_bounded {
            let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
            let silence = Timespec::try_from(SILENCE).map_err(io::Error::other)?;
            if rustix::event::poll(&mut polled, Some(&silence))? == 0 {
                return Err(io::Error::other(
                    "it is a FIFO, and nobody writes to it; remove it, or use `<(…)`",
                ));
            }
            match self.file.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
        self.file.read(buffer)
    }
}

/// Opens the file at `path`: a regular file or, at the start, a pipe.
///
/// # Errors
/// Fails if the file cannot be opened, or is of another kind.
pub(super) fn open(path: &Path, phase: Phase) -> io::Result<Input> {
    if phase == Phase::Start {
        // The pipe that a shell makes for `<(…)` may take as long as it needs.
        if ["/dev/fd", "/proc/self/fd", "/dev/stdin", "/dev/null"]
            .iter()
            .any(|given| path.starts_with(given))
        {
            return Ok(Input {
                file: File::open(path)?,
                is_bounded: false,
            });
        }
        let kind = std::fs::metadata(path)?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(io::Error::other("it is a device, not a file"));
        }
        if kind.is_fifo() {
            let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
            let file = File::options().read(true).custom_flags(flags).open(path)?;
            let is_bounded = file.metadata()?.file_type().is_fifo();
            if is_bounded {
                return Ok(Input { file, is_bounded });
            }
        }
    }
    Ok(Input {
        file: regular_files::open(path)?,
        is_bounded: false,
    })
}

/// Reads a text of at most [`BYTES`], because an endless file would fill the memory.
pub(super) fn read(path: &Path, phase: Phase) -> io::Result<String> {
    Ok(read_with_state(path, phase)?.0)
}

/// Reads like [`read`]; also returns the metadata that the file had before.
pub(super) fn read_with_state(path: &Path, phase: Phase) -> io::Result<(String, Metadata)> {
    let mut text = String::new();
    let input = open(path, phase)?;
    let data = input.file().metadata()?;
    input
        .take(BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => io::Error::other("it is not UTF-8 text"),
            _ => error,
        })?;
    if text.len() as u64 > BYTES {
        return Err(io::Error::other("it has more than 4 MiB"));
    }
    Ok((text, data))
}
