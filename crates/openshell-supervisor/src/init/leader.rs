//! The leader of a terminal's session: a process between init and one command, which allows the
//! terminal to stop the command.
//!
//! A terminal does not stop an orphaned process group (POSIX.1-2024, XBD 3.241). The group of a
//! command would be orphaned if its parent were init, which is in another session. So the leader is
//! the command's parent, and the terminal is its controlling one. The leader tells init what
//! happens to the command, and moves the terminal's foreground to it and back. If the leader is
//! killed, the command becomes a child of init.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use super::children::{drain, ended_status};
use super::ipc::Status;
use crate::command::packets;
use crate::sys;

/// A message from a leader to init.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Notice {
    /// The command's process, which has not executed the command yet; carries its pidfd.
    Forked { pid: i32 },
    /// The command was stopped by this signal.
    Stopped { signal: i32 },
    /// The command ended, and the leader with it.
    Ended(Status),
}

/// An order from init to a leader.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Continue the command's process group, in the foreground of its terminal or in its
    /// background.
    Continue { is_foreground: bool },
    /// Send this signal to the command's process group, after earlier orders.
    Signal(i32),
}

/// Makes the socket pair between init and a leader. Returns init's end, which does not block, and
/// the leader's end.
pub(super) fn sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::io::ioctl_fionbio(&pair.0, true)?;
    Ok(pair)
}

/// Leads the calling process's session with `terminal`, until `command` or init has ended.
pub(super) fn run(socket: OwnedFd, terminal: &OwnedFd, command: Pid, pidfd: &OwnedFd) -> ! {
    let leader = Leader {
        socket,
        terminal,
        command,
    };
    // A failure means that init is gone, and with it everything else.
    let _ = leader
        .announce(pidfd)
        .and_then(|()| sys::close_all_but(&[&leader.socket, terminal]))
        .and_then(|()| leader.serve());
    sys::exit_now(0)
}

struct Leader<'t> {
    /// The socket to init.
    socket: OwnedFd,
    /// The session's terminal.
    terminal: &'t OwnedFd,
    /// The command, which leads a process group.
    command: Pid,
}

impl Leader<'_> {
    /// Reports the command's process to init.
    fn announce(&self, pidfd: &OwnedFd) -> io::Result<()> {
        let pid = self.command.as_raw_nonzero().get();
        packets::send(
            self.socket.as_fd(),
            &Notice::Forked { pid },
            &[pidfd.as_fd()],
        )
    }

    /// Serves until the command or init has ended.
    ///
    /// # Errors
    /// Fails if init is gone, or if no more descriptors are available.
    fn serve(&self) -> io::Result<()> {
        let children = sys::child_signals()?;
        // The group that had the foreground before the command was moved to the background.
        let mut previous = self.command;
        loop {
            let mut ready = [
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&children, PollFlags::IN),
            ];
            match rustix::event::poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [is_ordered, is_changed] = ready.map(|source| !source.revents().is_empty());
            if is_changed {
                drain(&children)?;
                if self.report()? {
                    return Ok(());
                }
            }
            if is_ordered {
                match packets::receive(self.socket.as_fd())? {
                    Some((Order::Continue { is_foreground }, _)) => {
                        self.continue_command(is_foreground, &mut previous);
                    }
                    Some((Order::Signal(number), _)) => self.signal(number),
                    None => return Ok(()),
                }
            }
        }
    }

    /// Tells init about the command's changes of state; returns true once it has ended.
    fn report(&self) -> io::Result<bool> {
        loop {
            let status = match rustix::process::waitpid(
                Some(self.command),
                WaitOptions::NOHANG | WaitOptions::UNTRACED,
            ) {
                Ok(Some((_, status))) => status,
                Ok(None) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let notice = match (status.stopping_signal(), ended_status(status)) {
                (Some(signal), _) => Notice::Stopped { signal },
                (None, Some(status)) => Notice::Ended(status),
                (None, None) => continue,
            };
            packets::send(self.socket.as_fd(), &notice, &[])?;
            if matches!(notice, Notice::Ended(_)) {
                return Ok(true);
            }
        }
    }

    /// Changes the foreground, and continues the command. A previous group that has ended cannot
    /// get the foreground, so the command's own group gets it.
    fn continue_command(&self, is_foreground: bool, previous: &mut Pid) {
        let own = rustix::process::getpgrp();
        let current = rustix::termios::tcgetpgrp(self.terminal).ok();
        if is_foreground && current == Some(own) {
            if rustix::termios::tcsetpgrp(self.terminal, *previous).is_err() {
                let _ = rustix::termios::tcsetpgrp(self.terminal, self.command);
            }
        } else if !is_foreground && current != Some(own) {
            *previous = current.unwrap_or(self.command);
            let _ = rustix::termios::tcsetpgrp(self.terminal, own);
        }
        self.signal(Signal::CONT.as_raw());
    }

    fn signal(&self, number: i32) {
        if let Some(signal) = Signal::from_named_raw(number) {
            let _ = rustix::process::kill_process_group(self.command, signal);
        }
    }
}
