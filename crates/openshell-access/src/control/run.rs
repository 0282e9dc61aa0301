//! The client that runs a further command in a running sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{anyhow, bail};
use openshell_supervisor::command::pty::Size;
use openshell_supervisor::command::signals::ignore_terminal_stops;
use rustix::process::Signal;
use rustix::termios::isatty;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::attached::AttachedTerminal;
use super::console::{Keyboard, Lines, stop_job};
use super::wire::{Exec, Reply, Request, TerminalKeyboard, TerminalSpec};
use crate::packet_socket::PacketSocket;

/// Signals that are passed on to the command.
const PASSED_ON: &[Signal] = &[
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
];

/// Describes the terminal for the command, of the type `kind`: for those streams that are terminals
/// here, or for all if it `is_wanted`.
#[must_use]
pub fn terminal(is_wanted: bool, kind: Option<OsString>) -> Option<TerminalSpec> {
    let streams = [
        isatty(io::stdin()),
        isatty(io::stdout()),
        isatty(io::stderr()),
    ];
    if !is_wanted && streams == [false; 3] {
        return None;
    }
    let keyboard = match Keyboard::of_caller(is_wanted) {
        // Input that is not typed can be passed on from the start.
        Keyboard::None if is_wanted && !streams[0] => TerminalKeyboard::Now,
        Keyboard::None => TerminalKeyboard::None,
        Keyboard::OnDemand => TerminalKeyboard::Later,
        Keyboard::FromStart => TerminalKeyboard::Now,
    };
    let size = rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let size = size.map_or(Size::DEFAULT, |size| Size {
        columns: size.ws_col,
        rows: size.ws_row,
    });
    let mut streams = if is_wanted { [true; 3] } else { streams };
    streams[0] &= keyboard != TerminalKeyboard::None;
    Some(TerminalSpec {
        kind: kind.filter(|kind| !kind.is_empty()),
        columns: size.columns,
        rows: size.rows,
        streams,
        keyboard,
    })
}

/// How a requested command ended.
#[derive(Debug)]
pub enum Outcome {
    /// It ended with this exit code.
    Ended(u8),
    /// It never ran.
    Refused {
        /// The exit code for the refusal.
        code: u8,
        /// The reason, for a person.
        reason: String,
    },
}

/// Runs a command through the control socket `socket`, with `streams` or those of this process,
/// until it ends. While the command has the terminal, `lines` keeps this process's own lines off
/// it.
///
/// # Errors
/// Fails if the sandbox goes away.
pub async fn run(
    socket: OwnedFd,
    exec: Exec,
    streams: Option<[OwnedFd; 3]>,
    lines: Lines,
) -> anyhow::Result<Outcome> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    let connection = PacketSocket::new(socket)?;
    // Signals that arrive from here on are not lost.
    let mut signals = receive_signals()?;
    let input = io::stdin();
    let output = io::stdout();
    let errors = io::stderr();
    let null = File::open("/dev/null")?;
    let keyboard = exec.terminal.as_ref().map(|terminal| terminal.keyboard);
    let on_terminal = exec
        .terminal
        .as_ref()
        .map_or([false; 3], |terminal| terminal.streams);
    let given = match &streams {
        Some(streams) => streams.each_ref().map(AsFd::as_fd),
        None => [input.as_fd(), output.as_fd(), errors.as_fd()],
    };
    let passed = given
        .into_iter()
        .zip(on_terminal)
        .filter(|(_, is_on_terminal)| !is_on_terminal);
    // A terminal that the command may not read is not passed on; /dev/null takes its place.
    let passed: Vec<_> = passed
        .map(|(fd, _)| if isatty(fd) { null.as_fd() } else { fd })
        .collect();
    connection.send(&Request::Exec(exec), &passed).await?;
    // If they stayed open here, their other ends would never see their end.
    drop(streams);
    let mut master = None;
    loop {
        match connection.receive::<Reply>().await? {
            Some((Reply::Terminal, descriptors)) => master = descriptors.into_iter().next(),
            Some((Reply::Started, _)) => break,
            Some((Reply::Refused { code, reason }, _)) => {
                return Ok(Outcome::Refused { code, reason });
            }
            Some((reply, _)) => bail!("unexpected answer of the sandbox: {reply:?}"),
            None => bail!("the sandbox does not let this process in, or has ended"),
        }
    }
    let mut terminal = match (keyboard, master) {
        (None, _) => None,
        (Some(keyboard), Some(master)) => Some(AttachedTerminal::start(master, keyboard, lines)?),
        (Some(_), None) => bail!(
            "the terminal did not arrive, because this process has too many open files; raise the \
             limit (ulimit -n)"
        ),
    };
    let ended = wait(&connection, &mut signals, terminal.as_mut()).await;
    if let Some(terminal) = terminal {
        terminal.finish();
    }
    ended.map(Outcome::Ended)
}

/// Passes signals on until the command has ended; returns its exit code.
async fn wait(
    connection: &PacketSocket,
    signals: &mut mpsc::Receiver<Signal>,
    mut terminal: Option<&mut AttachedTerminal>,
) -> anyhow::Result<u8> {
    loop {
        tokio::select! {
            reply = connection.receive::<Reply>() => match reply? {
                Some((Reply::Ended { code }, _)) => return Ok(code),
                Some((Reply::Stopped(signal), _)) => {
                    if let Some(terminal) = &mut terminal
                        && let Some(is_foreground) = terminal.stopped(signal)?
                    {
                        connection.send(&Request::Continue { is_foreground }, &[]).await?;
                    }
                }
                Some((reply, _)) => bail!("unexpected answer of the sandbox: {reply:?}"),
                None => return Err(anyhow!("the sandbox has ended, and the command with it")),
            },
            Some(signal) = signals.recv() => match (signal, &mut terminal) {
                (Signal::WINCH, Some(terminal)) => terminal.resize(),
                (Signal::WINCH, None) => {}
                (Signal::CONT, Some(terminal)) if terminal.has_job_control() => {
                    let is_foreground = terminal.attach()?;
                    connection.send(&Request::Continue { is_foreground }, &[]).await?;
                }
                // This stops the command, and the report of its stop then stops this process.
                (Signal::TSTP, Some(terminal)) if terminal.has_job_control() => {
                    connection.send(&Request::Signal(Signal::TSTP.as_raw()), &[]).await?;
                }
                (Signal::TSTP, _) => {
                    // TSTP has no effect on an orphaned process group, which no shell could
                    // continue; only STOP stops it.
                    connection.send(&Request::Signal(Signal::STOP.as_raw()), &[]).await?;
                    stop_job()?;
                }
                (signal, _) => connection.send(&Request::Signal(signal.as_raw()), &[]).await?,
            },
        }
    }
}

/// Receives the signals that a client handles, on one channel.
fn receive_signals() -> anyhow::Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(16);
    for &number in PASSED_ON.iter().chain(&[Signal::WINCH, Signal::TSTP]) {
        let sender = sender.clone();
        let mut stream = signal(SignalKind::from_raw(number.as_raw()))?;
        tokio::spawn(async move {
            while stream.recv().await.is_some() && sender.send(number).await.is_ok() {}
        });
    }
    ignore_terminal_stops()?;
    Ok(receiver)
}
