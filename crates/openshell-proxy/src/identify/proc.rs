//! Processes of the sandbox, read from /proc: owners of sockets, their executables and ancestors.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Dir, DirEntry, Mode, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

use crate::identify::fingerprint::Executable;
use crate::identify::search::{Exceeded, Search};
use crate::limits::Limits;
use crate::peer::{Caller, Program};

/// A /proc mount that shows the sandbox's processes, and the PID of their init in it.
#[derive(Debug)]
pub struct Processes {
    root: OwnedFd,
    init: i32,
    hints: Mutex<Hints>,
}

/// Hints at the owner of a socket.
#[derive(Debug, Default)]
struct Hints {
    /// True if the last full search counted too many processes for another one.
    is_large: bool,
    /// Owners found last, the most recent first.
    recent: VecDeque<i32>,
    /// `/proc` directory offset of the newest owner found; newer processes come after it.
    newest: u64,
}

/// Owners of a socket.
#[derive(Debug)]
pub(super) struct SocketOwners {
    pub(super) found: Vec<Process>,
    /// True if every process was searched.
    pub(super) is_complete: bool,
}

/// Attempts at reading a process that changes meanwhile; more changes are taken for intent.
pub(super) const ROUNDS: usize = 4;

/// Error of reading a process.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcError {
    #[error("cannot list processes: {0}")]
    List(io::Error),
    #[error("process {0} is gone")]
    Gone(i32),
    #[error("process {pid} cannot be read: {source}")]
    Read { pid: i32, source: io::Error },
    #[error("the program of process {0} is not named in UTF-8")]
    NotUtf8(i32),
    #[error("process {0} has more than {max} ancestors", max = Limits::ANCESTORS)]
    TooDeep(i32),
    #[error("process {0} does not descend from the sandbox's init")]
    NotDescendant(i32),
    #[error("process {0} or an ancestor of it changed while it was looked at")]
    Changed(i32),
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
}

impl ProcError {
    /// Maps ENOENT and ESRCH to [`Self::Gone`], as a process that has ended holds nothing. No other error skips a
    /// process: a workload that exhausts descriptors or memory could hide one.
    fn reading(pid: i32) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::NOENT | Errno::SRCH => Self::Gone(pid),
            errno => Self::Read { pid, source: errno.into() },
        }
    }
}

/// A process. Its PID may be reused, but not with the same start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pid: i32,
    start_time: u64,
}

/// A caller with the open files of all executables that it is judged by.
pub(super) struct Described {
    pub(super) caller: Caller,
    /// Its own executable first, then its ancestors'.
    pub(super) executables: Vec<Executable>,
}

/// Fields of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    /// True if the first thread has ended; others may go on.
    is_zombie: bool,
    parent: i32,
    start_time: u64,
}

impl Processes {
    /// Takes a directory that is the /proc of the sandbox's PID namespace, in which `init` is the PID of its init.
    #[must_use]
    pub fn new(root: OwnedFd, init: i32) -> Self {
        Self { root, init, hints: Mutex::default() }
    }

    /// Finds the processes that hold the socket `inode`: all of them in a small sandbox, else the first one found,
    /// likely ones first. A full search takes time in proportion to the processes.
    pub(super) fn owners_of(&self, inode: u32, search: &Search) -> Result<SocketOwners, ProcError> {
        if let Some(owner) = self.likely_owner(inode, search)? {
            return Ok(SocketOwners { found: vec![owner], is_complete: false });
        }
        let found = self.find_owners(&[inode], search)?.into_iter().map(|(owner, _)| owner).collect::<Vec<_>>();
        if let Some(owner) = found.first() {
            self.remember(owner.pid, None);
        }
        Ok(SocketOwners { found, is_complete: true })
    }

    /// Finds every process that holds one of the sockets `inodes`, with the socket.
    pub(super) fn find_owners(&self, inodes: &[u32], search: &Search) -> Result<Vec<(Process, u32)>, ProcError> {
        let mut owners = Vec::new();
        let processes = self.list(0).map_err(ProcError::List)?;
        for (pid, _) in &processes {
            match self.owner(*pid, inodes, search) {
                Ok(found) => owners.extend(found),
                Err(ProcError::Gone(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.hints().is_large = processes.len() > Limits::SEARCHED_PROCESSES;
        Ok(owners)
    }

    /// In a large sandbox: finds an owner among the recent owners and the newest processes.
    fn likely_owner(&self, inode: u32, search: &Search) -> Result<Option<Process>, ProcError> {
        let (recent, newest) = {
            let hints = self.hints();
            if !hints.is_large {
                return Ok(None);
            }
            (hints.recent.clone(), hints.newest)
        };
        for pid in recent {
            match self.owner(pid, &[inode], search).map(|found| found.first().copied()) {
                Ok(Some((owner, _))) => {
                    self.remember(pid, None);
                    return Ok(Some(owner));
                }
                Ok(None) => {}
                Err(ProcError::Gone(_)) => self.hints().recent.retain(|known| *known != pid),
                Err(error) => return Err(error),
            }
        }
        let new = self.list(newest).map_err(ProcError::List)?;
        for (pid, offset) in new.into_iter().rev().take(Limits::RECENT_CALLERS) {
            match self.owner(pid, &[inode], search).map(|found| found.first().copied()) {
                Ok(Some((owner, _))) => {
                    self.remember(pid, Some(offset));
                    return Ok(Some(owner));
                }
                Ok(None) | Err(ProcError::Gone(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn remember(&self, pid: i32, newest: Option<u64>) {
        let mut hints = self.hints();
        hints.recent.retain(|known| *known != pid);
        hints.recent.push_front(pid);
        hints.recent.truncate(Limits::RECENT_CALLERS);
        hints.newest = newest.unwrap_or(hints.newest);
    }

    /// Locks the hints, which are consistent at every moment, so a poisoned lock is used all the same.
    fn hints(&self) -> MutexGuard<'_, Hints> {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the processes from directory offset `offset` on, in the order of their PIDs, each with its own offset (the
    /// `d_off` of the entry before, getdents(2)).
    fn list(&self, mut offset: u64) -> io::Result<Vec<(i32, u64)>> {
        let folder =
            rustix::fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::seek(&folder, SeekFrom::Start(offset))?;
        let mut buffer = Vec::with_capacity(16 * 1024);
        let mut entries = RawDir::new(&folder, buffer.spare_capacity_mut());
        let mut found = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse().ok()) {
                found.push((pid, offset));
            }
            offset = entry.next_entry_cookie();
        }
        Ok(found)
    }

    /// Pairs the process `pid` with each of `inodes` that it holds.
    fn owner(&self, pid: i32, inodes: &[u32], search: &Search) -> Result<Vec<(Process, u32)>, ProcError> {
        // Processes outside the sandbox are not skipped: an owner that does not descend from init is refused.
        if pid == self.init {
            return Ok(Vec::new());
        }
        let owner = Process { pid, start_time: self.stat(pid)?.start_time };
        let held = match self.held(&owner, inodes, search) {
            // Processes of other users beside a sandbox with shared PIDs.
            Err(ProcError::Read { source, .. }) if is_denied(&source) && !self.is_descendant(pid)? => Vec::new(),
            held => held?,
        };
        Ok(held.into_iter().map(|inode| (owner, inode)).collect())
    }

    /// Returns true if the process descends from init.
    fn is_descendant(&self, mut pid: i32) -> Result<bool, ProcError> {
        for _ in 0..=Limits::ANCESTORS {
            match self.stat(pid)?.parent {
                parent if parent == self.init => return Ok(true),
                0 | 1 => return Ok(false),
                parent => pid = parent,
            }
        }
        Ok(true)
    }

    /// Returns true if `process` holds the socket `inode`.
    pub(super) fn holds(&self, process: &Process, inode: u32, search: &Search) -> Result<bool, ProcError> {
        Ok(!self.held(process, &[inode], search)?.is_empty())
    }

    /// Returns those of the sockets `inodes` that the process holds. All its threads share one descriptor table, since
    /// the seccomp filter denies unsharing it. /proc shows the table at the first thread while that lives, else at each
    /// of the others.
    fn held(&self, process: &Process, inodes: &[u32], search: &Search) -> Result<Vec<u32>, ProcError> {
        let pid = process.pid;
        for _ in 0..ROUNDS {
            if self.stat(pid)?.is_zombie {
                match self.held_by_threads(pid, inodes, search)? {
                    Some(held) => return Ok(held),
                    None => continue,
                }
            }
            let held = self.in_table(pid, &format!("{pid}/fd"), inodes, search)?;
            // The table of a first thread that ended meanwhile was empty.
            if !held.is_empty() || !self.stat(pid)?.is_zombie {
                return Ok(held);
            }
        }
        Err(ProcError::Changed(pid))
    }

    /// As [`Self::held`], for a process whose first thread has ended; `None` if a thread ended during the search, which
    /// is then inconclusive.
    fn held_by_threads(&self, pid: i32, inodes: &[u32], search: &Search) -> Result<Option<Vec<u32>>, ProcError> {
        let folder = self.open_directory(pid, &format!("{pid}/task"))?;
        for entry in Dir::read_from(&folder).map_err(ProcError::reading(pid))? {
            let Some(thread) = number(&entry.map_err(ProcError::reading(pid))?).filter(|thread| *thread != pid) else {
                continue;
            };
            let task = format!("{pid}/task/{thread}");
            match self.in_table(pid, &format!("{task}/fd"), inodes, search) {
                Ok(held) if !held.is_empty() => return Ok(Some(held)),
                Err(ProcError::Gone(_)) => return Ok(None),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            match self.stat_of(pid, &task) {
                Ok(stat) if !stat.is_zombie => {}
                Ok(_) | Err(ProcError::Gone(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Vec::new()))
    }

    fn in_table(&self, pid: i32, table: &str, inodes: &[u32], search: &Search) -> Result<Vec<u32>, ProcError> {
        let folder = match self.open_directory(pid, table) {
            // The process made itself undumpable, so this table is for root outside of the user namespace alone.
            Err(ProcError::Read { source, .. }) if is_denied(&source) => {
                return self.in_descriptions(pid, &format!("{table}info"), inodes, search);
            }
            opened => opened?,
        };
        let mut held = Vec::new();
        for entry in Dir::read_from(&folder).map_err(ProcError::reading(pid))? {
            let entry = entry.map_err(ProcError::reading(pid))?;
            if number(&entry).is_none() {
                continue;
            }
            search.step()?;
            match rustix::fs::readlinkat(&folder, entry.file_name(), [0; 32]) {
                Ok(target) => held
                    .extend(socket(target.as_bytes()).filter(|inode| inodes.contains(inode) && !held.contains(inode))),
                // The descriptor was closed meanwhile.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(ProcError::reading(pid)(errno)),
            }
            if held.len() == inodes.len() {
                break;
            }
        }
        Ok(held)
    }

    /// As [`Self::in_table`], by the descriptions of the open files: the inode of each, since Linux 5.14. Another file with the
    /// same number counts as the socket, so that no owner is missed.
    fn in_descriptions(&self, pid: i32, table: &str, inodes: &[u32], search: &Search) -> Result<Vec<u32>, ProcError> {
        let folder = self.open_directory(pid, table)?;
        let mut held = Vec::new();
        for entry in Dir::read_from(&folder).map_err(ProcError::reading(pid))? {
            let Some(descriptor) = number(&entry.map_err(ProcError::reading(pid))?) else { continue };
            search.step()?;
            let text = match self.read(&format!("{table}/{descriptor}"), 4096) {
                Err(Errno::NOENT) => continue,
                read => read.map_err(ProcError::reading(pid))?,
            };
            let inode = std::str::from_utf8(&text).ok().and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix("ino:"))?;
                line.trim().parse::<u64>().ok()
            });
            let inode = inode.ok_or_else(|| ProcError::Read { pid, source: io::ErrorKind::Unsupported.into() })?;
            held.extend(
                inodes
                    .iter()
                    .copied()
                    .filter(|wanted| u64::from(*wanted) == inode && !held.contains(wanted))
                    .collect::<Vec<_>>(),
            );
        }
        Ok(held)
    }

    /// Reads the executables of `process` and of its ancestors.
    pub(super) fn describe(&self, process: &Process) -> Result<Described, ProcError> {
        let mut chain = vec![(process.pid, self.stat(process.pid)?)];
        let mut executables = vec![self.executable(process.pid)?];
        let mut cmdline_paths = self.cmdline_paths(process.pid);
        // The command that init started, or an orphan that init adopted, has init as its parent.
        while let Some((_, Stat { parent, .. })) = chain.last().copied().filter(|(_, stat)| stat.parent != self.init) {
            if parent <= 1 {
                return Err(ProcError::NotDescendant(process.pid));
            }
            if chain.len() > Limits::ANCESTORS {
                return Err(ProcError::TooDeep(process.pid));
            }
            chain.push((parent, self.stat(parent)?));
            executables.push(self.executable(parent)?);
            cmdline_paths.extend(self.cmdline_paths(parent));
        }
        // A process with the same parent and start time at the end had its PID all the while.
        let is_same = |(pid, stat): &(i32, Stat)| Ok::<_, ProcError>(self.stat(*pid)? == *stat);
        for level in &chain {
            if !is_same(level)? {
                return Err(ProcError::Changed(process.pid));
            }
        }
        if chain.first().is_none_or(|(_, stat)| stat.start_time != process.start_time) {
            return Err(ProcError::Changed(process.pid));
        }
        cmdline_paths.retain(|word| !executables.iter().any(|executable| executable.path == *word));
        cmdline_paths.truncate(Limits::CMDLINE_PATHS);
        let mut paths = executables.iter().map(|executable| executable.path.clone());
        let executable = paths.next().unwrap_or_default();
        let program = Program { executable, ancestors: paths.collect(), cmdline_paths };
        Ok(Described { caller: Caller { pid: process.pid, program: program.into() }, executables })
    }

    fn executable(&self, pid: i32) -> Result<Executable, ProcError> {
        let link = format!("{pid}/exe");
        // The open file is the one that runs, whatever is at its path by now. Opening must not block: a running
        // executable is a regular file, and anything else is refused by its fingerprint.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&self.root, &link, flags, Mode::empty()).map_err(ProcError::reading(pid))?;
        let path = rustix::fs::readlinkat(&self.root, &link, Vec::new()).map_err(ProcError::reading(pid))?;
        let path = path.into_string().map_err(|_| ProcError::NotUtf8(pid))?;
        Ok(Executable { path, file: File::from(file) })
    }

    /// Reads state, parent and start time: fields 3, 4 and 22 of proc_pid_stat(5).
    fn stat(&self, pid: i32) -> Result<Stat, ProcError> {
        self.stat_of(pid, &pid.to_string())
    }

    fn stat_of(&self, pid: i32, folder: &str) -> Result<Stat, ProcError> {
        let text = self.read(&format!("{folder}/stat"), 4096).map_err(ProcError::reading(pid))?;
        // Field 2, the name, may hold parentheses, so the fields are counted from the last one.
        let end = text.iter().rposition(|byte| *byte == b')');
        let fields = end.and_then(|end| std::str::from_utf8(text.get(end + 1..)?).ok()).unwrap_or_default();
        let field = |number: usize| fields.split_ascii_whitespace().nth(number - 3);
        let stat = field(4).and_then(|parent| parent.parse().ok()).zip(field(22).and_then(|start| start.parse().ok()));
        let invalid = || ProcError::Read { pid, source: io::ErrorKind::InvalidData.into() };
        let (parent, start_time) = stat.ok_or_else(invalid)?;
        Ok(Stat { is_zombie: matches!(field(3), Some("Z" | "X")), parent, start_time })
    }

    fn cmdline_paths(&self, pid: i32) -> Vec<String> {
        // Arguments only explain refusals, so an unreadable one is left out.
        let arguments = self.read(&format!("{pid}/cmdline"), Limits::CMDLINE_BYTES).unwrap_or_default();
        let words = arguments.split(|byte| *byte == 0).filter(|word| word.starts_with(b"/"));
        let short = words.filter(|word| word.len() <= Limits::CMDLINE_PATH_BYTES);
        let texts = short.filter_map(|word| std::str::from_utf8(word).ok()).map(str::to_owned);
        texts.take(Limits::CMDLINE_PATHS).collect()
    }

    fn read(&self, name: &str, limit: usize) -> rustix::io::Result<Vec<u8>> {
        let file = rustix::fs::openat(&self.root, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = vec![0; limit];
        let mut filled = 0;
        while let more @ 1.. = rustix::io::read(&file, bytes.get_mut(filled..).unwrap_or_default())? {
            filled += more;
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn open_directory(&self, pid: i32, name: &str) -> Result<OwnedFd, ProcError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, name, flags, Mode::empty()).map_err(ProcError::reading(pid))
    }
}

/// Parses the inode in the link of a socket's descriptor.
fn socket(link: &[u8]) -> Option<u32> {
    std::str::from_utf8(link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?).ok()?.parse().ok()
}

/// Parses the number that names the directory of a process or thread, or a descriptor.
fn number(entry: &DirEntry) -> Option<i32> {
    entry.file_name().to_str().ok()?.parse().ok()
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}
