//! Collects the orphans that a supervisor gets which is PID 1 of an image.

use rustix::process::WaitOptions;

/// Collects every child that has ended. Init may be among them; who waits for init asks its pidfd.
pub fn collect_orphans() {
    while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_)) | Err(rustix::io::Errno::INTR)) {}
}
