//! Pseudo-terminals of commands (pty(7)).
//!
//! Init opens the master in the sandbox's own devpts instance and sends it to the supervisor, so
//! that a command finds its terminal by name in /dev/pts, and the host has none of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Uid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// Path of the multiplexer in the sandbox's instance; a /dev/ptmx beside it may be missing or
/// another instance's.
const MULTIPLEXER: &str = "/dev/pts/ptmx";

/// A pseudo-terminal: the master for the supervisor, the slave for the command.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
}

/// Size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Characters in a row.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

impl Size {
    /// Size of a terminal before anyone looks at it.
    pub const DEFAULT: Self = Self {
        columns: 80,
        rows: 24,
    };
}

/// Opens a master whose slave is `owner`'s. To be called by init.
pub(crate) fn open_master(owner: Option<Uid>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let master = rustix::fs::open(MULTIPLEXER, flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    if owner.is_some() {
        rustix::fs::fchown(slave(&master, OpenptFlags::RDWR)?, owner, None)?;
    }
    Ok(master)
}

/// Opens the slave of `master`, which needs no path and so no part of the sandbox's file system
/// (ioctl_tty(2), TIOCGPTPEER).
fn slave(master: &OwnedFd, access: OpenptFlags) -> io::Result<OwnedFd> {
    Ok(rustix::pty::ioctl_tiocgptpeer(
        master,
        access | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?)
}

impl Terminal {
    /// Returns the terminal of `master`.
    ///
    /// # Errors
    /// `master` is no master, or descriptors are exhausted.
    pub(crate) fn of_master(master: OwnedFd, size: Size) -> io::Result<Self> {
        let slave = slave(&master, OpenptFlags::RDWR)?;
        resize(master.as_fd(), size)?;
        Ok(Self { master, slave })
    }

    /// Opens the slave for writing only: nobody types on it.
    ///
    /// # Errors
    /// Descriptors are exhausted.
    pub(crate) fn output(&self) -> io::Result<OwnedFd> {
        // The kernel takes the access mode as open(2) does.
        slave(
            &self.master,
            OpenptFlags::from_bits_retain(libc::O_WRONLY.cast_unsigned()),
        )
    }

    /// The slave, as the command's three standard streams.
    #[must_use]
    pub fn streams(&self) -> [BorrowedFd<'_>; 3] {
        [self.slave.as_fd(); 3]
    }

    /// Returns a duplicate of the master, which does not block.
    ///
    /// # Errors
    /// Descriptors are exhausted.
    pub fn master(&self) -> io::Result<OwnedFd> {
        self.master.try_clone()
    }

    /// Returns the master, which does not block, and the slave.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, OwnedFd) {
        (self.master, self.slave)
    }
}

/// Changes the size of the terminal of `master`; its foreground process group gets SIGWINCH.
///
/// # Errors
/// `master` is no master.
pub fn resize(master: BorrowedFd<'_>, size: Size) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}
