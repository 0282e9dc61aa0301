//! Reaps orphans for a supervisor that is PID 1 of its container.

use rustix::process::WaitOptions;

/// Reaps every child that has ended, without blocking. This may reap init too, whose end the
/// supervisor awaits through a pidfd.
pub fn collect_orphans() {
    while matches!(
        rustix::process::wait(WaitOptions::NOHANG),
        Ok(Some(_)) | Err(rustix::io::Errno::INTR)
    ) {}
}
