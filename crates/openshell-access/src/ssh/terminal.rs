//! Terminals of sessions: how clients request them, their modes, and both of their ends.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;

use openshell_supervisor::command::pty::Size;
use russh::Pty;
use rustix::pty::ptsname;
use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex,
    tcgetattr, tcsetattr,
};

/// Type of a terminal if the client names none, or an unusable one.
const DEFAULT_TYPE: &str = "xterm-256color";

/// Longest name of a terminal type, in bytes.
const TYPE_BYTES: usize = 64;

/// A terminal that a client asks for.
#[derive(Debug)]
pub(crate) struct TerminalRequest {
    pub(crate) kind: String,
    pub(crate) size: Size,
    pub(crate) modes: Vec<(Pty, u32)>,
}

impl TerminalRequest {
    pub(crate) fn new(kind: &str, size: Size, modes: &[(Pty, u32)]) -> Self {
        let is_plain = kind.len() <= TYPE_BYTES && kind.bytes().all(|byte| byte.is_ascii_graphic());
        let kind = if kind.is_empty() || !is_plain {
            DEFAULT_TYPE
        } else {
            kind
        };
        Self {
            kind: kind.to_owned(),
            size,
            modes: modes.to_vec(),
        }
    }
}

/// Returns the size that a client asks for. A 0 becomes the default, and numbers above what a
/// terminal can have are cut.
pub(crate) fn size(columns: u32, rows: u32) -> Size {
    let cut = |number: u32, default| match u16::try_from(number) {
        Ok(0) => default,
        Ok(number) => number,
        Err(_) => u16::MAX,
    };
    Size {
        columns: cut(columns, Size::DEFAULT.columns),
        rows: cut(rows, Size::DEFAULT.rows),
    }
}

/// Returns the path inside the sandbox of the slave of `master`.
pub(crate) fn path(master: BorrowedFd<'_>) -> Option<OsString> {
    ptsname(master, Vec::new())
        .ok()
        .map(|path| OsString::from_vec(path.into_bytes()))
}

/// Applies the modes that a client asks for (RFC 4254 §8); ignores those that the kernel lacks.
pub(crate) fn apply(slave: BorrowedFd<'_>, modes: &[(Pty, u32)]) -> io::Result<()> {
    let mut terminal = tcgetattr(slave)?;
    for &(mode, value) in modes {
        if let Some(index) = code(mode) {
            // The value 255 disables a character.
            terminal.special_codes[index] = u8::try_from(value)
                .ok()
                .filter(|value| *value != 255)
                .unwrap_or(0);
        } else if let Some(flag) = input(mode) {
            terminal.input_modes.set(flag, value != 0);
        } else if let Some(flag) = local(mode) {
            terminal.local_modes.set(flag, value != 0);
        } else if let Some(flag) = output(mode) {
            terminal.output_modes.set(flag, value != 0);
        } else if let Some(flag) = control(mode)
            && value != 0
        {
            terminal.control_modes.remove(ControlModes::CSIZE);
            terminal.control_modes.insert(flag);
        }
    }
    Ok(tcsetattr(slave, OptionalActions::Now, &terminal)?)
}

fn code(mode: Pty) -> Option<SpecialCodeIndex> {
    use SpecialCodeIndex as Index;
    Some(match mode {
        Pty::VINTR => Index::VINTR,
        Pty::VQUIT => Index::VQUIT,
        Pty::VERASE => Index::VERASE,
        Pty::VKILL => Index::VKILL,
        Pty::VEOF => Index::VEOF,
        Pty::VEOL => Index::VEOL,
        Pty::VEOL2 => Index::VEOL2,
        Pty::VSTART => Index::VSTART,
        Pty::VSTOP => Index::VSTOP,
        Pty::VSUSP => Index::VSUSP,
        Pty::VREPRINT => Index::VREPRINT,
        Pty::VWERASE => Index::VWERASE,
        Pty::VLNEXT => Index::VLNEXT,
        Pty::VDISCARD => Index::VDISCARD,
        _ => return None,
    })
}

fn input(mode: Pty) -> Option<InputModes> {
    Some(match mode {
        Pty::IGNPAR => InputModes::IGNPAR,
        Pty::PARMRK => InputModes::PARMRK,
        Pty::INPCK => InputModes::INPCK,
        Pty::ISTRIP => InputModes::ISTRIP,
        Pty::INLCR => InputModes::INLCR,
        Pty::IGNCR => InputModes::IGNCR,
        Pty::ICRNL => InputModes::ICRNL,
        Pty::IUCLC => InputModes::IUCLC,
        Pty::IXON => InputModes::IXON,
        Pty::IXANY => InputModes::IXANY,
        Pty::IXOFF => InputModes::IXOFF,
        Pty::IMAXBEL => InputModes::IMAXBEL,
        Pty::IUTF8 => InputModes::IUTF8,
        _ => return None,
    })
}

fn local(mode: Pty) -> Option<LocalModes> {
    Some(match mode {
        Pty::ISIG => LocalModes::ISIG,
        Pty::ICANON => LocalModes::ICANON,
        Pty::XCASE => LocalModes::XCASE,
        Pty::ECHO => LocalModes::ECHO,
        Pty::ECHOE => LocalModes::ECHOE,
        Pty::ECHOK => LocalModes::ECHOK,
        Pty::ECHONL => LocalModes::ECHONL,
        Pty::NOFLSH => LocalModes::NOFLSH,
        Pty::TOSTOP => LocalModes::TOSTOP,
        Pty::IEXTEN => LocalModes::IEXTEN,
        Pty::ECHOCTL => LocalModes::ECHOCTL,
        Pty::ECHOKE => LocalModes::ECHOKE,
        Pty::PENDIN => LocalModes::PENDIN,
        _ => return None,
    })
}

fn output(mode: Pty) -> Option<OutputModes> {
    Some(match mode {
        Pty::OPOST => OutputModes::OPOST,
        Pty::OLCUC => OutputModes::OLCUC,
        Pty::ONLCR => OutputModes::ONLCR,
        Pty::OCRNL => OutputModes::OCRNL,
        Pty::ONOCR => OutputModes::ONOCR,
        Pty::ONLRET => OutputModes::ONLRET,
        _ => return None,
    })
}

fn control(mode: Pty) -> Option<ControlModes> {
    match mode {
        Pty::CS7 => Some(ControlModes::CS7),
        Pty::CS8 => Some(ControlModes::CS8),
        _ => None,
    }
}

/// Returns the character that ends input on the terminal of `master`, if it has one and reads whole
/// lines.
pub(crate) fn end_of_input(master: impl AsFd) -> Option<u8> {
    let terminal = tcgetattr(master).ok()?;
    let end = terminal.special_codes[SpecialCodeIndex::VEOF];
    (terminal.local_modes.contains(LocalModes::ICANON) && end != 0).then_some(end)
}
