//! `openshell-sandbox exec`: a further command in a running sandbox.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use openshell_ssh::packet_socket::PacketSocket;
use openshell_supervisor::command::pty::Size;
use openshell_supervisor::command::signals::ignore_terminal_stops;
use rustix::process::Signal;
use rustix::termios::isatty;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::subcommands::ExecArgs;
use crate::config;
use crate::control::client::Places;
use crate::control::wire::{Exec, Reply, Request, TerminalKeyboard, TerminalSpec};
use crate::terminal::{Keyboard, stop_job};
use attached::AttachedTerminal;
use openshell_events::text::indented;
use openshell_telemetry::logging::print_stderr;

mod attached;

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

/// Runs a command in `sandbox`; returns its exit code.
///
/// # Errors
/// There is no such sandbox, or it goes away.
pub(crate) fn exec(sandbox: &OsStr, args: ExecArgs) -> anyhow::Result<ExitCode> {
    let variables = args
        .variables
        .iter()
        .map(|text| variable(text))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let socket =
        Places::new(args.run_dir.as_deref())?.connect(sandbox.to_str().unwrap_or_default())?;
    let terminal = terminal(args.terminal);
    let exec = Exec {
        arguments: args.words,
        variables,
        directory: args.workdir,
        terminal,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(run_with(socket, exec, None));
    // A thread may still wait for input.
    runtime.shutdown_background();
    ended.map(ExitCode::from)
}

/// Parses `NAME=VALUE`, or the NAME of a variable of this process.
fn variable(text: &str) -> anyhow::Result<(String, OsString)> {
    if let Some((name, value)) = text.split_once('=') {
        return Ok((name.to_owned(), value.into()));
    }
    let value = config::variable_of_client(text);
    Ok((
        text.to_owned(),
        value.with_context(|| {
            format!("-e {text}: there is no such variable; set one by NAME=VALUE")
        })?,
    ))
}

/// Describes the terminal of the command: for the streams that are one here, or for all if it
/// `is_wanted`.
fn terminal(is_wanted: bool) -> Option<TerminalSpec> {
    let streams = [
        isatty(io::stdin()),
        isatty(io::stdout()),
        isatty(io::stderr()),
    ];
    if !is_wanted && streams == [false; 3] {
        return None;
    }
    let keyboard = match Keyboard::of_caller(is_wanted) {
        // What is not typed waits for nobody.
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
    let kind = config::variable_of_client("TERM").filter(|kind| !kind.is_empty());
    let mut streams = if is_wanted { [true; 3] } else { streams };
    streams[0] &= keyboard != TerminalKeyboard::None;
    Some(TerminalSpec {
        kind,
        columns: size.columns,
        rows: size.rows,
        streams,
        keyboard,
    })
}

/// Runs a command by the control socket `socket`, with `streams` or this process's own, until its
/// end; returns its exit code.
///
/// # Errors
/// The sandbox goes away.
pub(crate) async fn run_with(
    socket: OwnedFd,
    exec: Exec,
    streams: Option<[OwnedFd; 3]>,
) -> anyhow::Result<u8> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    let connection = PacketSocket::new(socket)?;
    // Nothing that arrives from here on is lost.
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
    // A terminal that may not be read stays here.
    let passed: Vec<_> = passed
        .map(|(fd, _)| if isatty(fd) { null.as_fd() } else { fd })
        .collect();
    connection.send(&Request::Exec(exec), &passed).await?;
    // Held on here, they would never end for their other ends.
    drop(streams);
    let mut master = None;
    loop {
        match connection.receive::<Reply>().await? {
            Some((Reply::Terminal, descriptors)) => master = descriptors.into_iter().next(),
            Some((Reply::Started, _)) => break,
            Some((Reply::Refused { code, reason }, _)) => {
                print_stderr(&indented(&format!("openshell-sandbox: {reason}")));
                return Ok(code);
            }
            Some((reply, _)) => bail!("unexpected answer of the sandbox: {reply:?}"),
            None => bail!("the sandbox does not let this process in, or has ended"),
        }
    }
    let mut terminal = match (keyboard, master) {
        (None, _) => None,
        (Some(keyboard), Some(master)) => Some(AttachedTerminal::start(master, keyboard)?),
        (Some(_), None) => bail!("the terminal did not arrive: no descriptor is free"),
    };
    let ended = wait(&connection, &mut signals, terminal.as_mut()).await;
    if let Some(terminal) = terminal {
        terminal.finish();
    }
    ended
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
                // The command's terminal stops it, and its stop this process.
                (Signal::TSTP, Some(terminal)) if terminal.has_job_control() => {
                    connection.send(&Request::Signal(Signal::TSTP.as_raw()), &[]).await?;
                }
                (Signal::TSTP, _) => {
                    // Its process group has no shell that would continue it: only STOP stops it.
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
