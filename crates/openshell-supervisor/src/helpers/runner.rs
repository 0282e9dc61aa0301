//! The runner: the parent of the programs, and a process with one thread.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::running::{Environment, Running};
use super::wire::{Ended, Program, Report, Request, Start};
use crate::command::packets;
use crate::seccomp::harden;
use crate::sys::{self, Cloned};

/// The most programs at once, whatever the supervisor asks for.
const PROGRAMS: usize = 32;

/// The supervisor's end of the socket to the runner. The runner ends with it, and with it all
/// programs.
#[derive(Debug)]
pub struct Runner(OwnedFd);

impl Runner {
    /// Forks the runner, whose programs get what `environment` returns. Call this before anything
    /// else: the runner keeps the memory, the namespaces and the limits that the calling process has.
    ///
    /// # Errors
    /// Fails if the process has several threads, or if there is no room for another process.
    pub fn fork(environment: impl FnOnce() -> Vec<(OsString, OsString)>) -> io::Result<Self> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        match sys::clone_process(0)? {
            Cloned::Parent { .. } => Ok(Self(ours)),
            Cloned::Child => match serve(&theirs, &environment()) {
                Ok(never) => match never {},
                // The supervisor finds the socket closed.
                Err(_) => sys::exit_now(1),
            },
        }
    }

    /// Tells the runner its programs, and returns the socket for what follows, which does not block.
    /// Without programs the runner ends.
    ///
    /// # Errors
    /// Fails if the runner has ended.
    pub fn begin(self, programs: Vec<Program>) -> io::Result<OwnedFd> {
        packets::send(self.0.as_fd(), &Request::Programs(programs), &[])?;
        let flags = rustix::fs::fcntl_getfl(&self.0)?;
        rustix::fs::fcntl_setfl(&self.0, flags | OFlags::NONBLOCK)?;
        Ok(self.0)
    }
}

/// Serves the supervisor at the other end of `socket`, until it closes that.
fn serve(socket: &OwnedFd, environment: &[(OsString, OsString)]) -> io::Result<Infallible> {
    harden::make_unreadable()?;
    detach(socket)?;
    let programs = match packets::receive(socket.as_fd())? {
        Some((Request::Programs(programs), _)) if !programs.is_empty() => programs,
        Some(_) | None => sys::exit_now(0),
    };
    let mut serving = Serving {
        programs: programs
            .into_iter()
            .map(|program| with_variables(program, environment))
            .collect(),
        running: Vec::new(),
    };
    while serving.step(socket)? {}
    serving.end();
    sys::exit_now(0)
}

/// Keeps nothing of the caller's terminal, folder and descriptors but `socket`. The runner ends with
/// that: a signal would orphan its programs.
fn detach(socket: &OwnedFd) -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::thread::set_name(c"sandbox-runner")?;
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(0o077));
    let nothing = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    sys::close_all_but(&[socket])?;
    // It was closed above.
    std::mem::forget(nothing);
    sys::block_signals()
}

/// Returns `program` and its environment: the caller's, with its own variables.
fn with_variables(
    program: Program,
    environment: &[(OsString, OsString)],
) -> (Program, Environment) {
    let is_own = |name: &OsString| program.variables.iter().any(|(own, _)| own == name);
    let others = environment.iter().filter(|(name, _)| !is_own(name));
    let own = program.variables.iter();
    let own = own.filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
    let all: Vec<_> = others.cloned().chain(own).collect();
    (program, Environment::new(&all))
}

/// What the runner knows.
struct Serving {
    programs: Vec<(Program, Environment)>,
    running: Vec<Running>,
}

impl Serving {
    /// Waits for something to happen, and handles it; returns false once the supervisor has gone.
    fn step(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        let is_asked = self.wait(Some(socket.as_fd()))?;
        if is_asked {
            match packets::receive(socket.as_fd()) {
                Ok(Some((request, _))) => {
                    if let Some(report) = self.handle(request)
                        && packets::send(socket.as_fd(), &report, &[]).is_err()
                    {
                        return Ok(false);
                    }
                }
                Ok(None) | Err(_) => return Ok(false),
            }
        }
        for report in self.advance() {
            if packets::send(socket.as_fd(), &report, &[]).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until a program or the supervisor at `socket` has something to say, or until a deadline
    /// has come; returns true if it is the supervisor.
    fn wait(&self, socket: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let now = Instant::now();
        let deadlines = self.running.iter().map(Running::deadline);
        let left = deadlines
            .min()
            .map(|end| end.saturating_duration_since(now));
        let left = left.map(Timespec::try_from).transpose();
        let left = left.map_err(io::Error::other)?;
        let mut polled: Vec<_> = socket
            .iter()
            .map(|socket| PollFd::from_borrowed_fd(*socket, PollFlags::IN))
            .collect();
        for running in &self.running {
            running.add_to(&mut polled);
        }
        match rustix::event::poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let first = polled.first().filter(|_| socket.is_some());
        Ok(first.is_some_and(|first| !first.revents().is_empty()))
    }

    /// Handles a request; returns what became of a start that failed.
    fn handle(&mut self, request: Request) -> Option<Report> {
        match request {
            Request::Start(start) => self.start(start),
            Request::Cancel(number) => {
                let mut running = self.running.iter_mut();
                if let Some(running) = running.find(|running| running.number == number) {
                    running.stop(Ended::Cancelled);
                }
                None
            }
            // The list is sealed.
            Request::Programs(_) => None,
        }
    }

    fn start(&mut self, start: Start) -> Option<Report> {
        let number = start.number;
        let started = match self.programs.get(start.program) {
            Some(_) if self.running.len() >= PROGRAMS => Err(io::Error::other("too many run")),
            Some((program, environment)) => Running::start(start, program, environment),
            None => Err(io::Error::other("there is no such program")),
        };
        match started {
            Ok(running) => {
                self.running.push(running);
                None
            }
            Err(error) => Some(Report {
                number,
                ended: Ended::NotStarted(error.to_string()),
                output: Vec::new(),
                errors: Vec::new(),
            }),
        }
    }

    /// Moves all programs on, and returns what those that have ended did.
    fn advance(&mut self) -> Vec<Report> {
        let now = Instant::now();
        let mut reports = Vec::new();
        self.running
            .retain_mut(|running| match running.advance(now) {
                None => true,
                Some(report) => {
                    reports.push(report);
                    false
                }
            });
        reports
    }

    /// Ends all programs.
    fn end(&mut self) {
        for running in &mut self.running {
            running.stop(Ended::Cancelled);
        }
        let end = Instant::now() + 2 * Running::GRACE;
        while !self.running.is_empty() && Instant::now() < end {
            if self.wait(None).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            self.advance();
        }
    }
}
