//! Finds the paths that a system call names, and what the call wants of them.

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_long};
use openshell_events::words::FileAccess;

use crate::sys::notify::Notification;

/// What a call wants of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// To access the file or folder itself. If there is none, the call creates it when `creates` is
    /// true.
    Access { access: FileAccess, creates: bool },
    /// To create a file without a name in the folder.
    Unnamed,
    /// To add an entry to its folder. The kernel first looks whether the entry exists.
    NewEntry,
    /// To remove the entry, which must exist, from its folder.
    Entry,
    /// To add the entry to its folder, or replace it there.
    Target,
    /// To look at the file.
    Lookup,
}

impl Want {
    /// Access to what is there.
    const fn of(access: FileAccess) -> Self {
        Self::Access {
            access,
            creates: false,
        }
    }
}

/// A path that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    /// The descriptor of the folder in which a relative path starts, or AT_FDCWD.
    pub(super) folder: i32,
    /// The address of the path in the caller's memory.
    pub(super) address: u64,
    /// True if a symlink at the end of the path is followed.
    pub(super) is_followed: bool,
    pub(super) want: Want,
}

/// Returns the paths that `call` names. `read_word` reads eight bytes of the caller's memory.
pub(super) fn named(
    call: &Notification,
    read_word: impl Fn(u64) -> Option<u64>,
) -> [Option<Named>; 2] {
    let [first, second, third, fourth, fifth, _] = call.arguments;
    let execute = Want::of(FileAccess::Execute);
    let is_followed = |flags: u64| flags as i32 & AT_SYMLINK_NOFOLLOW == 0;
    match c_long::from(call.number) {
        libc::SYS_openat => opened_at(first, second, third),
        libc::SYS_openat2 => match read_word(third) {
            Some(flags) => opened_at(first, second, flags),
            None => [None, None],
        },
        libc::SYS_execve => one(HERE, first, true, execute),
        libc::SYS_execveat => one(first, second, is_followed(fifth), execute),
        libc::SYS_truncate => one(HERE, first, true, Want::of(FileAccess::Write)),
        libc::SYS_unlinkat => one(first, second, false, Want::Entry),
        libc::SYS_mkdirat | libc::SYS_mknodat => one(first, second, false, Want::NewEntry),
        libc::SYS_symlinkat => one(second, third, false, Want::NewEntry),
        libc::SYS_linkat => one(third, fourth, false, Want::NewEntry),
        libc::SYS_renameat | libc::SYS_renameat2 => renamed(first, second, third, fourth),
        libc::SYS_newfstatat => one(first, second, is_followed(fourth), Want::Lookup),
        libc::SYS_statx => one(first, second, is_followed(third), Want::Lookup),
        libc::SYS_faccessat | libc::SYS_faccessat2 => one(first, second, true, Want::Lookup),
        #[cfg(target_arch = "x86_64")]
        number => named_here(number, first, second),
        #[cfg(not(target_arch = "x86_64"))]
        _ => [None, None],
    }
}

/// Returns the paths that a call with this `number` names, if it is one of those that know no
/// folder but the working directory.
#[cfg(target_arch = "x86_64")]
fn named_here(number: c_long, first: u64, second: u64) -> [Option<Named>; 2] {
    match number {
        libc::SYS_open => opened_at(HERE, first, second),
        libc::SYS_creat => {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
            opened_at(HERE, first, flags as u64)
        }
        libc::SYS_unlink | libc::SYS_rmdir => one(HERE, first, false, Want::Entry),
        libc::SYS_mkdir | libc::SYS_mknod => one(HERE, first, false, Want::NewEntry),
        libc::SYS_symlink | libc::SYS_link => one(HERE, second, false, Want::NewEntry),
        libc::SYS_rename => renamed(HERE, first, HERE, second),
        libc::SYS_stat | libc::SYS_access => one(HERE, first, true, Want::Lookup),
        libc::SYS_lstat => one(HERE, first, false, Want::Lookup),
        _ => [None, None],
    }
}

/// The working directory, as a call names it.
const HERE: u64 = AT_FDCWD as u64;

impl Named {
    fn new(folder: u64, address: u64, is_followed: bool, want: Want) -> Self {
        Self {
            // The kernel takes the lower half of a descriptor.
            folder: folder as i32,
            address,
            is_followed,
            want,
        }
    }
}

fn one(folder: u64, address: u64, is_followed: bool, want: Want) -> [Option<Named>; 2] {
    [Some(Named::new(folder, address, is_followed, want)), None]
}

fn opened_at(folder: u64, address: u64, flags: u64) -> [Option<Named>; 2] {
    let (want, is_followed) = opened(flags as i32);
    one(folder, address, is_followed, want)
}

fn renamed(folder: u64, address: u64, to: u64, name: u64) -> [Option<Named>; 2] {
    [
        Some(Named::new(folder, address, false, Want::Entry)),
        Some(Named::new(to, name, false, Want::Target)),
    ]
}

/// Returns what open(2) with `flags` wants, and true if it follows a symlink.
fn opened(flags: i32) -> (Want, bool) {
    let is_exclusive = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let is_followed = flags & libc::O_NOFOLLOW == 0 && !is_exclusive;
    let is_written = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let want = match () {
        // Landlock does not check this.
        () if flags & libc::O_PATH != 0 => Want::Lookup,
        () if flags & libc::O_TMPFILE == libc::O_TMPFILE => Want::Unnamed,
        () if is_exclusive => Want::NewEntry,
        () => Want::Access {
            access: if is_written {
                FileAccess::Write
            } else {
                FileAccess::Read
            },
            creates: flags & libc::O_CREAT != 0,
        },
    };
    (want, is_followed)
}

#[cfg(test)]
mod tests {
    use libc::{AT_FDCWD, c_long};
    use openshell_events::words::FileAccess;

    use super::{Named, Want, named};
    use crate::sys::notify::Notification;

    fn of(number: c_long, arguments: [u64; 6]) -> [Option<Named>; 2] {
        named(
            &Notification {
                id: 1,
                thread: 1,
                number: number as i32,
                arguments,
            },
            |_| Some(libc::O_RDWR as u64),
        )
    }

    #[test]
    fn each_call_names_its_paths_and_what_it_wants_of_them() {
        let here = AT_FDCWD as u32 as u64;
        let access = |access, creates| Want::Access { access, creates };
        let read = access(FileAccess::Read, false);
        let write = access(FileAccess::Write, false);
        let create = (libc::O_RDONLY | libc::O_CREAT) as u64;
        for (number, arguments, expected) in [
            (
                libc::SYS_openat,
                [here, 7, libc::O_RDONLY as u64, 0, 0, 0],
                vec![(AT_FDCWD, 7, true, read)],
            ),
            (
                libc::SYS_openat,
                [5, 7, libc::O_NOFOLLOW as u64, 0, 0, 0],
                vec![(5, 7, false, read)],
            ),
            (
                libc::SYS_openat,
                [5, 7, libc::O_RDWR as u64, 0, 0, 0],
                vec![(5, 7, true, write)],
            ),
            (
                libc::SYS_openat,
                [5, 7, libc::O_TRUNC as u64, 0, 0, 0],
                vec![(5, 7, true, write)],
            ),
            (
                libc::SYS_openat,
                [5, 7, create, 0, 0, 0],
                vec![(5, 7, true, access(FileAccess::Read, true))],
            ),
            (
                libc::SYS_openat,
                [5, 7, create | libc::O_EXCL as u64, 0, 0, 0],
                vec![(5, 7, false, Want::NewEntry)],
            ),
            (
                libc::SYS_openat,
                [5, 7, libc::O_PATH as u64, 0, 0, 0],
                vec![(5, 7, true, Want::Lookup)],
            ),
            (
                libc::SYS_openat2,
                [5, 7, 9, 24, 0, 0],
                vec![(5, 7, true, write)],
            ),
            (
                libc::SYS_execve,
                [7, 8, 9, 0, 0, 0],
                vec![(AT_FDCWD, 7, true, access(FileAccess::Execute, false))],
            ),
            (
                libc::SYS_renameat2,
                [5, 7, 6, 8, 0, 0],
                vec![(5, 7, false, Want::Entry), (6, 8, false, Want::Target)],
            ),
            (
                libc::SYS_symlinkat,
                [7, 6, 8, 0, 0, 0],
                vec![(6, 8, false, Want::NewEntry)],
            ),
            (
                libc::SYS_linkat,
                [5, 7, 6, 8, 0, 0],
                vec![(6, 8, false, Want::NewEntry)],
            ),
            (
                libc::SYS_mkdirat,
                [5, 7, 0, 0, 0, 0],
                vec![(5, 7, false, Want::NewEntry)],
            ),
            (
                libc::SYS_unlinkat,
                [5, 7, 0, 0, 0, 0],
                vec![(5, 7, false, Want::Entry)],
            ),
            (
                libc::SYS_newfstatat,
                [5, 7, 9, 0x100, 0, 0],
                vec![(5, 7, false, Want::Lookup)],
            ),
            (
                libc::SYS_statx,
                [5, 7, 0, 0, 9, 0],
                vec![(5, 7, true, Want::Lookup)],
            ),
            (libc::SYS_connect, [5, 7, 0, 0, 9, 0], vec![]),
        ] {
            let found: Vec<_> = of(number, arguments).into_iter().flatten().collect();
            let named = |(folder, address, is_followed, want)| Named {
                folder,
                address,
                is_followed,
                want,
            };
            assert_eq!(
                found,
                expected.into_iter().map(named).collect::<Vec<_>>(),
                "{number} {arguments:?}"
            );
        }
    }
}
