//! Observes which files the sandbox's programs ask for, from the paths in their system calls.
//!
//! The calls go on by themselves. What is seen here is logged and learnt from, but never used for a
//! decision, because a program can change a path while its call waits. Which calls are refused is
//! predicted from the rules; the kernel's answer is not known here.

mod call;
mod place;
mod rights;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openshell_events::words::FileAccess;
use rustix::fs::{FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::calls::waiting_calls::{Handle, Handler, WaitingCalls};
use crate::files::carve_outs::Restriction;
use crate::identity::run_as::ProcessIdentity;
use crate::sys::notify::{self, Answer, Notification};
use call::{Named, Want, named};
use place::{Found, Root, kind};
pub use rights::{FileRights, RefusedBy};

/// An access that a program asks for.
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The calling thread, in the supervisor's PID namespace.
    pub thread: i32,
    /// The path in the sandbox, without symlinks.
    pub path: PathBuf,
    /// The symlink that named the file, if the last part of the name is one.
    pub link: Option<PathBuf>,
    /// The access.
    pub access: FileAccess,
    /// True if the path is a folder.
    pub is_folder: bool,
    /// True if the call only looks at the file. No rule refuses that, but a masked path is out of
    /// sight.
    pub is_lookup: bool,
    /// True if the call adds, removes or replaces the file's entry in its folder.
    pub is_entry: bool,
    /// True if there is no such file.
    pub is_missing: bool,
    /// The part of the sandbox that refuses the access.
    pub refused_by: Option<RefusedBy>,
    /// True if the access is refused, and the mode of the file or of the entry's folder refuses it
    /// too.
    pub is_refused_by_mode: bool,
}

impl Accessed {
    /// Returns an access to a file that nothing refuses.
    #[must_use]
    pub fn new(thread: i32, path: PathBuf, access: FileAccess) -> Self {
        Self {
            thread,
            path,
            link: None,
            access,
            is_folder: false,
            is_lookup: false,
            is_entry: false,
            is_missing: false,
            refused_by: None,
            is_refused_by_mode: false,
        }
    }
}

/// Receives accesses.
pub trait FileObserver: Send + Sync {
    /// Receives an access. The thread that asks for it waits meanwhile. Must not block.
    fn accessed(&self, accessed: Accessed);

    /// Reports that calls are no longer answered.
    fn failed(&self, error: io::Error);
}

/// Returns the interpreter that the script at `path` names; `None` if the file is not a script.
#[must_use]
pub fn interpreter(path: &Path) -> Option<PathBuf> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    place::interpreter(&file)
}

/// Returns the handler of the calls about files among `calls`. It reports to `observer` what
/// processes of `identity` access under `rights`.
#[must_use]
pub fn handler(
    calls: &WaitingCalls,
    rights: FileRights,
    identity: ProcessIdentity,
    observer: Arc<dyn FileObserver>,
) -> Handler {
    Handler::new(Arc::new(FileCallHandler {
        listener: calls.listener(),
        root: Root::default(),
        rights,
        identity,
        observer,
    }))
}

/// The paths of processes and of their open files (proc(5), `/proc/PID/fd`).
const OF_PROCESSES: &[&str] = &[
    "/proc",
    "/dev/fd",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
];

struct FileCallHandler {
    listener: Arc<OwnedFd>,
    root: Root,
    rights: FileRights,
    identity: ProcessIdentity,
    observer: Arc<dyn FileObserver>,
}

impl Handle for FileCallHandler {
    fn answer(&self, call: &Notification) -> Answer {
        let read_word = |address| {
            let mut word = [0; 8];
            let filled = notify::read_memory(call.thread, address, &mut word).ok()?;
            (filled == word.len()).then(|| u64::from_ne_bytes(word))
        };
        for named in named(call, read_word).into_iter().flatten() {
            let all = self.look_at(call.thread, &named);
            // If the entry is not there, it is not renamed either.
            let is_over = all.is_empty() && named.want == Want::Entry;
            // If the caller still waits, what was read is true of it.
            if is_over || !notify::is_waiting(self.listener.as_fd(), call.id) {
                break;
            }
            for accessed in all {
                self.observer.accessed(accessed);
            }
        }
        Answer::Continue
    }

    fn failed(&self, error: io::Error) {
        self.observer.failed(error);
    }
}

impl FileCallHandler {
    /// Returns the accesses that a call asks for by one of its paths. There are none if the file
    /// does not exist or no rule concerns it.
    fn look_at(&self, thread: i32, named: &Named) -> Vec<Accessed> {
        let path = place::read_path(thread, named.address);
        let path = path.and_then(|path| place::absolute(thread, named.folder, path));
        // Paths in /proc are processes of the sandbox, which come and go, and their open files.
        let Some(path) =
            path.filter(|path| !OF_PROCESSES.iter().any(|place| path.starts_with(place)))
        else {
            return Vec::new();
        };
        let found = self.root.find(thread, &path, named.is_followed);
        if matches!(found, Err(Errno::NOENT | Errno::ACCESS))
            && let Some(place) = self.root.masked(thread, &path, named.is_followed, |file| {
                self.rights.is_stand_in(file)
            })
        {
            return vec![self.masked(thread, place, named.want)];
        }
        match (found, named.want) {
            (Ok(found), Want::Access { access, .. }) => self.access(thread, found, access),
            (Ok(found), Want::Unnamed) => vec![self.judged(thread, found, FileAccess::Write)],
            // The entry exists already, and the kernel reports that.
            (Ok(_), Want::NewEntry) => Vec::new(),
            (Ok(_), Want::Entry | Want::Target) => self.entry(thread, &path),
            (Ok(found), Want::Lookup) => self.lookup(thread, found),
            (
                Err(Errno::NOENT),
                Want::Access { creates: true, .. } | Want::NewEntry | Want::Target,
            ) => self.entry(thread, &path),
            (Err(Errno::NOENT), Want::Access { creates: false, .. } | Want::Lookup) => {
                let path = place::normalized(&path);
                vec![Accessed {
                    is_missing: true,
                    ..Accessed::new(thread, path, FileAccess::Read)
                }]
            }
            (Err(_), _) => Vec::new(),
        }
    }

    /// Returns an access to a path that may exist below a masked folder.
    fn masked(&self, thread: i32, path: PathBuf, want: Want) -> Accessed {
        let (access, is_entry) = match want {
            Want::Access { access, creates } => (access, creates && access == FileAccess::Write),
            Want::Unnamed => (FileAccess::Write, false),
            Want::NewEntry | Want::Entry | Want::Target => (FileAccess::Write, true),
            Want::Lookup => (FileAccess::Read, false),
        };
        let refused_by = self
            .rights
            .refusal(&path, access)
            .or(Some(RefusedBy::NoGrant));
        let is_lookup = want == Want::Lookup;
        Accessed {
            is_lookup,
            is_entry,
            refused_by,
            ..Accessed::new(thread, path, access)
        }
    }

    /// Returns the access of a call that looks at an existing file.
    fn lookup(&self, thread: i32, Found { fd, path, link }: Found) -> Vec<Accessed> {
        let Ok(kind) = kind(&fd) else {
            return Vec::new();
        };
        let is_folder = kind == FileType::Directory;
        let access = if is_folder {
            FileAccess::List
        } else {
            FileAccess::Read
        };
        vec![Accessed {
            link,
            is_folder,
            is_lookup: true,
            ..Accessed::new(thread, path, access)
        }]
    }

    /// Returns the accesses to an existing file.
    fn access(&self, thread: i32, found: Found, access: FileAccess) -> Vec<Accessed> {
        let access = match (access, kind(&found.fd)) {
            (FileAccess::Read, Ok(FileType::Directory)) => FileAccess::List,
            // No rule is consulted, because a folder can be neither written nor executed.
            (FileAccess::Write | FileAccess::Execute, Ok(FileType::Directory)) => {
                return Vec::new();
            }
            (FileAccess::Execute, Ok(kind)) if kind != FileType::RegularFile => return Vec::new(),
            (access, _) => access,
        };
        // The kernel opens the interpreter by itself.
        let interpreter = (access == FileAccess::Execute)
            .then(|| place::interpreter(&found.fd))
            .flatten();
        let interpreter = interpreter.and_then(|path| self.root.find(thread, &path, true).ok());
        let interpreter = interpreter.map(|found| self.judged(thread, found, FileAccess::Execute));
        std::iter::once(self.judged(thread, found, access))
            .chain(interpreter)
            .collect()
    }

    /// Returns an access with the part of the sandbox that refuses it.
    fn judged(&self, thread: i32, Found { fd, path, link }: Found, access: FileAccess) -> Accessed {
        let is_folder = kind(&fd).is_ok_and(|kind| kind == FileType::Directory);
        let refused_by = self
            .rights
            .refusal(&path, access)
            .or_else(|| self.mount_refusal(&fd, &path, access));
        let is_refused_by_mode = refused_by.is_some()
            && !self.rights.is_stand_in(&fd)
            && !self.identity.may_use(&fd, access);
        Accessed {
            link,
            is_folder,
            refused_by,
            is_refused_by_mode,
            ..Accessed::new(thread, path, access)
        }
    }

    /// Returns a change of the entry that `path` names.
    fn entry(&self, thread: i32, path: &Path) -> Vec<Accessed> {
        let folder = path
            .parent()
            .and_then(|folder| self.root.find(thread, folder, true).ok());
        let Some((folder, name)) = folder.zip(path.file_name()) else {
            return Vec::new();
        };
        let access = FileAccess::Write;
        let path = folder.path.join(name);
        let is_hidden = self.rights.is_carved_out(&path, Restriction::Hidden);
        let hidden = is_hidden.then_some(RefusedBy::CarveOut(Restriction::Hidden));
        let refused_by = hidden.or_else(|| self.rights.refusal(&folder.path, access));
        let refused_by = refused_by.or_else(|| self.mount_refusal(&folder.fd, &path, access));
        let is_refused_by_mode = refused_by.is_some() && !self.identity.may_use(&folder.fd, access);
        vec![Accessed {
            is_entry: true,
            refused_by,
            is_refused_by_mode,
            ..Accessed::new(thread, path, access)
        }]
    }

    /// Returns the part that refuses `access` to `path`, which is open as `fd`, by a mount; `None`
    /// if no mount refuses it.
    fn mount_refusal(&self, fd: &OwnedFd, path: &Path, access: FileAccess) -> Option<RefusedBy> {
        let is_mounted =
            |flag| rustix::fs::fstatvfs(fd).is_ok_and(|data| data.f_flag.contains(flag));
        let carve_out = |restriction| {
            if self.rights.is_carved_out(path, restriction) {
                RefusedBy::CarveOut(restriction)
            } else {
                RefusedBy::Protection
            }
        };
        match access {
            FileAccess::Write => {
                is_mounted(StatVfsMountFlags::RDONLY).then(|| carve_out(Restriction::ReadOnly))
            }
            FileAccess::Execute => is_mounted(StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC))
                .then(|| carve_out(Restriction::NoExec)),
            FileAccess::Read | FileAccess::List => {
                self.rights.is_stand_in(fd).then_some(RefusedBy::Protection)
            }
        }
    }
}
