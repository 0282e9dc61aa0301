//! A child of init that confines itself and becomes a command.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::Pid;

use crate::confine::{Confinement, Step, StepFailed};
use crate::init::ipc::{Command, IgnoredSignals, NotStarted, Session};
use crate::seccomp::filter::Filter;
use crate::sys::{self, Cloned};

/// Largest failure message in bytes; a pipe takes as many at once (PIPE_BUF, pipe(7)).
const FAILURE_BYTES: usize = 4096;

/// A child on its way to becoming a command. Init polls it, as it may be delayed by a slow disk, or by a signal of the
/// workload once it has its identity.
#[derive(Debug)]
pub(super) struct Starting {
    /// The supervisor's number for the command.
    pub(super) id: u32,
    pub(super) pid: Pid,
    pidfd: OwnedFd,
    /// Pipe that receives the failure; exec closes it empty.
    pub(super) failure: OwnedFd,
}

impl Starting {
    /// Returns true if it has become the command or failed to.
    pub(super) fn is_decided(&self) -> io::Result<bool> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut said = [PollFd::new(&self.failure, PollFlags::IN)];
        Ok(rustix::event::poll(&mut said, Some(&now))? > 0)
    }

    /// Returns the outcome. To be called once `failure` is readable; a failure is written at once.
    pub(super) fn outcome(self) -> io::Result<Result<(Pid, OwnedFd), NotStarted>> {
        let mut why = [0; FAILURE_BYTES];
        match File::from(self.failure).read(&mut why)? {
            0 => Ok(Ok((self.pid, self.pidfd))),
            filled => Ok(Err(serde_json::from_slice(why.get(..filled).unwrap_or_default())?)),
        }
    }
}

/// Starts `command` under `confined`, with `streams` as its standard input, output and error.
pub(super) fn start(
    confined: Option<&(Confinement, Filter)>,
    id: u32,
    command: &Command,
    streams: &[OwnedFd],
) -> Result<Starting, NotStarted> {
    let wrong = |what: &str| NotStarted::Init { what: what.to_owned() };
    let (confinement, filter) = confined.ok_or_else(|| wrong("init is not confined yet"))?;
    let streams: &[OwnedFd; 3] = streams.try_into().map_err(|_| wrong("a command has three standard streams"))?;
    let program = Program::new(command).map_err(|_| wrong("an argument or variable holds a NUL byte"))?;
    let system = |error: io::Error| NotStarted::Init { what: error.to_string() };
    let (failure, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| system(errno.into()))?;
    match sys::clone_process(0).map_err(system)? {
        Cloned::Child => {
            let why = become_command(confinement, filter, command, &program, streams);
            // Only init reads the pipe; without init there is no one to report to.
            let text = serde_json::to_vec(&why).unwrap_or_default();
            let _ = File::from(writer).write_all(&text);
            sys::exit_now(127)
        }
        Cloned::Parent { pid, pidfd } => Ok(Starting { id, pid, pidfd, failure }),
    }
}

/// The last of the signals with names (signal(7)).
const LAST_SIGNAL: i32 = 31;

/// Confines the calling process and executes the command; returns only on failure.
fn become_command(
    confinement: &Confinement,
    filter: &Filter,
    command: &Command,
    program: &Program,
    streams: &[OwnedFd; 3],
) -> NotStarted {
    if command.ignored == IgnoredSignals::Reset {
        // Those whose action cannot be changed have their default one.
        (1..=LAST_SIGNAL).for_each(|signal| drop(sys::default_signal(signal)));
    }
    let steps = set_up_session_and_stdio(command.session, confinement, streams)
        .and_then(|()| confinement.apply_to_child(filter, &command.directories));
    match steps {
        Ok(()) => program.exec(),
        Err(failed) => NotStarted::Step(failed),
    }
}

/// Sets up session, terminal and standard streams, and marks all other descriptors close-on-exec.
fn set_up_session_and_stdio(
    session: Session,
    confinement: &Confinement,
    [input, output, errors]: &[OwnedFd; 3],
) -> Result<(), StepFailed> {
    let failed = |step| move |errno: rustix::io::Errno| StepFailed { step, errno: errno.raw_os_error() };
    match session {
        Session::New => {
            rustix::process::setsid().map_err(failed(Step::Session))?;
        }
        Session::Terminal => {
            rustix::process::setsid().map_err(failed(Step::Session))?;
            // The workload may open its own terminal by name, as tmux does.
            let owner = confinement.user();
            rustix::fs::fchown(input, Some(owner), None).map_err(failed(Step::Terminal))?;
            rustix::process::ioctl_tiocsctty(input).map_err(failed(Step::Terminal))?;
        }
        Session::Foreground => {
            rustix::process::setpgid(None, None).map_err(failed(Step::Session))?;
            // Signals are still blocked, so taking the terminal from the background stops no process.
            rustix::termios::tcsetpgrp(input.as_fd(), rustix::process::getpid()).map_err(failed(Step::Terminal))?;
        }
    }
    rustix::stdio::dup2_stdin(input).map_err(failed(Step::StandardStreams))?;
    rustix::stdio::dup2_stdout(output).map_err(failed(Step::StandardStreams))?;
    rustix::stdio::dup2_stderr(errors).map_err(failed(Step::StandardStreams))?;
    sys::close_on_exec_from(3)
        .map_err(|error| StepFailed { step: Step::Descriptors, errno: error.raw_os_error().unwrap_or(0) })
}

/// Arguments of execve(2), prepared.
struct Program {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    fn new(command: &Command) -> Result<Self, std::ffi::NulError> {
        let name = command.arguments.first().map_or(OsStr::new(""), OsString::as_os_str);
        let path = command.environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_bytes());
        let variable =
            |(key, value): &(OsString, OsString)| CString::new([key.as_bytes(), b"=", value.as_bytes()].concat());
        Ok(Self {
            candidates: candidates(name.as_bytes(), path.unwrap_or_default())?,
            arguments: command.arguments.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?,
            environment: command.environment.iter().map(variable).collect::<Result<_, _>>()?,
        })
    }

    /// Tries the candidates in turn as execvp(3) does; returns only if none could be executed.
    fn exec(&self) -> NotStarted {
        let mut refused = NotStarted::NotFound;
        for path in &self.candidates {
            let error = sys::execve(path, &self.arguments, &self.environment);
            match error.raw_os_error() {
                // The file exists, so its interpreter or loader is missing.
                Some(libc::ENOENT) if rustix::fs::stat(path).is_ok() => refused = NotStarted::NoInterpreter,
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // In a directory that may not be searched the program counts as missing.
                Some(libc::EACCES) if rustix::fs::stat(path).is_err() => {}
                Some(libc::EACCES) => refused = NotStarted::NotExecutable { errno: libc::EACCES },
                Some(libc::ENOEXEC) => return self.exec_with_shell(path),
                errno => return NotStarted::NotExecutable { errno: errno.unwrap_or(libc::EINVAL) },
            }
        }
        refused
    }

    /// Runs a script without an interpreter line by the shell, as execvp(3) does.
    fn exec_with_shell(&self, script: &CString) -> NotStarted {
        let mut arguments = vec![c"/bin/sh".to_owned(), script.clone()];
        arguments.extend(self.arguments.iter().skip(1).cloned());
        let error = sys::execve(c"/bin/sh", &arguments, &self.environment);
        NotStarted::NotExecutable { errno: error.raw_os_error().unwrap_or(libc::ENOEXEC) }
    }
}

/// Candidate paths of `name`: itself if it has a slash, else one in each directory of `path`, an empty one being the
/// current directory.
fn candidates(name: &[u8], path: &[u8]) -> Result<Vec<CString>, std::ffi::NulError> {
    if name.contains(&b'/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    let directories = path.split(|byte| *byte == b':');
    let inside = |directory: &[u8]| if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() };
    directories.map(|directory| CString::new(inside(directory))).collect()
}
