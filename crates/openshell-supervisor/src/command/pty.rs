//! Opens pseudo-terminals for commands (pty(7)).
//!
//! Init opens the master in the sandbox's own devpts instance and sends it to the supervisor. A
//! command therefore finds its terminal by name in /dev/pts, and the host has no terminal of a
//! sandbox.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::process::Uid;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// The path of the multiplexer in the sandbox's instance. A /dev/ptmx beside it may be missing or
/// belong to another instance.
const MULTIPLEXER: &str = "/dev/pts/ptmx";

/// A pseudo-terminal, whose master is for the supervisor and whose slave is for the command.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    slave: OwnedFd,
}

/// The size of a terminal in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The number of characters in a row.
    pub columns: u16,
    /// The number of rows.
    pub rows: u16,
}

impl Size {
    /// The size of a terminal that nobody looks at yet.
    pub const DEFAULT: Self = Self {
        columns: 80,
        rows: 24,
    };
}

/// Opens a master whose slave belongs to `owner`. Only init may call this.
pub(crate) fn open_master(owner: Option<Uid>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let master = rustix::fs::open(MULTIPLEXER, flags, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    if owner.is_some() {
        rustix::fs::fchown(slave(&master, OpenptFlags::RDWR)?, owner, None)?;
    }
    Ok(master)
}

/// Opens the slave of `master` (ioctl_tty(2), TIOCGPTPEER). This needs no path, and so no part of
/// the sandbox's file system.
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
    /// Fails if `master` is not a master, or descriptors are exhausted.
    pub(crate) fn of_master(master: OwnedFd, size: Size) -> io::Result<Self> {
        let slave = slave(&master, OpenptFlags::RDWR)?;
        resize(master.as_fd(), size)?;
        Ok(Self { master, slave })
    }

    /// Opens the slave for writing only, for a terminal at which nobody types.
    ///
    /// # Errors
    /// Fails if descriptors are exhausted.
    pub(crate) fn output(&self) -> io::Result<OwnedFd> {
        // The kernel accepts the access mode of open(2).
        slave(
            &self.master,
            OpenptFlags::from_bits_retain(libc::O_WRONLY.cast_unsigned()),
        )
    }

    /// Returns the slave as the command's three standard streams.
    #[must_use]
    pub fn streams(&self) -> [BorrowedFd<'_>; 3] {
        [self.slave.as_fd(); 3]
    }

    /// Returns a duplicate of the master, which does not block.
    ///
    /// # Errors
    /// Fails if descriptors are exhausted.
    pub fn master(&self) -> io::Result<OwnedFd> {
        self.master.try_clone()
    }

    /// Returns the master, which does not block, and the slave.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, OwnedFd) {
        (self.master, self.slave)
    }
}

/// Changes the size of the terminal of `master`. Its foreground process group gets SIGWINCH.
///
/// # Errors
/// Fails if `master` is not a master.
pub fn resize(master: BorrowedFd<'_>, size: Size) -> io::Result<()> {
    let size = Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}
