//! A program that runs, as the runner sees it.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, Signal, WaitOptions};

use super::wire::{Ended, Program, Report, Start};
use crate::sys::{self, Cloned};

/// The most bytes of standard error that are kept.
const ERROR_BYTES: usize = 4096;

/// The bytes that are read or written at once.
const CHUNK: usize = 16 * 1024;

/// The exit status of a program that could not be executed (sh(1)).
const NOT_EXECUTED: i32 = 127;

/// An environment as execve(2) takes it. Variables with a zero byte, which the kernel never gives,
/// are left out.
#[derive(Debug)]
pub(super) struct Environment(Vec<CString>);

impl Environment {
    pub(super) fn new(variables: &[(OsString, OsString)]) -> Self {
        let all = variables.iter().filter_map(|(name, value)| {
            let text = [name.as_bytes(), b"=", value.as_bytes()].concat();
            CString::new(text).ok()
        });
        Self(all.collect())
    }
}

/// A program that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) number: u64,
    pid: Pid,
    pidfd: OwnedFd,
    /// Its standard input, with what is still to be written.
    input: Option<(OwnedFd, Vec<u8>)>,
    output: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    written: Vec<u8>,
    said: Vec<u8>,
    output_bytes: usize,
    stage: Stage,
}

/// How far a program has come.
#[derive(Debug)]
enum Stage {
    /// It has until then.
    Runs(Instant),
    /// It was asked to end, and has until then.
    Ends(Instant, Ended),
    /// It was killed.
    Killed(Ended),
}

impl Running {
    /// How long a program has between the signal that asks it to end and the one that kills it.
    pub(super) const GRACE: Duration = Duration::from_secs(1);

    /// Starts `program` with `environment`.
    ///
    /// # Errors
    /// There are no more processes or descriptors.
    pub(super) fn start(
        start: Start,
        program: &Program,
        environment: &Environment,
    ) -> io::Result<Self> {
        let path = c_string(program.path.as_os_str())?;
        let arguments = program.arguments.iter().map(|word| c_string(word));
        let arguments = arguments.collect::<io::Result<Vec<_>>>()?;
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let (their_input, input) = pipe()?;
        let (output, their_output) = pipe()?;
        let (errors, their_errors) = pipe()?;
        for ours in [&input, &output, &errors] {
            rustix::fs::fcntl_setfl(ours, OFlags::NONBLOCK)?;
        }
        match sys::clone_process(0)? {
            Cloned::Child => {
                let become_program = || {
                    rustix::process::setsid()?;
                    rustix::stdio::dup2_stdin(&their_input)?;
                    rustix::stdio::dup2_stdout(&their_output)?;
                    rustix::stdio::dup2_stderr(&their_errors)?;
                    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                    sys::default_signals()?;
                    Err(sys::execve(&path, &arguments, &environment.0))
                };
                let error: io::Result<()> = become_program();
                if let Err(error) = error {
                    let said = format!("{}: {error}\n", program.path.display());
                    let _ = rustix::io::write(&their_errors, said.as_bytes());
                }
                sys::exit_now(NOT_EXECUTED)
            }
            Cloned::Parent { pid, pidfd } => Ok(Self {
                number: start.number,
                pid,
                pidfd,
                input: Some((input, start.input.into_bytes())),
                output: Some(output),
                errors: Some(errors),
                written: Vec::new(),
                said: Vec::new(),
                output_bytes: start.output_bytes,
                stage: Stage::Runs(Instant::now() + Duration::from_millis(start.milliseconds)),
            }),
        }
    }

    /// Returns when it has to be looked at, whatever happens.
    pub(super) fn deadline(&self) -> Instant {
        match &self.stage {
            Stage::Runs(until) | Stage::Ends(until, _) => *until,
            Stage::Killed(_) => Instant::now() + Self::GRACE,
        }
    }

    /// Adds what it has to be looked at for.
    pub(super) fn add_to<'r>(&'r self, polled: &mut Vec<PollFd<'r>>) {
        polled.push(PollFd::new(&self.pidfd, PollFlags::IN));
        if let Some((input, _)) = &self.input {
            polled.push(PollFd::new(input, PollFlags::OUT));
        }
        for stream in [&self.output, &self.errors].into_iter().flatten() {
            polled.push(PollFd::new(stream, PollFlags::IN));
        }
    }

    /// Asks it to end. Afterwards it counts as `ended`.
    pub(super) fn stop(&mut self, ended: Ended) {
        if matches!(self.stage, Stage::Runs(_)) {
            self.signal(Signal::TERM);
            self.stage = Stage::Ends(Instant::now() + Self::GRACE, ended);
        }
    }

    /// Sends `signal` to the program and all in its session's group. It is not reaped yet, so the
    /// number is its own.
    fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.pid, signal);
    }

    /// Moves it on; returns what it did, once it has ended.
    pub(super) fn advance(&mut self, now: Instant) -> Option<Report> {
        self.write();
        let is_over = self.has_ended();
        self.read();
        if is_over {
            return Some(self.reap());
        }
        if self.written.len() > self.output_bytes {
            self.stop(Ended::WroteTooMuch);
        }
        match &self.stage {
            Stage::Runs(until) if *until <= now => self.stop(Ended::TimedOut),
            Stage::Ends(until, ended) if *until <= now => {
                let ended = ended.clone();
                self.signal(Signal::KILL);
                self.stage = Stage::Killed(ended);
            }
            Stage::Runs(_) | Stage::Ends(..) | Stage::Killed(_) => {}
        }
        None
    }

    /// Writes what its standard input takes now.
    fn write(&mut self) {
        let Some((input, left)) = &mut self.input else {
            return;
        };
        while !left.is_empty() {
            let chunk = left.get(..CHUNK).unwrap_or(left);
            match rustix::io::write(&*input, chunk) {
                Ok(count) => drop(left.drain(..count)),
                Err(Errno::AGAIN) => return,
                // It does not read any more.
                Err(_) => break,
            }
        }
        self.input = None;
    }

    /// Takes what it has written.
    fn read(&mut self) {
        let kept = self.output_bytes + 1;
        take(&mut self.output, &mut self.written, kept);
        take(&mut self.errors, &mut self.said, ERROR_BYTES);
    }

    fn has_ended(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
    }

    /// Removes the program, which has ended, and all that it left in its group.
    fn reap(&mut self) -> Report {
        self.signal(Signal::KILL);
        let status = rustix::process::waitpid(Some(self.pid), WaitOptions::empty());
        let by_itself = match status {
            Ok(Some((_, status))) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ended::Exited(code),
                (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
            },
            Ok(None) | Err(_) => Ended::NotStarted("its end is not known".to_owned()),
        };
        let ended = match &self.stage {
            Stage::Ends(_, ended) | Stage::Killed(ended) => ended.clone(),
            Stage::Runs(_) if self.written.len() > self.output_bytes => Ended::WroteTooMuch,
            Stage::Runs(_) => by_itself,
        };
        if ended == Ended::WroteTooMuch {
            self.written.clear();
        }
        Report {
            number: self.number,
            ended,
            output: std::mem::take(&mut self.written),
            errors: std::mem::take(&mut self.said),
        }
    }
}

/// Reads what `stream` has now into `taken`, of which at most `limit` bytes are kept.
fn take(stream: &mut Option<OwnedFd>, taken: &mut Vec<u8>, limit: usize) {
    let Some(open) = stream else { return };
    let mut space = [0; CHUNK];
    // Somebody who writes without end must not hold up the others.
    for _ in 0..16 {
        match rustix::io::read(open.as_fd(), &mut space) {
            Ok(0) => {
                *stream = None;
                return;
            }
            Ok(count) => {
                let room = limit.saturating_sub(taken.len()).min(count);
                taken.extend(space.iter().take(room));
            }
            Err(Errno::AGAIN) => return,
            Err(_) => {
                *stream = None;
                return;
            }
        }
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}
