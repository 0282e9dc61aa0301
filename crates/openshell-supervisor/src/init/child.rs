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

/// Largest failure message in bytes; a pipe takes as many at once (PIPE_BUF, pipe(7)).
const FAILURE_BYTES: usize = 4096;

/// A child on its way to becoming a command. Init polls it, as it may be delayed by a slow disk, or
/// by a signal of the workload once it has its identity.
#[derive(Debug)]
pub(super) struct Starting {
    /// The supervisor's number for the command.
    pub(super) id: u32,
    /// Init's own child: the command, or its leader.
    pub(super) child: Pid,
    pidfd: OwnedFd,
    /// Pipe that receives the failure; exec closes it empty.
    pub(super) failure: OwnedFd,
    /// True if init's child leads the command's session.
    is_led: bool,
    /// The command as its leader starts it; `None` once the leader is gone.
    leader: Option<Led>,
}

/// A command that its leader starts.
#[derive(Debug)]
struct Led {
    /// To the leader.
    socket: OwnedFd,
    /// The command's process, once the leader has told it.
    command: Option<(Pid, OwnedFd)>,
}

/// A command that was executed.
pub(super) struct Started {
    pub(super) pid: Pid,
    pub(super) pidfd: OwnedFd,
    /// To the leader of its session, if it has one.
    pub(super) leader: Option<OwnedFd>,
}

impl Starting {
    /// Returns true if it has become the command or failed to.
    pub(super) fn is_decided(&self) -> io::Result<bool> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut said = [PollFd::new(&self.failure, PollFlags::IN)];
        Ok(rustix::event::poll(&mut said, Some(&now))? > 0)
    }

    /// The socket to its leader, if it has one.
    pub(super) fn leader(&self) -> Option<&OwnedFd> {
        self.leader.as_ref().map(|leader| &leader.socket)
    }

    /// Hears one notice of its leader.
    pub(super) fn hear(&mut self) -> io::Result<()> {
        let Some(leader) = &mut self.leader else {
            return Ok(());
        };
        match packets::receive(leader.socket.as_fd()) {
            Ok(Some((Notice::Forked { pid }, descriptors))) => {
                leader.command = Pid::from_raw(pid).zip(descriptors.into_iter().next());
            }
            // Before exec, by the terminal or the workload; only the command itself may stay
            // stopped.
            Ok(Some((Notice::Stopped { .. }, _))) => {
                if let Some((pid, _)) = &leader.command {
                    let _ = rustix::process::kill_process(*pid, Signal::CONT);
                }
            }
            // Its failure is in the pipe.
            Ok(Some((Notice::Ended(_), _))) => {}
            // It was killed.
            Ok(None) => self.leader = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Returns the outcome. To be called once `failure` is readable; a failure is written at once.
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
        // The leader tells of the command before it closes its end of the pipe.
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

/// Starts `command` under `confined`, with `streams` as its standard input, output and error, and
/// its terminal if it has a [`Session::Job`].
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
    match terminal {
        None => {
            let Cloned::Parent { pid, pidfd } = sys::clone_process(0).map_err(system)? else {
                end_with(
                    writer,
                    &prepared
                        .start_session()
                        .map_or_else(NotStarted::Step, |()| prepared.execute()),
                )
            };
            Ok(Starting {
                id,
                child: pid,
                pidfd,
                failure,
                is_led: false,
                leader: None,
            })
        }
        Some((terminal, is_foreground)) => {
            let (ours, theirs) = leader::sockets().map_err(system)?;
            let Cloned::Parent { pid, pidfd } = sys::clone_process(0).map_err(system)? else {
                end_with(writer, &prepared.lead(theirs, terminal, is_foreground))
            };
            let leader = Some(Led {
                socket: ours,
                command: None,
            });
            Ok(Starting {
                id,
                child: pid,
                pidfd,
                failure,
                is_led: true,
                leader,
            })
        }
    }
}

/// Ends a child that did not become the command, and says why.
fn end_with(writer: OwnedFd, why: &NotStarted) -> ! {
    // Only init reads the pipe; without init there is no one to report to.
    let text = serde_json::to_vec(why).unwrap_or_default();
    let _ = File::from(writer).write_all(&text);
    sys::exit_now(127)
}

/// The last of the signals with names (signal(7)).
const LAST_SIGNAL: i32 = 31;

/// A command as a child of init starts it.
struct Prepared<'c> {
    confinement: &'c Confinement,
    filter: &'c Filter,
    command: &'c Command,
    program: Program,
    streams: [&'c OwnedFd; 3],
    /// Limit of open files that the caller has.
    limit: Rlimit,
}

impl Prepared<'_> {
    /// Starts a session that the command leads.
    fn start_session(&self) -> Result<(), StepFailed> {
        rustix::process::setsid().at(Step::Session)?;
        match self.command.session {
            Session::Terminal => take_terminal(self.streams[0]),
            Session::New | Session::Job { .. } => Ok(()),
        }
    }

    /// Starts the command in a session with `terminal`, and leads that to its end; returns only on
    /// failure.
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

    /// Confines the calling process and executes the command; returns only on failure.
    fn execute(&self) -> NotStarted {
        if self.command.ignored == IgnoredSignals::Reset {
            // Those whose action cannot be changed have their default one.
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

/// Gives the calling process the soft limit of open files that the caller has, and a hard one below
/// the caller's: descriptors on their way through sockets count for all processes of a user, and
/// what the supervisor and init send must not fail for those of a command (unix(7), ETOOMANYREFS).
fn limit_descriptors(callers: &Rlimit) -> Result<(), StepFailed> {
    let maximum = callers.maximum.map(|maximum| maximum - maximum / 16);
    let current = match (callers.current, maximum) {
        (Some(current), Some(maximum)) => Some(current.min(maximum)),
        (current, maximum) => current.or(maximum),
    };
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum }).at(Step::Descriptors)
}

/// Makes `terminal` the controlling one of the session that the calling process leads.
fn take_terminal(terminal: &OwnedFd) -> Result<(), StepFailed> {
    rustix::process::ioctl_tiocsctty(terminal).at(Step::Terminal)
}

/// Starts a process group, in the foreground of `terminal` if it is meant to be.
fn start_group(terminal: &OwnedFd, is_foreground: bool) -> Result<(), StepFailed> {
    rustix::process::setpgid(None, None).at(Step::Session)?;
    if is_foreground {
        // Signals are still blocked, so taking the terminal from the background stops no process.
        rustix::termios::tcsetpgrp(terminal, rustix::process::getpid()).at(Step::Terminal)?;
    }
    Ok(())
}

/// Arguments of execve(2), prepared.
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

    /// Tries the candidates in turn as execvp(3) does; returns only if none could be executed.
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
                // In a directory that may not be searched the program counts as missing.
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

    /// Runs a script without an interpreter line by the shell, as execvp(3) does.
    fn exec_with_shell(&self, script: &CString) -> NotStarted {
        let mut arguments = vec![c"/bin/sh".to_owned(), script.clone()];
        arguments.extend(self.arguments.iter().skip(1).cloned());
        let error = sys::execve(c"/bin/sh", &arguments, &self.environment);
        NotStarted::NotExecutable {
            errno: error.raw_os_error().unwrap_or(libc::ENOEXEC),
        }
    }
}

/// Candidate paths of `name`: itself if it has a slash, else one in each directory of `path`, an
/// empty one being the current directory.
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
