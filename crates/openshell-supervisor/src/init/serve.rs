//! Init's main loop: sets itself up, serves requests, reaps children, ends.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions};

use crate::command::packets;
use crate::command::pty;
use crate::confine::{AppliedToInit, Confinement, Network};
use crate::init::child::{self, Started, Starting};
use crate::init::children::{drain, ended_status};
use crate::init::ipc::{Reply, Request, Status};
use crate::init::leader::{Notice, Order};
use crate::init::suspend::{self, Suspended};
use crate::init::watch::Watch;
use crate::runs::sandbox_files;
use crate::seccomp::filter::Filter;
use crate::seccomp::harden;
use crate::sys;

/// How the PIDs of init and its commands are isolated from the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    /// A new PID namespace with a new /proc.
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
    let mut descriptors = Rlimit {
        current: None,
        maximum: None,
    };
    let is_up = match set_up(isolation, socket) {
        Ok((processes, limit)) => {
            descriptors = limit;
            // Without this file system, the files are in the run directory.
            files = sandbox_files::create().ok();
            let descriptors: Vec<_> = std::iter::once(&processes)
                .chain(&files)
                .map(AsFd::as_fd)
                .collect();
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
    let mut server = Server {
        socket,
        files,
        descriptors,
        confined: None,
        watch: None,
        is_lost: false,
        starting: Vec::new(),
        running: HashMap::new(),
        suspended: Suspended::default(),
        deadline: None,
    };
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
    /// Mounting /proc; this may fail in a container and has a fallback.
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

/// Sets init up, before it sends its first reply. Returns its /proc, which shows the sandbox's
/// processes, and the caller's limit of open files.
fn set_up(isolation: Isolation, socket: &OwnedFd) -> Result<(OwnedFd, Rlimit), SetUpError> {
    let at = |what| move |error: Errno| SetUpError::Step(what, error.into());
    // Init dies with the supervisor. With shared PIDs, a killed init would leave its children
    // behind; there it ends when its socket closes.
    if isolation == Isolation::OwnPids {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(at("set the death signal"))?;
    }
    // Job control of the caller's shell must not stop init, which has to end the sandbox in time.
    // Nothing inside may have the caller's terminal as its controlling one.
    rustix::process::setsid().map_err(at("leave the caller's session"))?;
    harden::make_unreadable().map_err(|error| SetUpError::Step("become unreadable", error))?;
    // If a caller left SIGCHLD ignored, the kernel would reap init's children without telling init.
    sys::default_signal(libc::SIGCHLD).map_err(|error| SetUpError::Step("reset SIGCHLD", error))?;
    sys::block_signals().map_err(|error| SetUpError::Step("block signals", error))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", private).map_err(at(
        "make its mounts private (a container's AppArmor or seccomp profile may forbid mounts)",
    ))?;
    mount_terminals().map_err(at("mount pseudo-terminals of its own on /dev/pts"))?;
    detach_standard_streams().map_err(at("detach from the standard streams"))?;
    sys::close_all_but(&[socket])
        .map_err(|error| SetUpError::Step("close inherited descriptors", error))?;
    match isolation {
        Isolation::OwnPids => {
            let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            rustix::mount::mount("proc", "/proc", "proc", flags, None)
                .map_err(|errno| SetUpError::MountProc(errno.into()))?;
        }
        Isolation::SharedPids => {
            let own = rustix::process::getpid();
            rustix::process::set_child_subreaper(Some(own))
                .map_err(at("become the reaper of its orphans"))?;
        }
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = rustix::fs::open("/proc", flags, Mode::empty()).map_err(at("open /proc"))?;
    // Descriptors that commands are sending to each other also count against this limit of init.
    let descriptors = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: descriptors.maximum,
        maximum: descriptors.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised)
        .map_err(at("raise its limit of open files"))?;
    Ok((processes, descriptors))
}

/// Mounts a private devpts instance, because the host's pseudo-terminals belong to users, and the
/// workload's user may be one of them. /dev/ptmx opens terminals of the instance beside it. The
/// instance has at most 256 of them, enough for a busy desktop, because the kernel's limit counts
/// the terminals of all instances.
fn mount_terminals() -> rustix::io::Result<()> {
    match rustix::fs::stat("/dev/pts") {
        Err(Errno::NOENT) => return Ok(()),
        data => data?,
    };
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    rustix::mount::mount(
        "devpts",
        "/dev/pts",
        "devpts",
        flags,
        Some(c"newinstance,ptmxmode=0666,mode=0600,max=256"),
    )
}

/// Detaches from the supervisor's standard input and output, so that their other ends see the end
/// of file when the supervisor ends. Standard error stays open for a panic message.
fn detach_standard_streams() -> rustix::io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)
}

/// The number of stops of one command that are reported between two signals from the supervisor. A
/// stopped supervisor reads no replies, and init must not block on it.
const MAX_STOP_REPORTS: u32 = 8;

/// A running command.
struct Running {
    /// The supervisor's number for it.
    id: u32,
    /// The number of stops since the supervisor last sent it a signal.
    stops: u32,
    /// The socket to the leader of its session, if it has one.
    leader: Option<OwnedFd>,
}

struct Server<'s> {
    socket: &'s OwnedFd,
    /// The file system for the sandbox's files, until it is mounted.
    files: Option<OwnedFd>,
    /// The caller's limit of open files.
    descriptors: Rlimit,
    confined: Option<(Confinement, Filter)>,
    /// The watch over what mounts protect from the workload.
    watch: Option<Watch>,
    /// True once the sandbox must end because something is no longer protected.
    is_lost: bool,
    /// Children that have not executed their commands yet.
    starting: Vec<Starting>,
    /// Running commands.
    running: HashMap<Pid, Running>,
    /// The processes that are stopped with the caller's job.
    suspended: Suspended,
    /// The time at which init ends the sandbox, even if the supervisor is stopped.
    deadline: Option<Instant>,
}

/// A source of work that is ready to be served.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Request,
    Children,
    Mounts,
    /// The leader of the running command with this PID.
    Leader(Pid),
    /// The leader of the starting command with this number.
    LeaderOfStarting(u32),
    /// The outcome of the starting command with this number.
    Outcome(u32),
}

impl Server<'_> {
    fn serve(&mut self) -> io::Result<()> {
        let children = sys::child_signals()?;
        let mut has_mount_changes = false;
        loop {
            if self
                .deadline
                .is_some_and(|deadline| deadline <= Instant::now())
            {
                return self.reply(&Reply::OutOfTime);
            }
            if self
                .watch
                .as_ref()
                .is_some_and(|watch| watch.due_in(has_mount_changes).is_zero())
            {
                has_mount_changes = false;
                if self.look_for_losses()? {
                    return Ok(());
                }
            }
            let ready = self.wait(&children, has_mount_changes)?;
            has_mount_changes |= ready.contains(&Ready::Mounts);
            // A command starts before it ends, so its start is reported first.
            for source in &ready {
                match source {
                    Ready::Outcome(id) => self.collect_started(*id)?,
                    Ready::LeaderOfStarting(id) => self.hear_starting(*id)?,
                    _ => {}
                }
            }
            for source in &ready {
                if let Ready::Leader(pid) = source {
                    self.hear(*pid)?;
                }
            }
            if ready.contains(&Ready::Children) {
                drain(&children)?;
                self.reap()?;
            }
            if self.is_lost || ready.contains(&Ready::Request) && !self.serve_one()? {
                return Ok(());
            }
        }
    }

    /// Waits until there is work, or until the next deadline or look at the mounts.
    fn wait(&self, children: &OwnedFd, has_mount_changes: bool) -> io::Result<Vec<Ready>> {
        let mut sources = vec![
            (Ready::Request, PollFd::new(self.socket, PollFlags::IN)),
            (Ready::Children, PollFd::new(children, PollFlags::IN)),
        ];
        // A change that is known already is looked at when the watch is due.
        if let Some(watch) = self.watch.as_ref()
            && !has_mount_changes
        {
            sources.push((Ready::Mounts, PollFd::new(watch.table(), PollFlags::PRI)));
        }
        for starting in &self.starting {
            sources.push((
                Ready::Outcome(starting.id),
                PollFd::new(&starting.failure, PollFlags::IN),
            ));
            let leader = starting
                .leader()
                .map(|leader| PollFd::new(leader, PollFlags::IN));
            sources.extend(leader.map(|leader| (Ready::LeaderOfStarting(starting.id), leader)));
        }
        for (pid, running) in &self.running {
            let leader = running
                .leader
                .as_ref()
                .map(|leader| PollFd::new(leader, PollFlags::IN));
            sources.extend(leader.map(|leader| (Ready::Leader(*pid), leader)));
        }
        let (names, mut polled): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
        let deadline = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let look = self
            .watch
            .as_ref()
            .map(|watch| watch.due_in(has_mount_changes));
        // Deadlines are at most a year away, which fits every clock.
        let left = deadline
            .into_iter()
            .chain(look)
            .min()
            .and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_ready = polled.iter().map(|source| !source.revents().is_empty());
        Ok(names
            .into_iter()
            .zip(is_ready)
            .filter(|(_, is_ready)| *is_ready)
            .map(|(name, _)| name)
            .collect())
    }

    /// Looks for paths that are no longer protected, and reports them; returns true if the sandbox
    /// must end because of one.
    fn look_for_losses(&mut self) -> io::Result<bool> {
        let Some(watch) = &mut self.watch else {
            return Ok(false);
        };
        let loss = watch.look()?;
        let is_end = loss.is_end;
        if !loss.paths.is_empty() {
            self.reply(&Reply::Lost(loss))?;
        }
        Ok(is_end)
    }

    /// Confines this process; returns false if it cannot be confined.
    fn confine(&mut self, mut confinement: Confinement) -> io::Result<bool> {
        let table = Watch::open_table()?;
        let network = || receive_network(self.socket);
        match confinement.apply_to_init(self.files.take(), network) {
            Ok(AppliedToInit {
                enforced,
                filter,
                waiting_calls,
            }) => {
                self.watch = Watch::new(table, confinement.kept(&enforced));
                self.confined = Some((confinement, filter));
                let listener: Vec<_> = waiting_calls.iter().map(AsFd::as_fd).collect();
                let reply = Reply::Confined(Box::new(enforced));
                packets::send(self.socket.as_fd(), &reply, &listener)?;
                Ok(true)
            }
            Err(error) => {
                self.reply(&Reply::Failed(with_causes(&error)))?;
                Ok(false)
            }
        }
    }

    /// Serves one request; returns false at the end of the socket.
    fn serve_one(&mut self) -> io::Result<bool> {
        let Some((request, descriptors)) = packets::receive(self.socket.as_fd())? else {
            return Ok(false);
        };
        match request {
            Request::Confine(confinement) => return self.confine(*confinement),
            // A network is only of use while a confinement waits for it.
            Request::Enter { .. } => {}
            Request::Start { id, command } => {
                match child::start(
                    self.confined.as_ref(),
                    self.descriptors,
                    id,
                    &command,
                    &descriptors,
                ) {
                    Ok(starting) => self.starting.push(starting),
                    Err(why) => self.reply(&Reply::NotStarted { id, why })?,
                }
            }
            Request::OpenTerminal { id } => match self.open_terminal() {
                Ok(master) => packets::send(
                    self.socket.as_fd(),
                    &Reply::Terminal { id },
                    &[master.as_fd()],
                )?,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    self.reply(&Reply::NoTerminal { id, errno })?;
                }
            },
            Request::EndAfter(time) => self.deadline = Instant::now().checked_add(time),
            Request::Signal { id, signal } => self.order(id, &Order::Signal(signal), signal),
            Request::Continue { id, is_foreground } => {
                self.order(id, &Order::Continue { is_foreground }, libc::SIGCONT);
            }
            Request::StopAll { id } => {
                self.suspended.stop_all();
                self.reply(&Reply::AllStopped { id })?;
            }
            Request::ContinueAll => {
                // What was replaced while everything was stopped must not become readable now.
                if self.look_for_losses()? {
                    return Ok(false);
                }
                self.suspended.continue_all();
            }
        }
        Ok(true)
    }

    /// Opens a terminal that belongs to the user of the commands, because they may open it by name,
    /// as tmux does.
    fn open_terminal(&self) -> io::Result<OwnedFd> {
        let owner = self
            .confined
            .as_ref()
            .map(|(confinement, _)| confinement.user());
        pty::open_master(owner)
    }

    /// Gives an order to the leader of a running command. Without a leader, the command's process
    /// group gets `signal`. A command that has ended meanwhile needs neither.
    fn order(&mut self, id: u32, order: &Order, signal: i32) {
        let Some((pid, running)) = self
            .running
            .iter_mut()
            .find(|(_, running)| running.id == id)
        else {
            return;
        };
        running.stops = 0;
        let ordered = running
            .leader
            .as_ref()
            .map(|leader| packets::send(leader.as_fd(), order, &[]));
        if let (false, Some(signal)) = (
            matches!(ordered, Some(Ok(()))),
            Signal::from_named_raw(signal),
        ) {
            let _ = rustix::process::kill_process_group(*pid, signal);
        }
    }

    /// Collects the outcome of a starting child: the failure that it wrote, or success if exec
    /// closed the pipe empty.
    fn collect_started(&mut self, id: u32) -> io::Result<()> {
        let Some(index) = self.starting.iter().position(|starting| starting.id == id) else {
            return Ok(());
        };
        match self.starting.remove(index).outcome()? {
            Ok(Started { pid, pidfd, leader }) => {
                self.running.insert(
                    pid,
                    Running {
                        id,
                        stops: 0,
                        leader,
                    },
                );
                let pid = pid.as_raw_nonzero().get();
                packets::send(
                    self.socket.as_fd(),
                    &Reply::Started { id, pid },
                    &[pidfd.as_fd()],
                )
            }
            Err(why) => self.reply(&Reply::NotStarted { id, why }),
        }
    }

    /// Handles a notice from the leader of a starting command.
    fn hear_starting(&mut self, id: u32) -> io::Result<()> {
        self.starting
            .iter_mut()
            .find(|starting| starting.id == id)
            .map_or(Ok(()), Starting::hear)
    }

    /// Handles a notice from the leader of a running command.
    fn hear(&mut self, pid: Pid) -> io::Result<()> {
        let Some(running) = self.running.get_mut(&pid) else {
            return Ok(());
        };
        let Some(leader) = &running.leader else {
            return Ok(());
        };
        match packets::receive(leader.as_fd())? {
            Some((Notice::Stopped { signal }, _)) => self.report_stop(pid, signal),
            Some((Notice::Ended(status), _)) => self.report_end(pid, status),
            Some((Notice::Forked { .. }, _)) => Ok(()),
            None => {
                // The leader was killed, so the command is init's child now.
                running.leader = None;
                Ok(())
            }
        }
    }

    /// Handles every child that changed state, and reaps those that ended, including orphans.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, status) =
                match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                    Ok(Some(changed)) => changed,
                    Ok(None) | Err(Errno::CHILD) => return Ok(()),
                    Err(Errno::INTR) => continue,
                    Err(errno) => return Err(errno.into()),
                };
            // The child may have executed its command since the last poll.
            if let Some(starting) = self.starting.iter().find(|starting| starting.child == pid) {
                if ended_status(status).is_some() || starting.is_decided()? {
                    self.collect_started(starting.id)?;
                } else {
                    // The terminal or the workload stopped it before exec. Only the command itself
                    // may stay stopped.
                    let _ = rustix::process::kill_process(pid, Signal::CONT);
                }
            }
            match (status.stopping_signal(), ended_status(status)) {
                (Some(signal), _) => self.report_stop(pid, signal)?,
                (None, Some(status)) => self.report_end(pid, status)?,
                (None, None) => {}
            }
        }
    }

    /// Reports that a process was stopped, if it is a command.
    fn report_stop(&mut self, pid: Pid, signal: i32) -> io::Result<()> {
        let Some(running) = self.running.get_mut(&pid) else {
            return Ok(());
        };
        running.stops += 1;
        let id = running.id;
        if running.stops > MAX_STOP_REPORTS {
            return Ok(());
        }
        self.reply(&Reply::Stopped { id, signal })
    }

    /// Reports that a process ended, if it is a command.
    fn report_end(&mut self, pid: Pid, status: Status) -> io::Result<()> {
        let Some(Running { id, .. }) = self.running.remove(&pid) else {
            return Ok(());
        };
        // Losses since the last look must be reported even if the command ended first.
        self.is_lost |= self.look_for_losses()?;
        if self.is_lost {
            return Ok(());
        }
        self.reply(&Reply::Exited { id, status })
    }

    fn reply(&self, reply: &Reply) -> io::Result<()> {
        packets::send(self.socket.as_fd(), reply, &[])
    }
}

/// Kills children until none is left. The children of a killed child become children of init, their
/// subreaper.
fn end_children() {
    let own = rustix::process::getpid();
    loop {
        let Ok(children) = children_of(own) else {
            std::thread::sleep(suspend::PAUSE);
            continue;
        };
        for pid in children {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Waits for the network of the confinement that is being applied.
fn receive_network(socket: &OwnedFd) -> io::Result<Network> {
    match packets::receive(socket.as_fd())? {
        Some((
            Request::Enter {
                is_own,
                firewall_probe,
            },
            descriptors,
        )) => {
            let mut descriptors = descriptors.into_iter();
            let namespace = if is_own { descriptors.next() } else { None };
            // A descriptor is lost on the way if init has too many open.
            if namespace.is_some() != is_own {
                return Err(io::Error::other(
                    "the descriptor of its namespace did not arrive, because init has too many \
                     open files",
                ));
            }
            Ok(Network {
                namespace,
                firewall_probe,
                outputs: descriptors.collect(),
            })
        }
        Some(_) => Err(io::ErrorKind::InvalidData.into()),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn children_of(parent: Pid) -> io::Result<Vec<Pid>> {
    let own = parent.as_raw_nonzero().get();
    let children = suspend::processes()?
        .into_iter()
        .filter(|(_, parent, _)| *parent == own);
    Ok(children
        .filter_map(|(pid, ..)| Pid::from_raw(pid))
        .collect())
}

/// Formats an error and its causes on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
