//! The filter that makes the kernel hand system calls of the sandbox to the supervisor: every
//! connect(2) and listen(2), and calls about files if these are logged.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::seccomp::bpf::{ARCH, ARCHITECTURE, NUMBER, Test, argument, end, jump_if, load};
use crate::sys::notify;

/// The calls about files that are handed to the supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileCalls {
    /// No calls.
    #[default]
    None,
    /// Calls that open, execute, create, rename or remove a file.
    Accesses,
    /// The same calls, and calls that only look at a file.
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

/// The older calls that do the same.
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

/// Calls that only look at a file. Those with an empty path look at an open file. They are
/// frequent, and are not handed over.
const LOOKUPS: &[libc::c_long] = &[libc::SYS_newfstatat, libc::SYS_statx];
const PLAIN_LOOKUPS: &[libc::c_long] = &[libc::SYS_faccessat, libc::SYS_faccessat2];
#[cfg(target_arch = "x86_64")]
const OLDER_LOOKUPS: &[libc::c_long] = &[libc::SYS_stat, libc::SYS_lstat, libc::SYS_access];
#[cfg(not(target_arch = "x86_64"))]
const OLDER_LOOKUPS: &[libc::c_long] = &[];

/// The calls that are handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notified {
    pub(crate) connects: bool,
    pub(crate) files: FileCalls,
}

impl Notified {
    /// Returns true if no call is handed over.
    pub(crate) fn is_empty(self) -> bool {
        !self.connects && self.files == FileCalls::None
    }

    /// Returns the calls that are handed over whatever their arguments are.
    fn plain(self) -> impl Iterator<Item = libc::c_long> {
        let lists: &[&[libc::c_long]] = match self.files {
            FileCalls::None => &[],
            FileCalls::Accesses => &[ACCESSES, OLDER_ACCESSES],
            FileCalls::AccessesAndLookups => {
                &[ACCESSES, OLDER_ACCESSES, PLAIN_LOOKUPS, OLDER_LOOKUPS]
            }
        };
        let network: &[_] = if self.connects {
            &[libc::SYS_connect, libc::SYS_listen]
        } else {
            &[]
        };
        network
            .iter()
            .copied()
            .chain(lists.iter().copied().flatten().copied())
    }

    /// Returns the calls that are handed over unless AT_EMPTY_PATH is among the flags, with the
    /// index of the flags argument.
    fn by_path(self) -> impl Iterator<Item = (libc::c_long, u32)> {
        let lookups = if self.files == FileCalls::AccessesAndLookups {
            LOOKUPS
        } else {
            &[]
        };
        lookups
            .iter()
            .map(|number| (*number, if *number == libc::SYS_statx { 2 } else { 3 }))
    }

    /// Returns the filter program (seccomp(2)).
    fn program(self) -> Vec<libc::sock_filter> {
        let hand_over = end(libc::SECCOMP_RET_USER_NOTIF);
        let allow = end(libc::SECCOMP_RET_ALLOW);
        let mut program = vec![
            load(ARCH),
            jump_if(Test::Equal, ARCHITECTURE, 1, 0),
            allow,
            load(NUMBER),
        ];
        for number in self.plain() {
            program.extend([jump_if(Test::Equal, number as u32, 0, 1), hand_over]);
        }
        for (number, flags) in self.by_path() {
            let is_by_path = jump_if(Test::AnyBit, libc::AT_EMPTY_PATH as u32, 0, 1);
            program.extend([
                jump_if(Test::Equal, number as u32, 0, 4),
                load(argument(flags)),
                is_by_path,
                allow,
                hand_over,
            ]);
        }
        program.push(allow);
        program
    }
}

/// Installs the filter for the calling thread and everything that it starts, and returns its
/// listener. The refusals of a command's filter take precedence, and that filter refuses calls
/// through other architectures' tables.
///
/// # Errors
/// Fails if the kernel lacks user notifications, or with EBUSY if a filter with a listener is
/// already in force.
pub(crate) fn install(notified: Notified) -> io::Result<OwnedFd> {
    notify::install_listener(&notified.program())
}
