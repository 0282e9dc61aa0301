//! What the kernel tells a parent about its children.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::WaitStatus;

use crate::init::ipc::Status;

/// Returns how a child ended, if it has.
pub(super) fn ended_status(status: WaitStatus) -> Option<Status> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(Status::Exited(code)),
        (None, Some(signal)) => Some(Status::Killed(signal)),
        (None, None) => None,
    }
}

/// Empties a signalfd. Its records are dropped, because wait(2) gives the details.
pub(super) fn drain(signals: &OwnedFd) -> io::Result<()> {
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    loop {
        match rustix::io::read(signals, &mut record) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
