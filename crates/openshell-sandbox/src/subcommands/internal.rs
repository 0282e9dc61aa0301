//! Services that run inside, as ordinary confined commands, so that the kernel decides what they
//! may touch.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use openshell_access::transfer::outcome::{LeftOut, TransferError};
use openshell_access::transfer::pack::pack;
use openshell_access::transfer::unpack::{Links, Options, unpack};
use openshell_access::{sftp, streamlocal};

use openshell_events::text::indented;
use openshell_telemetry::logging::print_stderr;

/// Serves a client over standard input and output. `words` are arguments of services that take
/// some.
///
/// # Errors
/// Fails if there is no such service, or if it fails.
pub(crate) fn serve(service: &str, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let file = |stream: BorrowedFd<'_>| stream.try_clone_to_owned().map(File::from);
    match service {
        "sftp" => sftp::serve(file(io::stdin().as_fd())?, file(io::stdout().as_fd())?)?,
        "send" => return transferred(pack(&path(words), true, file(io::stdout().as_fd())?)),
        // No restrictions, because the kernel decides what may be written inside.
        "receive" => {
            let options = Options {
                links: Links::All,
                git_hooks: true,
                follows_links: true,
            };
            let name = words.get(1).cloned().unwrap_or_default();
            return transferred(unpack(
                file(io::stdin().as_fd())?,
                &path(words),
                &name,
                options,
            ));
        }
        "socket" => streamlocal::serve(io::stdin().as_fd(), words)?,
        _ => bail!("--internal is only for the sandbox itself: it serves sftp, sockets and copies"),
    }
    Ok(ExitCode::SUCCESS)
}

fn path(words: &[OsString]) -> PathBuf {
    words.first().map(PathBuf::from).unwrap_or_default()
}

/// Prints what a copy left out.
fn transferred(done: Result<LeftOut, TransferError>) -> anyhow::Result<ExitCode> {
    let left_out = done?;
    for line in left_out.lines() {
        print_stderr(&indented(&format!("openshell-sandbox: inside: {line}")));
    }
    Ok(ExitCode::from(u8::from(left_out.has_failures)))
}
