//! Files that the sandbox's programs ask for, as their system calls name them.
//!
//! The calls go on by themselves. What is seen here is logged and learnt from, and never decided upon: a program can change a path while
//! its call waits, and what the kernel refuses is told by the rules, not by the kernel.

mod call;
mod place;
mod rights;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openshell_policy::words::FileAccess;
use rustix::fs::{FileType, StatVfsMountFlags};
use rustix::io::Errno;

use crate::carve_outs::Restriction;
use crate::run_as::ProcessIdentity;
use crate::sys::notify::{self, Answer, Notification};
use crate::waiting_calls::{Handle, Handler, WaitingCalls};
use call::{Named, Want, named};
use place::{Found, Root, is_placeholder, kind};
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

/// Returns the handler of calls about files among `calls`, which tells `observer` of accesses by processes of `identity` under
/// `rights`.
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
            if let Some(accessed) = self.look_at(call.thread, &named)
                // What was read is true of the caller if it waits still.
                && notify::is_waiting(self.listener.as_fd(), call.id)
            {
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
    /// Returns the access that a call asks for by one of its paths; `None` if that is not there, or no rule is about it.
    fn look_at(&self, thread: i32, named: &Named) -> Option<Accessed> {
        let path = place::absolute(thread, named.folder, place::read_path(thread, named.address)?)?;
        // Processes of the sandbox, which come and go.
        if path.starts_with("/proc") {
            return None;
        }
        match (self.root.find(thread, &path, named.is_followed), named.want) {
            (Ok(found), Want::Access { access, .. }) => self.access(thread, found, access),
            // It is there, and that is the answer.
            (Ok(_), Want::NewEntry) => None,
            (Ok(found), Want::Entry) => self.entry(thread, &path, found.path.file_name()?.as_ref()),
            (Ok(found), Want::Lookup) => {
                let is_folder = kind(&found.fd).ok()? == FileType::Directory;
                let access = if is_folder { FileAccess::List } else { FileAccess::Read };
                let Found { path, link, .. } = found;
                Some(Accessed { link, is_folder, is_lookup: true, ..Accessed::new(thread, path, access) })
            }
            (Err(Errno::NOENT | Errno::ACCESS), _) if self.root.is_masked(thread, &path) => {
                let access = match named.want {
                    Want::Access { access, .. } => access,
                    Want::NewEntry | Want::Entry => FileAccess::Write,
                    Want::Lookup => FileAccess::Read,
                };
                let (is_lookup, is_entry) =
                    (named.want == Want::Lookup, matches!(named.want, Want::NewEntry | Want::Entry));
                let path = place::normalized(&path);
                let refused_by = self.rights.refusal(&path, access).or(Some(RefusedBy::NoGrant));
                Some(Accessed { is_lookup, is_entry, refused_by, ..Accessed::new(thread, path, access) })
            }
            (Err(Errno::NOENT), Want::Access { creates: true, .. } | Want::NewEntry | Want::Entry) => {
                self.entry(thread, &path, path.file_name()?.as_ref())
            }
            (Err(Errno::NOENT), Want::Access { creates: false, .. } | Want::Lookup) => {
                let path = place::normalized(&path);
                Some(Accessed { is_missing: true, ..Accessed::new(thread, path, FileAccess::Read) })
            }
            (Err(_), _) => None,
        }
    }

    /// An access to what is there.
    fn access(&self, thread: i32, Found { fd, path, link }: Found, access: FileAccess) -> Option<Accessed> {
        let is_folder = kind(&fd).ok()? == FileType::Directory;
        let access = match access {
            FileAccess::Read if is_folder => FileAccess::List,
            access => access,
        };
        let refused_by = self.rights.refusal(&path, access).or_else(|| self.mount_refusal(&fd, &path, access));
        let is_refused_by_mode = refused_by.is_some() && !self.identity.may_use(&fd, access);
        Some(Accessed { link, is_folder, refused_by, is_refused_by_mode, ..Accessed::new(thread, path, access) })
    }

    /// A change of the entry `name` in the folder of `path`.
    fn entry(&self, thread: i32, path: &Path, name: &Path) -> Option<Accessed> {
        let folder = self.root.find(thread, path.parent()?, true).ok()?;
        let (access, path) = (FileAccess::Write, folder.path.join(name));
        let is_hidden = self.rights.is_carved_out(&path, Restriction::Hidden);
        let hidden = is_hidden.then_some(RefusedBy::CarveOut(Restriction::Hidden));
        let refused_by = hidden.or_else(|| self.rights.refusal(&folder.path, access));
        let refused_by = refused_by.or_else(|| self.mount_refusal(&folder.fd, &path, access));
        let is_refused_by_mode = refused_by.is_some() && !self.identity.may_use(&folder.fd, access);
        Some(Accessed { is_entry: true, refused_by, is_refused_by_mode, ..Accessed::new(thread, path, access) })
    }

    /// Returns the mount over `path`, which has `fd` open, that refuses `access`.
    fn mount_refusal(&self, fd: &OwnedFd, path: &Path, access: FileAccess) -> Option<RefusedBy> {
        let is_mounted = |flag| rustix::fs::fstatvfs(fd).is_ok_and(|data| data.f_flag.contains(flag));
        let carve_out = |restriction| match self.rights.is_carved_out(path, restriction) {
            true => RefusedBy::CarveOut(restriction),
            false => RefusedBy::Protection,
        };
        match access {
            FileAccess::Write => is_mounted(StatVfsMountFlags::RDONLY).then(|| carve_out(Restriction::ReadOnly)),
            FileAccess::Execute => {
                is_mounted(StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC)).then(|| carve_out(Restriction::NoExec))
            }
            FileAccess::Read | FileAccess::List => is_placeholder(fd).then_some(RefusedBy::Protection),
        }
    }
}
