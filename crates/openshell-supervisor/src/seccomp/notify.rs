//! The filter that has the kernel hand system calls of the sandbox to the supervisor: every connect(2), and calls about files where they
//! are logged.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::sys::notify;

/// The architecture in `struct seccomp_data` (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Calls about files that are handed to the supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileCalls {
    /// None.
    #[default]
    None,
    /// Calls that open, execute, create, rename or remove a file.
    Accesses,
    /// Those, and calls that only look at one.
    AccessesAndLookups,
}

/// Calls that open, execute, create, rename or remove a file.
const ACCESSES: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
];

/// The same by their older names.
#[cfg(target_arch = "x86_64")]
const OLDER_ACCESSES: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_link,
    libc::SYS_symlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_ACCESSES: &[libc::c_long] = &[];

/// Calls that only look at a file. Those that name an empty path, which look at an open one, are many, and are not handed over.
const LOOKUPS: &[libc::c_long] = &[libc::SYS_newfstatat, libc::SYS_statx];
const PLAIN_LOOKUPS: &[libc::c_long] = &[libc::SYS_faccessat, libc::SYS_faccessat2];
#[cfg(target_arch = "x86_64")]
const OLDER_LOOKUPS: &[libc::c_long] = &[libc::SYS_stat, libc::SYS_lstat, libc::SYS_access];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_LOOKUPS: &[libc::c_long] = &[];

/// Calls that are handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notified {
    pub(crate) connects: bool,
    pub(crate) files: FileCalls,
}

impl Notified {
    /// Returns true if no call is.
    pub(crate) fn is_empty(self) -> bool {
        !self.connects && self.files == FileCalls::None
    }

    /// Calls that are handed over whatever their arguments.
    fn plain(self) -> impl Iterator<Item = libc::c_long> {
        let lists: &[&[libc::c_long]] = match self.files {
            FileCalls::None => &[],
            FileCalls::Accesses => &[ACCESSES, OLDER_ACCESSES],
            FileCalls::AccessesAndLookups => &[ACCESSES, OLDER_ACCESSES, PLAIN_LOOKUPS, OLDER_LOOKUPS],
        };
        self.connects.then_some(libc::SYS_connect).into_iter().chain(lists.iter().copied().flatten().copied())
    }

    /// Calls that are handed over unless AT_EMPTY_PATH is among the flags, with the index of that argument.
    fn by_path(self) -> impl Iterator<Item = (libc::c_long, u32)> {
        let lookups = if self.files == FileCalls::AccessesAndLookups { LOOKUPS } else { &[] };
        lookups.iter().map(|number| (*number, if *number == libc::SYS_statx { 2 } else { 3 }))
    }

    /// Returns the program (seccomp(2)).
    fn program(self) -> Vec<libc::sock_filter> {
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const JUMP_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let hand_over = step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF);
        let allow = step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
        // `struct seccomp_data` begins with the number, then the architecture, the instruction pointer and the arguments.
        let mut program = vec![step(LOAD, 0, 0, 4), step(JUMP_EQUAL, 1, 0, ARCHITECTURE), allow, step(LOAD, 0, 0, 0)];
        for number in self.plain() {
            program.extend([step(JUMP_EQUAL, 0, 1, number as u32), hand_over]);
        }
        for (number, flags) in self.by_path() {
            // The lower half of the argument.
            let (flags, empty) = (step(LOAD, 0, 0, 16 + 8 * flags), step(JUMP_SET, 0, 1, libc::AT_EMPTY_PATH as u32));
            program.extend([step(JUMP_EQUAL, 0, 4, number as u32), flags, empty, allow, hand_over]);
        }
        program.push(allow);
        program
    }
}

/// Installs the filter for the calling thread and all that it starts, and returns its listener. The refusals of a filter of
/// commands come first, and calls through other architectures' tables are refused there.
///
/// # Errors
/// The kernel lacks user notifications, or a filter with a listener is in force already (EBUSY).
pub(crate) fn install(notified: Notified) -> io::Result<OwnedFd> {
    notify::install_listener(&notified.program())
}
