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
    let one = |folder: u64, address, is_followed, want| {
        // The kernel uses the lower half of a descriptor only.
        [
            Some(Named {
                folder: folder as i32,
                address,
                is_followed,
                want,
            }),
            None,
        ]
    };
    let here = AT_FDCWD as u64;
    let opened = |folder, address, flags: u64| {
        let (want, is_followed) = opened(flags as i32);
        one(folder, address, is_followed, want)
    };
    let entry = |folder: u64, address, want| Named {
        folder: folder as i32,
        address,
        is_followed: false,
        want,
    };
    let new = |folder, address| [Some(entry(folder, address, Want::NewEntry)), None];
    let renamed = |folder, address, to, name| {
        [
            Some(entry(folder, address, Want::Entry)),
            Some(entry(to, name, Want::Target)),
        ]
    };
    let access = |access| Want::Access {
        access,
        creates: false,
    };
    let is_followed = |flags: u64| flags as i32 & AT_SYMLINK_NOFOLLOW == 0;
    match c_long::from(call.number) {
        libc::SYS_openat => opened(first, second, third),
        libc::SYS_openat2 => {
            read_word(third).map_or([None, None], |flags| opened(first, second, flags))
        }
        libc::SYS_execve => one(here, first, true, access(FileAccess::Execute)),
        libc::SYS_execveat => one(
            first,
            second,
            is_followed(fifth),
            access(FileAccess::Execute),
        ),
        libc::SYS_truncate => one(here, first, true, access(FileAccess::Write)),
        libc::SYS_unlinkat => one(first, second, false, Want::Entry),
        libc::SYS_mkdirat | libc::SYS_mknodat => new(first, second),
        libc::SYS_symlinkat => new(second, third),
        libc::SYS_linkat => new(third, fourth),
        libc::SYS_renameat | libc::SYS_renameat2 => renamed(first, second, third, fourth),
        libc::SYS_newfstatat => one(first, second, is_followed(fourth), Want::Lookup),
        libc::SYS_statx => one(first, second, is_followed(third), Want::Lookup),
        libc::SYS_faccessat | libc::SYS_faccessat2 => one(first, second, true, Want::Lookup),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => opened(here, first, second),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat => opened(
            here,
            first,
            (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC) as u64,
        ),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_unlink | libc::SYS_rmdir => one(here, first, false, Want::Entry),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_mkdir | libc::SYS_mknod => new(here, first),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_symlink | libc::SYS_link => new(here, second),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename => renamed(here, first, here, second),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_stat | libc::SYS_access => one(here, first, true, Want::Lookup),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_lstat => one(here, first, false, Want::Lookup),
        _ => [None, None],
    }
}

/// Returns what open(2) with `flags` wants, and true if it follows a symlink at the end of the
/// path.
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
