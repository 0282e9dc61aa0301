//! Init's main loop: sets itself up, serves requests, reaps children, ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::confine::{AppliedToInit, Confinement, Network};
use crate::harden;
use crate::init::child::{self, Starting};
use crate::init::ipc::{Reply, Request, Status};
use crate::packets;
use crate::pty;
use crate::sandbox_files;
use crate::seccomp::filter::Filter;
use crate::sys;

/// PID isolation of init and its commands from the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    /// A PID namespace with a /proc of its own.
    OwnPids,
    /// The supervisor's PID namespace and /proc.
    SharedPids,
}

impl Isolation {
    pub(super) fn namespaces(self) -> libc::c_int {
        match self {
            Self::OwnPids => libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC,
            Self::SharedPids => libc::CLONE_NEWNS | libc::CLONE_NEWIPC,
        }
    }
}

/// Runs init; returns when the sandbox ends.
pub(super) fn run(socket: &OwnedFd, isolation: Isolation) {
    let mut files = None;
    let is_up = match set_up(isolation, socket) {
        Ok(processes) => {
            // Without it the files are in the run directory.
            files = sandbox_files::create().ok();
            let descriptors: Vec<_> = std::iter::once(&processes).chain(&files).map(AsFd::as_fd).collect();
            packets::send(socket.as_fd(), &Reply::Up, &descriptors).is_ok()
        }
        Err(failed) => {
            // A failure means that the supervisor is gone.
            let _ = packets::send(socket.as_fd(), &failed.reply(), &[]);
            false
        }
    };
    if !is_up {
        return;
    }
    let mut server =
        Server { socket, files, confined: None, starting: Vec::new(), running: HashMap::new(), deadline: None };
    if let Err(error) = server.serve() {
        // The supervisor reports it as the cause of the end, if it still runs.
        let _ = packets::send(socket.as_fd(), &Reply::Failed(error.to_string()), &[]);
    }
    if isolation == Isolation::SharedPids {
        end_children();
    }
}

/// A failed step of the set-up.
enum SetUpError {
    /// Mounting /proc, which may fail in a container and has a fallback.
    MountProc(io::Error),
    /// Any other step.
    Step(&'static str, io::Error),
}

impl SetUpError {
    fn reply(&self) -> Reply {
        match self {
            Self::MountProc(error) => Reply::NoProc(format!("mount a /proc of its own: {error}")),
            Self::Step(what, error) => Reply::Failed(format!("cannot {what}: {error}")),
        }
    }
}

/// Sets init up, before it sends its first reply, and opens its /proc, which shows the sandbox's processes.
fn set_up(isolation: Isolation, socket: &OwnedFd) -> Result<OwnedFd, SetUpError> {
    let at = |what| move |error: Errno| SetUpError::Step(what, error.into());
    // Init dies with the supervisor. With shared PIDs its death would leave its children behind; there it ends when its
    // socket closes.
    if isolation == Isolation::OwnPids {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at("set the death signal"))?;
    }
    // Job control of the caller's shell must not stop init, which ends the sandbox in time.
    rustix::process::setpgid(None, None).map_err(at("leave the caller's job"))?;
    harden::make_unreadable().map_err(|error| SetUpError::Step("become unreadable", error))?;
    // If a caller left SIGCHLD ignored, the kernel would reap init's children unseen.
    sys::default_signal(libc::SIGCHLD).map_err(|error| SetUpError::Step("take SIGCHLD", error))?;
    sys::block_signals().map_err(|error| SetUpError::Step("block signals", error))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private)
        .map_err(at("make its mounts private (a container's AppArmor or seccomp profile may forbid mounts)"))?;
    mount_terminals().map_err(at("mount pseudo-terminals of its own on /dev/pts"))?;
    detach_standard_streams().map_err(at("detach from the standard streams"))?;
    sys::close_all_but(socket).map_err(|error| SetUpError::Step("close inherited descriptors", error))?;
    match isolation {
        Isolation::OwnPids => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount("proc", "/proc", "proc", flags, None)
                .map_err(|errno| SetUpError::MountProc(errno.into()))?;
        }
        Isolation::SharedPids => {
            let own = rustix::process::getpid();
            rustix::process::set_child_subreaper(Some(own)).map_err(at("become the reaper of its orphans"))?;
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open("/proc", flags, Mode::empty()).map_err(at("open /proc"))
}

/// Mounts a private devpts instance: the host's pseudo-terminals belong to users, among them the workload's. /dev/ptmx
/// opens terminals of the instance beside it. The caller's terminal stays where ttyname(3) finds it.
fn mount_terminals() -> rustix::io::Result<()> {
    if rustix::fs::stat("/dev/pts").is_err() {
        return Ok(());
    }
    let terminal = rustix::termios::ttyname(rustix::stdio::stdin(), Vec::new());
    let terminal = terminal.and_then(|name| rustix::fs::open(name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()));
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, Some(c"newinstance,ptmxmode=0666,mode=0600"))?;
    // Neither exists if standard input is no terminal or the host lacks the device.
    if let Ok(terminal) = terminal {
        let _ = rustix::mount::mount_bind(format!("/proc/self/fd/{}", terminal.as_raw_fd()), "/dev/console");
    }
    Ok(())
}

/// Detaches from the supervisor's standard input and output, so that their other ends see the end when the supervisor
/// ends. Standard error stays open for a panic message.
fn detach_standard_streams() -> rustix::io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)
}

/// Stops of one command reported between two signals from the supervisor. A stopped supervisor reads no replies, and
/// init must not block on it.
const MAX_STOP_REPORTS: u32 = 8;

/// A running command.
struct Running {
    /// The supervisor's number for it.
    id: u32,
    /// Stops since the supervisor last sent it a signal.
    stops: u32,
}

struct Server<'s> {
    socket: &'s OwnedFd,
    /// The file system of the sandbox's files, until it is mounted.
    files: Option<OwnedFd>,
    confined: Option<(Confinement, Filter)>,
    /// Children that have not executed their commands yet.
    starting: Vec<Starting>,
    /// Running commands.
    running: HashMap<Pid, Running>,
    /// End of the sandbox, enforced by init even if the supervisor is stopped.
    deadline: Option<Instant>,
}

impl Server<'_> {
    fn serve(&mut self) -> io::Result<()> {
        let children = sys::child_signals()?;
        loop {
            let sources = [self.socket, &children].into_iter().chain(self.starting.iter().map(|start| &start.failure));
            let mut ready: Vec<_> = sources.map(|source| PollFd::new(source, PollFlags::IN)).collect();
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return self.reply(&Reply::OutOfTime);
            }
            // Deadlines are at most a year away, which fits every clock.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match rustix::event::poll(&mut ready, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ready: Vec<_> = ready.iter().map(|source| !source.revents().is_empty()).collect();
            // A command starts before it ends, so its start is reported first.
            self.collect_started(&ready[2..])?;
            if ready[1] {
                drain(&children)?;
                self.reap()?;
            }
            if ready[0] && !self.serve_one()? {
                return Ok(());
            }
        }
    }

    /// Serves one request; returns false at the end of the socket.
    fn serve_one(&mut self) -> io::Result<bool> {
        let Some((request, descriptors)) = packets::receive(self.socket.as_fd())? else { return Ok(false) };
        match request {
            Request::Confine(mut confinement) => {
                match confinement.apply_to_init(self.files.take(), || receive_network(self.socket)) {
                    Ok(AppliedToInit { enforced, filter, waiting_calls }) => {
                        self.confined = Some((*confinement, filter));
                        let listener: Vec<_> = waiting_calls.iter().map(AsFd::as_fd).collect();
                        packets::send(self.socket.as_fd(), &Reply::Confined(enforced), &listener)?;
                    }
                    Err(error) => {
                        self.reply(&Reply::Failed(with_causes(&error)))?;
                        return Ok(false);
                    }
                }
            }
            // Only a confinement has a use for a network.
            Request::Enter { .. } => {}
            Request::Start { id, command } => match child::start(self.confined.as_ref(), id, &command, &descriptors) {
                Ok(starting) => self.starting.push(starting),
                Err(why) => self.reply(&Reply::NotStarted { id, why })?,
            },
            Request::OpenTerminal { id } => match pty::open_master() {
                Ok(master) => packets::send(self.socket.as_fd(), &Reply::Terminal { id }, &[master.as_fd()])?,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.reply(&Reply::NoTerminal { id, errno })?;
                }
            },
            Request::EndAfter(time) => self.deadline = Instant::now().checked_add(time),
            Request::Signal { id, signal } => {
                let known = self.running.iter_mut().find(|(_, known)| known.id == id);
                let pid = known.map(|(pid, running)| {
                    running.stops = 0;
                    *pid
                });
                // A command that has just ended needs no signal.
                if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
                    let _ = rustix::process::kill_process_group(pid, signal);
                }
            }
        }
        Ok(true)
    }

    /// Collects the outcomes of starting children whose pipes are `ready`: a failure, or nothing if exec closed the
    /// pipe.
    fn collect_started(&mut self, ready: &[bool]) -> io::Result<()> {
        let (heard, silent) = std::mem::take(&mut self.starting)
            .into_iter()
            .zip(ready.iter().copied().chain(std::iter::repeat(false)))
            .partition::<Vec<_>, _>(|(_, ready)| *ready);
        self.starting = silent.into_iter().map(|(starting, _)| starting).collect();
        for (starting, _) in heard {
            let id = starting.id;
            match starting.outcome()? {
                Ok((pid, pidfd)) => {
                    self.running.insert(pid, Running { id, stops: 0 });
                    let pid = pid.as_raw_nonzero().get();
                    packets::send(self.socket.as_fd(), &Reply::Started { id, pid }, &[pidfd.as_fd()])?;
                }
                Err(why) => self.reply(&Reply::NotStarted { id, why })?,
            }
        }
        Ok(())
    }

    /// Reaps every child that changed state, including orphans.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some(changed)) => changed,
                Ok(None) | Err(Errno::CHILD) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            // It may have executed its command since the last poll.
            if let Some(index) = self.starting.iter().position(|starting| starting.pid == pid) {
                let mut ready = vec![false; self.starting.len()];
                ready[index] = ended_status(status).is_some() || self.starting[index].is_decided()?;
                self.collect_started(&ready)?;
                // Stopped before exec, by the terminal or the workload; only the command itself may stay stopped.
                if !ready[index] {
                    let _ = rustix::process::kill_process(pid, Signal::CONT);
                }
            }
            let Some(running) = self.running.get_mut(&pid) else { continue };
            let id = running.id;
            if let Some(signal) = status.stopping_signal() {
                running.stops += 1;
                if running.stops <= MAX_STOP_REPORTS {
                    self.reply(&Reply::Stopped { id, signal })?;
                }
            } else if let Some(status) = ended_status(status) {
                self.running.remove(&pid);
                self.reply(&Reply::Exited { id, status })?;
            }
        }
    }

    fn reply(&self, reply: &Reply) -> io::Result<()> {
        packets::send(self.socket.as_fd(), reply, &[])
    }
}

fn ended_status(status: WaitStatus) -> Option<Status> {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(Status::Exited(code)),
        (None, Some(signal)) => Some(Status::Killed(signal)),
        (None, None) => None,
    }
}

/// Empties a signalfd; waiting yields the details.
fn drain(signals: &OwnedFd) -> io::Result<()> {
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    loop {
        match rustix::io::read(signals, &mut record) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills children until none is left. The children of a killed child become init's, their subreaper.
fn end_children() {
    let own = rustix::process::getpid();
    loop {
        children_of(own).into_iter().for_each(|pid| {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        });
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Waits for the network of the confinement under way.
fn receive_network(socket: &OwnedFd) -> io::Result<Network> {
    match packets::receive(socket.as_fd())? {
        Some((Request::Enter { is_own, firewall_probe }, descriptors)) => {
            let namespace = descriptors.into_iter().next();
            // A descriptor is lost on the way if init has too many.
            if namespace.is_some() != is_own {
                return Err(io::Error::other("its namespace did not arrive"));
            }
            Ok(Network { namespace, firewall_probe })
        }
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let parent_of = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse::<i32>().ok()
    };
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let children = numbers.filter(|pid| parent_of(*pid) == Some(parent.as_raw_nonzero().get()));
    children.filter_map(Pid::from_raw).collect()
}

/// Formats an error and its causes on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
