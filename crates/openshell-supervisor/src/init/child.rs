//! A child of init that confines itself and becomes a command.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal};

use crate::command::packets;
use crate::confine::{AtStep as _, Confinement, Step, StepFailed};
use crate::init::ipc::{Command, IgnoredSignals, NotStarted, Session};
use crate::init::leader::{self, Notice};
use crate::seccomp::filter::Filter;
use crate::sys::{self, Cloned};

/// The size of the largest failure message, in bytes; a pipe takes as many at once (PIPE_BUF,
/// pipe(7)).
const FAILURE_BYTES: usize = 4096;

/// A child that is about to become a command. Init polls it instead of waiting, because a slow disk
/// may delay it, or a signal of the workload once it has the workload's identity.
#[derive(Debug)]
pub(super) struct Starting {
    /// The supervisor's number for the command.
    pub(super) id: u32,
    /// Init's direct child: the command, or its leader.
    pub(super) child: Pid,
    pidfd: OwnedFd,
    /// The pipe for a failure; exec closes it empty.
    pub(super) failure: OwnedFd,
    /// True if init's child leads the command's session.
    is_led: bool,
    /// The command that the leader starts; `None` without a leader, or once it is gone.
    leader: Option<Led>,
}

/// A command that is started by its leader.
#[derive(Debug)]
struct Led {
    /// The socket to the leader.
    socket: OwnedFd,
    /// The command's process, once the leader has reported it.
    command: Option<(Pid, OwnedFd)>,
}

/// A command that was executed.
pub(super) struct Started {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    /// The socket to the leader of its session, if it has one.
    pub(super) leader: Option<OwnedFd>,
}

impl Starting {
    /// Returns true if the child has become the command or has failed to.
    pub(super) fn is_decided(&self) -> io::Result<bool> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut said = [PollFd::new(&self.failure, PollFlags::IN)];
        Ok(rustix::event::poll(&mut said, Some(&now))? > 0)
    }

    /// Returns the socket to its leader, if it has one.
    pub(super) fn leader(&self) -> Option<&OwnedFd> {
        self.leader.as_ref().map(|leader| &leader.socket)
    }

    /// Handles one notice from its leader.
    pub(super) fn hear(&mut self) -> io::Result<()> {
        let Some(leader) = &mut self.leader else {
            return Ok(());
        };
        match packets::receive(leader.socket.as_fd()) {
            Ok(Some((Notice::Forked { pid }, descriptors))) => {
                leader.command = Pid::from_raw(pid).zip(descriptors.into_iter().next());
            }
            // The terminal or the workload stopped it before exec. Only the command itself may stay
            // stopped.
            Ok(Some((Notice::Stopped { .. }, _))) => {
                if let Some((pid, _)) = &leader.command {
                    let _ = rustix::process::kill_process(*pid, Signal::CONT);
                }
            }
            // The pipe holds the failure.
            Ok(Some((Notice::Ended(_), _))) => {}
            // The leader was killed.
            Ok(None) => self.leader = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the outcome. Call this only when `failure` is readable; a failure is written in one
    /// piece.
    pub(super) fn outcome(mut self) -> io::Result<Result<Started, NotStarted>> {
        let mut why = [0; FAILURE_BYTES];
        let filled = rustix::io::read(&self.failure, &mut why)?;
        if filled > 0 {
            return Ok(Err(serde_json::from_slice(
                why.get(..filled).unwrap_or_default(),
            )?));
        }
        if self.leader.is_none() && !self.is_led {
            return Ok(Ok(Started {
                pid: self.child,
                pidfd: self.pidfd,
                leader: None,
            }));
        }
        // The leader reports the command before it closes its end of the pipe.
        if self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.command.is_none())
        {
            self.hear()?;
        }
        Ok(match self.leader {
            Some(Led {
                socket,
                command: Some((pid, pidfd)),
            }) => Ok(Started {
                pid,
                pidfd,
                leader: Some(socket),
            }),
            _ => Err(NotStarted::Init {
                what: "the leader of its session was killed".to_owned(),
            }),
        })
    }
}

/// Starts `command` under `confined`. `streams` are its standard input, output and error, and its
/// terminal if it has a [`Session::Job`].
pub(super) fn start(
    confined: Option<&(Confinement, Filter)>,
    limit: Rlimit,
    id: u32,
    command: &Command,
    streams: &[OwnedFd],
) -> Result<Starting, NotStarted> {
    let wrong = |what: &str| NotStarted::Init {
        what: what.to_owned(),
    };
    let (confinement, filter) = confined.ok_or_else(|| wrong("init is not confined yet"))?;
    let (streams, terminal) = match (streams, command.session) {
        ([input, output, errors], Session::New | Session::Terminal) => {
            ([input, output, errors], None)
        }
        ([input, output, errors, terminal], Session::Job { is_foreground }) => {
            ([input, output, errors], Some((terminal, is_foreground)))
        }
        _ => {
            return Err(wrong(
                "a command has three standard streams, and a job a terminal",
            ));
        }
    };
    let program =
        Program::new(command).map_err(|_| wrong("an argument or variable holds a NUL byte"))?;
    let system = |error: io::Error| NotStarted::Init {
        what: error.to_string(),
    };
    let (failure, writer) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|errno| system(errno.into()))?;
    let prepared = Prepared {
        confinement,
        filter,
        command,
        program,
        streams,
        limit,
    };
    let mut leader = None;
    let (child, pidfd) = match terminal {
        None => match sys::clone_process(0).map_err(system)? {
            Cloned::Parent { pid, pidfd } => (pid, pidfd),
            Cloned::Child => end_with(writer, &prepared.run_alone()),
        },
        Some((terminal, is_foreground)) => {
            let (ours, theirs) = leader::sockets().map_err(system)?;
            leader = Some(Led {
                socket: ours,
                command: None,
            });
            match sys::clone_process(0).map_err(system)? {
                Cloned::Parent { pid, pidfd } => (pid, pidfd),
                Cloned::Child => end_with(writer, &prepared.lead(theirs, terminal, is_foreground)),
            }
        }
    };
    Ok(Starting {
        id,
        child,
        pidfd,
        failure,
        is_led: leader.is_some(),
        leader,
    })
}

/// Ends a child that did not become the command, and reports `why`.
fn end_with(writer: OwnedFd, why: &NotStarted) -> ! {
    // Only init reads the pipe; without init there is no one to report to.
    let text = serde_json::to_vec(why).unwrap_or_default();
    let _ = File::from(writer).write_all(&text);
    sys::exit_now(127)
}

/// The number of the last signal that has a name (signal(7)).
const LAST_SIGNAL: i32 = 31;

/// Everything that a child of init needs to start a command.
struct Prepared<'c> {
    confinement: &'c Confinement,
    filter: &'c Filter,
    command: &'c Command,
    program: Program,
    streams: [&'c OwnedFd; 3],
    /// The caller's limit of open files.
    limit: Rlimit,
}

impl Prepared<'_> {
    /// Becomes the command, in a session that it leads. Returns only on failure.
    fn run_alone(&self) -> NotStarted {
        match self.start_session() {
            Ok(()) => self.execute(),
            Err(failed) => NotStarted::Step(failed),
        }
    }

    /// Starts a session that the command will lead.
    fn start_session(&self) -> Result<(), StepFailed> {
        rustix::process::setsid().at(Step::Session)?;
        match self.command.session {
            Session::Terminal => take_terminal(self.streams[0]),
            Session::New | Session::Job { .. } => Ok(()),
        }
    }

    /// Starts the command in a new session with `terminal`, and leads that session until it ends.
    /// Returns only on failure.
    fn lead(&self, socket: OwnedFd, terminal: &OwnedFd, is_foreground: bool) -> NotStarted {
        let system = |error: io::Error| NotStarted::Init {
            what: error.to_string(),
        };
        let begun = rustix::process::setsid()
            .at(Step::Session)
            .and_then(|_| take_terminal(terminal));
        if let Err(failed) = begun {
            return NotStarted::Step(failed);
        }
        let (command, pidfd) = match sys::clone_process(0) {
            Ok(Cloned::Parent { pid, pidfd }) => (pid, pidfd),
            Ok(Cloned::Child) => {
                return start_group(terminal, is_foreground)
                    .map_or_else(NotStarted::Step, |()| self.execute());
            }
            Err(error) => return system(error),
        };
        leader::run(socket, terminal, command, &pidfd)
    }

    /// Confines the calling process and executes the command. Returns only on failure.
    fn execute(&self) -> NotStarted {
        if self.command.ignored == IgnoredSignals::Reset {
            // Signals whose action cannot be changed have their default one anyway.
            for signal in 1..=LAST_SIGNAL {
                let _ = sys::default_signal(signal);
            }
        }
        let steps = self
            .take_streams()
            .and_then(|()| limit_descriptors(&self.limit))
            .and_then(|()| {
                self.confinement
                    .apply_to_child(self.filter, &self.command.directories)
            });
        match steps {
            Ok(()) => self.program.exec(),
            Err(failed) => NotStarted::Step(failed),
        }
    }

    /// Takes the standard streams, and marks all other descriptors close-on-exec.
    fn take_streams(&self) -> Result<(), StepFailed> {
        let [input, output, errors] = self.streams;
        rustix::stdio::dup2_stdin(input).at(Step::StandardStreams)?;
        rustix::stdio::dup2_stdout(output).at(Step::StandardStreams)?;
        rustix::stdio::dup2_stderr(errors).at(Step::StandardStreams)?;
        sys::close_on_exec_from(3).at(Step::Descriptors)
    }
}

/// Gives the calling process the caller's soft limit of open files, and a hard limit below the
/// caller's. Descriptors that are being sent through sockets count for all processes of a user
/// (unix(7), ETOOMANYREFS), and those of a command must not make sends of the supervisor and init
/// fail.
fn limit_descriptors(callers: &Rlimit) -> Result<(), StepFailed> {
    let maximum = callers.maximum.map(|maximum| maximum - maximum / 16);
    let current = match (callers.current, maximum) {
        (Some(current), Some(maximum)) => Some(current.min(maximum)),
        (current, maximum) => current.or(maximum),
    };
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum }).at(Step::Descriptors)
}

/// Makes `terminal` the controlling terminal of the session that the calling process leads.
fn take_terminal(terminal: &OwnedFd) -> Result<(), StepFailed> {
    rustix::process::ioctl_tiocsctty(terminal).at(Step::Terminal)
}

/// Starts a process group, in the foreground of `terminal` if `is_foreground`.
fn start_group(terminal: &OwnedFd, is_foreground: bool) -> Result<(), StepFailed> {
    rustix::process::setpgid(None, None).at(Step::Session)?;
    if is_foreground {
        // Signals are still blocked, so no process is stopped for taking the terminal from the
        // background.
        rustix::termios::tcsetpgrp(terminal, rustix::process::getpid()).at(Step::Terminal)?;
    }
    Ok(())
}

/// The prepared arguments of execve(2).
struct Program {
    candidates: Vec<CString>,
    arguments: Vec<CString>,
    environment: Vec<CString>,
}

impl Program {
    fn new(command: &Command) -> Result<Self, std::ffi::NulError> {
        let name = command
            .arguments
            .first()
            .map_or(OsStr::new(""), OsString::as_os_str);
        let path = command
            .environment
            .iter()
            .find(|(key, _)| key == "PATH")
            .map(|(_, value)| value.as_bytes());
        let variable = |(key, value): &(OsString, OsString)| {
            CString::new([key.as_bytes(), b"=", value.as_bytes()].concat())
        };
        Ok(Self {
            candidates: candidates(name.as_bytes(), path.unwrap_or_default())?,
            arguments: command
                .arguments
                .iter()
                .map(|word| CString::new(word.as_bytes()))
                .collect::<Result<_, _>>()?,
            environment: command
                .environment
                .iter()
                .map(variable)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Tries the candidates in turn, like execvp(3). Returns only if none could be executed.
    fn exec(&self) -> NotStarted {
        let mut refused = NotStarted::NotFound;
        for path in &self.candidates {
            let error = sys::execve(path, &self.arguments, &self.environment);
            match error.raw_os_error() {
                // The file exists, so its interpreter or loader is missing.
                Some(libc::ENOENT) if rustix::fs::stat(path).is_ok() => {
                    refused = NotStarted::NoInterpreter
                }
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                // A program in a directory that may not be searched counts as missing.
                Some(libc::EACCES) if rustix::fs::stat(path).is_err() => {}
                Some(libc::EACCES) => {
                    refused = NotStarted::NotExecutable {
                        errno: libc::EACCES,
                    }
                }
                Some(libc::ENOEXEC) => return self.exec_with_shell(path),
                errno => {
                    return NotStarted::NotExecutable {
                        errno: errno.unwrap_or(libc::EINVAL),
                    };
                }
            }
        }
        refused
    }

    /// Runs a script that has no interpreter line with the shell, like execvp(3).
    fn exec_with_shell(&self, script: &CString) -> NotStarted {
        let mut arguments = vec![c"/bin/sh".to_owned(), script.clone()];
        arguments.extend(self.arguments.iter().skip(1).cloned());
        let error = sys::execve(c"/bin/sh", &arguments, &self.environment);
        NotStarted::NotExecutable {
            errno: error.raw_os_error().unwrap_or(libc::ENOEXEC),
        }
    }
}

/// Returns the candidate paths of `name`: only itself if it has a slash, otherwise one in each
/// directory of `path`. An empty directory means the current one.
fn candidates(name: &[u8], path: &[u8]) -> Result<Vec<CString>, std::ffi::NulError> {
    if name.contains(&b'/') || name.is_empty() {
        return Ok(vec![CString::new(name)?]);
    }
    let directories = path.split(|byte| *byte == b':');
    let inside = |directory: &[u8]| {
        if directory.is_empty() {
            name.to_vec()
        } else {
            [directory, b"/", name].concat()
        }
    };
    directories
        .map(|directory| CString::new(inside(directory)))
        .collect()
}
