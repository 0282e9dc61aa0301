//! The sandbox's processes, read from /proc: who holds a socket, what it runs, who started it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Dir, Mode, OFlags};

use crate::context::Limits;
use crate::identify::caller::{Caller, Program};
use crate::identify::fingerprint::Executable;

/// A /proc in which the sandbox's processes are, and their init's number there.
#[derive(Debug)]
pub struct Processes {
    root: OwnedFd,
    init: i32,
    /// Whether others than the sandbox's are in it, so that each must be shown to descend from init.
    shared: bool,
}

/// Why a process could not be looked at.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcError {
    #[error("cannot list processes: {0}")]
    List(io::Error),
    #[error("process {pid} is gone or cannot be read: {source}")]
    Read { pid: i32, source: io::Error },
    #[error("the program of process {0} is not named in UTF-8")]
    NotUtf8(i32),
    #[error("process {0} has more than {max} ancestors", max = Limits::ANCESTORS)]
    TooDeep(i32),
    #[error("process {0} does not descend from the sandbox's init")]
    Stranger(i32),
    #[error("process {0} was replaced while it was looked at")]
    Replaced(i32),
}

/// A process as it was when it was found: a number may be used again, a number with a start time is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pid: i32,
    start_time: u64,
}

/// A caller with the open files of everything that it is judged by.
pub(super) struct Described {
    pub(super) caller: Caller,
    pub(super) executable: Executable,
    pub(super) ancestors: Vec<Executable>,
}

struct Stat {
    parent: i32,
    start_time: u64,
}

impl Processes {
    /// The processes of a sandbox that has a PID namespace, by the /proc of its init; `init` is its number in the
    /// supervisor's own.
    ///
    /// # Errors
    /// The supervisor may not look into its init (CAP_SYS_PTRACE).
    pub fn of_namespace(init: i32) -> io::Result<Self> {
        Ok(Self { root: open_directory(&format!("/proc/{init}/root/proc"))?, init: 1, shared: false })
    }

    /// The processes of a sandbox that shares the supervisor's PIDs.
    ///
    /// # Errors
    /// /proc cannot be opened.
    pub fn shared(init: i32) -> io::Result<Self> {
        Ok(Self { root: open_directory("/proc")?, init, shared: true })
    }

    /// Every process that holds the socket `inode`.
    pub(super) fn owners_of(&self, inode: u32) -> Result<Vec<Process>, ProcError> {
        let wanted = format!("socket:[{inode}]");
        let mut owners = Vec::new();
        for entry in Dir::read_from(&self.root).map_err(|errno| ProcError::List(errno.into()))? {
            let entry = entry.map_err(|errno| ProcError::List(errno.into()))?;
            let Some(pid) = entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()) else { continue };
            // A process that ends while it is looked at holds nothing any more.
            if pid == self.init || (self.shared && !self.descends_from_init(pid)) {
                continue;
            }
            let Ok(stat) = self.stat(pid) else { continue };
            if self.holds(pid, wanted.as_bytes()) {
                owners.push(Process { pid, start_time: stat.start_time });
            }
        }
        Ok(owners)
    }

    /// What `process` runs, and what its ancestors run.
    pub(super) fn describe(&self, process: &Process) -> Result<Described, ProcError> {
        let executable = self.executable(process.pid)?;
        let mut cmdline_paths = self.cmdline_paths(process.pid);
        let mut ancestors = Vec::new();
        let mut current = self.stat(process.pid)?;
        if current.start_time != process.start_time {
            return Err(ProcError::Replaced(process.pid));
        }
        // Ends at the command that init started, whose parent is init; so does the chain of an orphan that init adopted.
        while current.parent != self.init {
            if current.parent <= 1 {
                return Err(ProcError::Stranger(process.pid));
            }
            if ancestors.len() == Limits::ANCESTORS {
                return Err(ProcError::TooDeep(process.pid));
            }
            let pid = current.parent;
            ancestors.push(self.executable(pid)?);
            cmdline_paths.extend(self.cmdline_paths(pid));
            current = self.stat(pid)?;
        }
        if self.stat(process.pid)?.start_time != process.start_time {
            return Err(ProcError::Replaced(process.pid));
        }
        let executables: Vec<_> = ancestors.iter().map(|ancestor| ancestor.path.clone()).collect();
        cmdline_paths.retain(|word| executable.path.as_os_str() != word.as_str());
        cmdline_paths.retain(|word| !executables.iter().any(|path| path.as_os_str() == word.as_str()));
        cmdline_paths.truncate(Limits::CMDLINE_PATHS);
        let program = Program { executable: executable.path.clone(), ancestors: executables, cmdline_paths };
        Ok(Described { caller: Caller { pid: process.pid, program }, executable, ancestors })
    }

    fn holds(&self, pid: i32, wanted: &[u8]) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::openat(&self.root, format!("{pid}/fd"), flags, Mode::empty()) else {
            return false;
        };
        let Ok(entries) = Dir::read_from(&folder) else { return false };
        let mut names = entries.filter_map(Result::ok);
        names.any(|entry| {
            let target = rustix::fs::readlinkat(&folder, entry.file_name(), [0; 32]);
            target.is_ok_and(|target| target.as_bytes() == wanted)
        })
    }

    fn executable(&self, pid: i32) -> Result<Executable, ProcError> {
        let read = |errno: rustix::io::Errno| ProcError::Read { pid, source: errno.into() };
        let link = format!("{pid}/exe");
        // The open file is what runs, whatever lies at its path by now.
        let file =
            rustix::fs::openat(&self.root, &link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(read)?;
        let path = rustix::fs::readlinkat(&self.root, &link, Vec::new()).map_err(read)?;
        let path = String::from_utf8(path.into_bytes()).map_err(|_| ProcError::NotUtf8(pid))?;
        Ok(Executable { path: PathBuf::from(path), file: File::from(file) })
    }

    fn descends_from_init(&self, pid: i32) -> bool {
        let mut current = pid;
        for _ in 0..=Limits::ANCESTORS {
            match self.stat(current) {
                Ok(stat) if stat.parent == self.init => return true,
                Ok(stat) if stat.parent > 1 => current = stat.parent,
                Ok(_) | Err(_) => return false,
            }
        }
        false
    }

    /// proc_pid_stat(5): the parent is field 4, the start time field 22.
    fn stat(&self, pid: i32) -> Result<Stat, ProcError> {
        let read = |source| ProcError::Read { pid, source };
        let text = self.read(&format!("{pid}/stat"), 4096).map_err(read)?;
        // The name in field 2 may hold anything, a parenthesis too, so the fields are counted from its last one.
        let end = text.iter().rposition(|byte| *byte == b')');
        let fields = end.and_then(|end| std::str::from_utf8(text.get(end + 1..)?).ok()).unwrap_or_default();
        let field = |number: usize| fields.split_ascii_whitespace().nth(number - 3);
        let stat = field(4).and_then(|parent| parent.parse().ok()).zip(field(22).and_then(|start| start.parse().ok()));
        let (parent, start_time) = stat.ok_or_else(|| read(io::ErrorKind::InvalidData.into()))?;
        Ok(Stat { parent, start_time })
    }

    fn cmdline_paths(&self, pid: i32) -> Vec<String> {
        // They explain a refusal; an unreadable one explains less.
        let arguments = self.read(&format!("{pid}/cmdline"), Limits::CMDLINE_BYTES).unwrap_or_default();
        let words = arguments.split(|byte| *byte == 0).filter(|word| word.starts_with(b"/"));
        let short = words.filter(|word| word.len() <= Limits::CMDLINE_PATH_BYTES);
        let texts = short.filter_map(|word| std::str::from_utf8(word).ok()).map(str::to_owned);
        texts.take(Limits::CMDLINE_PATHS).collect()
    }

    fn read(&self, name: &str, limit: usize) -> io::Result<Vec<u8>> {
        let file = rustix::fs::openat(self.root.as_fd(), name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut bytes = Vec::new();
        File::from(file).take(limit as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

fn open_directory(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
