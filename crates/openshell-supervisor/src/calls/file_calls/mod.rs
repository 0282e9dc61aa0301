//! Files that the sandbox's programs ask for, as their system calls name them.
//!
//! The calls go on by themselves. What is seen here is logged and learnt from, and never decided
//! upon: a program can change a path while its call waits, and what the kernel refuses is told by
//! the rules, not by the kernel.

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

/// An access that a program asked for.
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The calling thread, in the supervisor's PID namespace.
    pub thread: i32,
    /// The path in the sandbox, without symlinks.
    pub path: PathBuf,
    /// The symlink by which it was named, if the last part of its name is one.
    pub link: Option<PathBuf>,
    /// The access.
    pub access: FileAccess,
    /// True for a folder.
    pub is_folder: bool,
    /// True if the call only looks at it, which no rule refuses.
    pub is_lookup: bool,
    /// True if the call adds, removes or replaces the entry in its folder.
    pub is_entry: bool,
    /// True if there is no such file.
    pub is_missing: bool,
    /// The part of the sandbox that refuses it.
    pub refused_by: Option<RefusedBy>,
    /// True if the mode of the file, or of the entry's folder, refuses a refused access too.
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

/// Receiver of accesses.
pub trait FileObserver: Send + Sync {
    /// Takes an access; its thread waits meanwhile. Must not block.
    fn accessed(&self, accessed: Accessed);

    /// Reports that calls are not answered any more.
    fn failed(&self, error: io::Error);
}

/// Returns the interpreter that the script at `path` names; `None` for what is no script.
#[must_use]
pub fn interpreter(path: &Path) -> Option<PathBuf> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    place::interpreter(&file)
}

/// Returns the handler of calls about files among `calls`, which tells `observer` of accesses by
/// processes of `identity` under `rights`.
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

/// Paths of processes, and of their open files (proc(5), `/proc/PID/fd`).
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
            // What is not there is not renamed.
            let is_over = all.is_empty() && named.want == Want::Entry;
            // What was read is true of the caller if it waits still.
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
    /// Returns the accesses that a call asks for by one of its paths; none if that is not there, or
    /// no rule is about it.
    fn look_at(&self, thread: i32, named: &Named) -> Vec<Accessed> {
        let path = place::read_path(thread, named.address);
        let path = path.and_then(|path| place::absolute(thread, named.folder, path));
        // Those in /proc are processes of the sandbox, which come and go, with their open files.
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
            // It is there, and that is the answer.
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

    /// An access to what may be in a masked folder.
    fn masked(&self, thread: i32, path: PathBuf, want: Want) -> Accessed {
        let (access, is_entry) = match want {
            Want::Access { access, .. } => (access, false),
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

    /// Looking at what is there.
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

    /// An access to what is there.
    fn access(&self, thread: i32, found: Found, access: FileAccess) -> Vec<Accessed> {
        let access = match (access, kind(&found.fd)) {
            (FileAccess::Read, Ok(FileType::Directory)) => FileAccess::List,
            // No rule is asked: it is neither written nor executed.
            (FileAccess::Write | FileAccess::Execute, Ok(FileType::Directory)) => {
                return Vec::new();
            }
            (FileAccess::Execute, Ok(kind)) if kind != FileType::RegularFile => return Vec::new(),
            (access, _) => access,
        };
        // The kernel opens that by itself.
        let interpreter = (access == FileAccess::Execute)
            .then(|| place::interpreter(&found.fd))
            .flatten();
        let interpreter = interpreter.and_then(|path| self.root.find(thread, &path, true).ok());
        let interpreter = interpreter.map(|found| self.judged(thread, found, FileAccess::Execute));
        std::iter::once(self.judged(thread, found, access))
            .chain(interpreter)
            .collect()
    }

    /// An access, and the part of the sandbox that refuses it.
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

    /// A change of the entry that `path` names.
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

    /// Returns the mount over `path`, which has `fd` open, that refuses `access`.
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
