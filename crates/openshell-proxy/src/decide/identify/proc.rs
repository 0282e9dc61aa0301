//! Processes of the sandbox, read from /proc: their executables, ancestors and arguments.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::executable::{Executable, Executables, OpenError};
use crate::ground::limits::Limits;

/// A /proc mount that shows the sandbox's processes, and the PID of their init in it.
#[derive(Debug)]
pub struct Processes {
    root: OwnedFd,
    init: i32,
}

/// The flag of a process that has not called execve(2) since fork(2): `PF_FORKNOEXEC` of the
/// kernel's `include/linux/sched.h`.
const FORKED: u32 = 0x40;

/// How often the read of a process is repeated if its ancestors change meanwhile. Further changes
/// are considered intentional.
pub(super) const ROUNDS: usize = 4;

/// Error of reading a process.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcError {
    #[error("process {0} has ended")]
    Gone(i32),
    #[error("process {pid} cannot be read: {source}")]
    Read { pid: i32, source: io::Error },
    #[error("process {pid}: {source}")]
    Executable { pid: i32, source: OpenError },
    #[error("process {0} has more than {max} ancestors", max = Limits::ANCESTORS)]
    TooDeep(i32),
    #[error("process {0} does not descend from the sandbox's init")]
    NotDescendant(i32),
    #[error("an ancestor of process {0} changed while the proxy read it")]
    Changed(i32),
}

impl ProcError {
    fn reading(pid: i32) -> impl Fn(Errno) -> Self {
        move |errno| match errno {
            Errno::NOENT | Errno::SRCH => Self::Gone(pid),
            errno => Self::Read {
                pid,
                source: errno.into(),
            },
        }
    }

    fn opening(pid: i32) -> impl Fn(OpenError) -> Self {
        move |error| match error {
            OpenError::System(errno) => Self::reading(pid)(errno),
            source @ (OpenError::NotUtf8 | OpenError::TooMany) => Self::Executable { pid, source },
        }
    }

    /// Returns true if another attempt may succeed.
    pub(super) fn is_change(&self) -> bool {
        matches!(self, Self::Gone(_) | Self::Changed(_))
    }
}

/// A process, identified by one of its threads. The number may be reused, but not with the same
/// start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    thread: i32,
    start_time: u64,
}

/// A process and its ancestors up to the command that init started.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) pid: i32,
    pub(super) processes: Vec<Process>,
    pub(super) executables: Vec<Arc<Executable>>,
}

/// Fields of proc_pid_stat(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// True if it still runs the program of the process that forked it.
    is_fork: bool,
    threads: u32,
    start_time: u64,
}

impl Processes {
    /// Takes a directory that is the /proc of the sandbox's PID namespace, and the PID of the
    /// sandbox's init in it.
    #[must_use]
    pub fn new(root: OwnedFd, init: i32) -> Self {
        Self { root, init }
    }

    /// Reads the process of `thread` and its ancestors. The thread must stay in its system call
    /// meanwhile.
    pub(super) fn describe(
        &self,
        thread: i32,
        executables: &Executables,
    ) -> Result<Described, ProcError> {
        let open = |number: i32| {
            executables
                .open(&self.root, &format!("{number}/exe"))
                .map_err(ProcError::opening(number))
        };
        let own = self.stat(thread)?;
        let pid = if own.threads == 1 {
            thread
        } else {
            self.process_of(thread)?
        };
        let mut chain = vec![(thread, own)];
        let mut opened = vec![open(thread)?];
        // A command that init started, or an orphan that init adopted, has init as its parent.
        let mut parent = own.parent;
        while parent != self.init {
            if parent <= 1 {
                return Err(ProcError::NotDescendant(pid));
            }
            if chain.len() > Limits::ANCESTORS {
                return Err(ProcError::TooDeep(pid));
            }
            let stat = self.stat(parent)?;
            if self.is_of_init(parent, stat) {
                break;
            }
            chain.push((parent, stat));
            opened.push(open(parent)?);
            parent = stat.parent;
        }
        // A number with the same parent and start time as before belonged to the same process
        // throughout.
        for (number, stat) in chain.iter().filter(|_| chain.len() > 1) {
            let now = self.stat(*number)?;
            if (now.parent, now.start_time) != (stat.parent, stat.start_time) {
                return Err(ProcError::Changed(pid));
            }
        }
        let process = |(thread, stat): (i32, Stat)| Process {
            thread,
            start_time: stat.start_time,
        };
        Ok(Described {
            pid,
            processes: chain.into_iter().map(process).collect(),
            executables: opened,
        })
    }

    /// Returns true if the process `number` is a part of init that stands between it and a command:
    /// a fork of init which has started no program. It cannot be told from a fork of a program whose
    /// file cannot be read either. Such a program could have ended as well, and would not be an
    /// ancestor then.
    fn is_of_init(&self, number: i32, stat: Stat) -> bool {
        let file = |number: i32| {
            let link = format!("{number}/exe");
            let file = rustix::fs::statat(&self.root, link, AtFlags::empty())?;
            Ok((file.st_dev, file.st_ino))
        };
        stat.parent == self.init
            && stat.is_fork
            && match (file(number), file(self.init)) {
                (Ok(file), Ok(of_init)) => file == of_init,
                (Err(Errno::ACCESS), Err(Errno::ACCESS)) => true,
                (_, _) => false,
            }
    }

    /// Reads parent, flags, number of threads and start time: fields 4, 9, 20 and 22 of
    /// proc_pid_stat(5).
    fn stat(&self, number: i32) -> Result<Stat, ProcError> {
        let text = self
            .read(&format!("{number}/stat"), 1024)
            .map_err(ProcError::reading(number))?;
        // Field 2, the name, may contain parentheses, so the fields are counted from the last
        // parenthesis.
        let end = text.iter().rposition(|byte| *byte == b')');
        let fields = end
            .and_then(|end| std::str::from_utf8(text.get(end + 1..)?).ok())
            .unwrap_or_default();
        let mut fields = fields.split_ascii_whitespace().skip(1);
        let mut stat = || {
            let parent = fields.next()?.parse().ok()?;
            let flags: u32 = fields.nth(4)?.parse().ok()?;
            let threads = fields.nth(10)?.parse().ok()?;
            Some(Stat {
                parent,
                is_fork: flags & FORKED != 0,
                threads,
                start_time: fields.nth(1)?.parse().ok()?,
            })
        };
        stat().ok_or_else(|| ProcError::Read {
            pid: number,
            source: io::ErrorKind::InvalidData.into(),
        })
    }

    /// Reads the PID of the process to which `thread` belongs: `Tgid` of proc_pid_status(5).
    fn process_of(&self, thread: i32) -> Result<i32, ProcError> {
        let text = self
            .read(&format!("{thread}/status"), 4096)
            .map_err(ProcError::reading(thread))?;
        let process = std::str::from_utf8(&text).ok().and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
        });
        process.ok_or_else(|| ProcError::Read {
            pid: thread,
            source: io::ErrorKind::InvalidData.into(),
        })
    }

    /// Reads the absolute paths among the arguments of `process`. Blocks, because a process can
    /// delay the read of its memory.
    pub(super) fn cmdline_paths(&self, process: &Process) -> Vec<String> {
        // Arguments that cannot be read, and those of a process that is gone, are left out: the
        // built-in rules only put arguments into reasons.
        let arguments = self
            .read(
                &format!("{}/cmdline", process.thread),
                Limits::CMDLINE_BYTES,
            )
            .unwrap_or_default();
        if self.stat(process.thread).map(|stat| stat.start_time).ok() != Some(process.start_time) {
            return Vec::new();
        }
        let words = arguments
            .split(|byte| *byte == 0)
            .filter(|word| word.starts_with(b"/"));
        let short = words.filter(|word| word.len() <= Limits::CMDLINE_PATH_BYTES);
        let texts = short
            .filter_map(|word| std::str::from_utf8(word).ok())
            .map(str::to_owned);
        texts.take(Limits::CMDLINE_PATHS).collect()
    }

    /// Returns the files from which `process` has mapped executable code. Blocks as
    /// [`Self::cmdline_paths`] does.
    pub(super) fn code_files(&self, process: &Process) -> io::Result<Vec<String>> {
        let name = format!("{}/maps", process.thread);
        let file = rustix::fs::openat(
            &self.root,
            name,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut text = String::new();
        File::from(file)
            .take(Limits::MAPS_BYTES)
            .read_to_string(&mut text)?;
        if text.len() as u64 == Limits::MAPS_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Address, permissions, offset, device, inode, and a path that may contain blanks
        // (proc_pid_maps(5)).
        let path = |line: &str| {
            let mut words = line.splitn(6, ' ').skip(1);
            let is_code = words.next()?.contains('x');
            let path = words.nth(3)?.trim_start();
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            (is_code && path.starts_with('/')).then(|| path.to_owned())
        };
        Ok(text.lines().filter_map(path).collect())
    }

    /// Returns true if `process` is still the process that ran `executable`.
    pub(super) fn runs(&self, process: &Process, executable: &Executable) -> io::Result<bool> {
        let stat = self.stat(process.thread).map_err(io::Error::other)?;
        Ok(stat.start_time == process.start_time
            && executable.is_at(&self.root, &format!("{}/exe", process.thread))?)
    }

    fn read(&self, name: &str, limit: usize) -> rustix::io::Result<Vec<u8>> {
        let file = rustix::fs::openat(
            &self.root,
            name,
            OFlags::RDONLY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut bytes = vec![0; limit];
        // One read returns all that there is, up to the limit.
        let filled = rustix::io::read(&file, &mut bytes)?;
        bytes.truncate(filled);
        Ok(bytes)
    }
}
