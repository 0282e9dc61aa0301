//! The caller's terminal: how a command uses it, and the job control of the caller's shell.
//!
//! A command never gets the caller's terminal itself, because it could then read what is typed
//! there for other programs. Instead it gets a terminal of the sandbox, and a relay copies between
//! the two. The relay always copies what the command writes. It copies what is typed only while
//! this process is in the foreground and the command has a use for it.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use openshell_supervisor::command::job::{self, Job};
use openshell_supervisor::command::signals;
use openshell_supervisor::command::streams::TerminalRelay;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use rustix::termios::isatty;

/// How much of what is typed on the caller's terminal the command gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyboard {
    /// Nothing.
    None,
    /// Everything, from the first time that the command reads its terminal or changes its modes.
    OnDemand,
    /// Everything, from the start.
    FromStart,
}

impl Keyboard {
    /// Returns what the command gets: nothing unless standard input is this process's controlling
    /// terminal. In the foreground it gets everything from the start if it `is_wanted`, or if
    /// standard output is a terminal and no other process of the job may use that; otherwise on
    /// demand.
    #[must_use]
    pub fn of_caller(is_wanted: bool) -> Self {
        let input = io::stdin();
        if !isatty(&input) || !job::is_controlling(input.as_fd()) {
            return Self::None;
        }
        let is_first = is_wanted || isatty(io::stdout()) && !has_companions();
        if is_first && job::is_in_foreground(input.as_fd()) {
            Self::FromStart
        } else {
            Self::OnDemand
        }
    }
}

/// Returns true if other processes of the job may use the terminal too: the parent, such as a
/// script or `make`, or a program that reads standard error.
fn has_companions() -> bool {
    let is_parents = match (rustix::process::getppid(), Job::own()) {
        (Some(parent), Ok(own)) => Job::of(parent).is_ok_and(|job| job == own),
        _ => false,
    };
    is_parents
        || !isatty(io::stderr())
            && rustix::fs::fstat(io::stderr()).is_ok_and(|data| is_pipe(data.st_mode))
}

fn is_pipe(mode: u32) -> bool {
    rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::Fifo
}

/// How this process keeps its own lines off the terminal while the command draws on it.
#[derive(Clone, Copy, Debug)]
pub struct Lines {
    /// Holds lines back.
    pub hold: fn(),
    /// Shows the lines that were held back.
    pub release: fn(),
}

/// The caller's terminal, as the relay of a command uses it. Dropping it gives the terminal back in
/// its old state.
#[derive(Debug)]
pub struct Console {
    relay: Arc<TerminalRelay>,
    lines: Lines,
    /// True once the command has a use for the keyboard.
    is_wanted: bool,
    /// True while lines of this process are held back.
    is_attached: bool,
}

impl Console {
    /// Takes the caller's terminal for `relay`. The terminal on the other side gets its modes and
    /// size.
    ///
    /// # Errors
    /// Fails in no known case.
    pub fn new(relay: Arc<TerminalRelay>, keyboard: Keyboard, lines: Lines) -> io::Result<Self> {
        signals::ignore_terminal_stops()?;
        relay.imitate(io::stdin().as_fd());
        Ok(Self {
            relay,
            lines,
            is_wanted: keyboard == Keyboard::FromStart,
            is_attached: false,
        })
    }

    /// Notes that the command was stopped because it wants to use the terminal.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Gives the command the keyboard, if it has a use for that and this process is in the
    /// foreground; returns true if it has the keyboard.
    ///
    /// # Errors
    /// Fails if the terminal is gone, or if threads or descriptors are exhausted.
    pub fn attach(&mut self) -> io::Result<bool> {
        let input = io::stdin();
        if !self.is_wanted || !job::is_in_foreground(input.as_fd()) {
            return Ok(false);
        }
        if !self.is_attached {
            (self.lines.hold)();
            self.is_attached = true;
        }
        self.relay.resize();
        self.relay.attach(input.as_fd())?;
        Ok(true)
    }

    /// Returns true while the command gets what is typed.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Gives the terminal back.
    pub fn detach(&mut self) {
        self.relay.detach(io::stdin().as_fd());
        if std::mem::take(&mut self.is_attached) {
            (self.lines.release)();
        }
    }

    /// Hangs up the command's terminal if the caller's is hung up; returns true if it is.
    #[must_use]
    pub fn hang_up(&self) -> bool {
        let input = io::stdin();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut state = [PollFd::new(&input, PollFlags::empty())];
        let is_polled = rustix::event::poll(&mut state, Some(&now)).is_ok();
        let is_hung_up = is_polled
            && state
                .iter()
                .any(|input| input.revents().contains(PollFlags::HUP));
        if is_hung_up {
            self.relay.hang_up();
        }
        is_hung_up
    }

    /// Gives the command's terminal the size of the caller's.
    pub fn resize(&self) {
        self.relay.resize();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.detach();
    }
}

/// Returns true if `signal` stopped a command because it used the terminal from the background.
#[must_use]
pub fn is_for_use(signal: i32) -> bool {
    [Signal::TTIN, Signal::TTOU]
        .iter()
        .any(|wanted| wanted.as_raw() == signal)
}

/// Returns true if this process is in the foreground of its terminal.
#[must_use]
pub fn is_in_foreground() -> bool {
    job::is_in_foreground(io::stdin().as_fd())
}

/// Stops this process and the rest of its job, as a terminal would, so that the caller's shell
/// takes over. Returns when the shell continues it.
///
/// # Errors
/// Fails in no known case.
pub fn stop_job() -> io::Result<()> {
    Ok(rustix::process::kill_current_process_group(Signal::STOP)?)
}

/// Returns true if a shell could continue this process: its process group is not orphaned
/// (POSIX.1-2024, XBD 3.241). A terminal never stops an orphaned group, and so such a group must
/// not stop itself. The shell is the first ancestor in another group, because a shell without job
/// control keeps its commands in its own. A group from outside this PID namespace is not known to
/// have a shell.
#[must_use]
pub fn has_shell() -> bool {
    let Ok(Job {
        group: Some(group),
        session,
    }) = Job::own()
    else {
        return false;
    };
    let ancestors = std::iter::successors(rustix::process::getppid(), |pid| parent_of(*pid));
    let mut others = ancestors.map_while(|pid| Job::of(pid).ok());
    others
        .find(|other| other.group != Some(group))
        .is_some_and(|other| other.session == session)
}

fn parent_of(pid: Pid) -> Option<Pid> {
    // In proc_pid_stat(5), the name is in parentheses and may hold any bytes.
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let fields = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    Pid::from_raw(fields.split_ascii_whitespace().nth(1)?.parse().ok()?)
}
