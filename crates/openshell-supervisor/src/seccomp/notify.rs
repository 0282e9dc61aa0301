//! The filter that has the kernel hand every connect(2) of the sandbox to the supervisor.

use std::io;
use std::os::fd::OwnedFd;

use crate::sys::notify;

/// The architecture in `struct seccomp_data` (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Installs the filter for the calling thread and all that it starts, and returns its listener. The refusals of a filter of
/// commands come first, and calls through other architectures' tables are refused there.
///
/// # Errors
/// The kernel lacks user notifications, or a filter with a listener is in force already (EBUSY).
pub(crate) fn install() -> io::Result<OwnedFd> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // `struct seccomp_data` begins with the number, then the architecture.
    notify::install_listener(&[
        step(LOAD, 0, 0, 4),
        step(JUMP_EQUAL, 0, 3, ARCHITECTURE),
        step(LOAD, 0, 0, 0),
        step(JUMP_EQUAL, 0, 1, libc::SYS_connect as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ])
}
