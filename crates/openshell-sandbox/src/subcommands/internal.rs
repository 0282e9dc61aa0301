//! Services that run inside, as ordinary confined commands, so that the kernel decides what they may touch.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;

use anyhow::bail;
use openshell_ssh::{sftp, streamlocal};

/// Serves standard input and output; `words` say what, where there is a choice.
///
/// # Errors
/// There is no such service, or it fails.
pub(crate) fn serve(service: &str, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let file = |stream: BorrowedFd<'_>| stream.try_clone_to_owned().map(File::from);
    match service {
        "sftp" => sftp::serve(file(io::stdin().as_fd())?, file(io::stdout().as_fd())?)?,
        "socket" => streamlocal::serve(io::stdin().as_fd(), words)?,
        _ => bail!("--internal is the sandbox's own: it serves sftp and sockets"),
    }
    Ok(ExitCode::SUCCESS)
}
