//! `openshell-sandbox exec`: a further command in a running sandbox.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use openshell_ssh::packet_socket::PacketSocket;
use openshell_supervisor::signals::ignore_terminal_output_stop;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::cli::subcommands::ExecArgs;
use crate::config;
use crate::control::client::Places;
use crate::control::wire::{Exec, Reply, Request, TerminalSpec};
use crate::logging::print_stderr;
use attached::AttachedTerminal;

mod attached;

/// Signals that are passed on to the command.
const PASSED_ON: &[Signal] =
    &[Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::CONT];

/// Runs a command in `sandbox`; returns its exit code.
///
/// # Errors
/// There is no such sandbox, or it goes away.
pub(crate) fn exec(sandbox: &OsStr, args: ExecArgs) -> anyhow::Result<ExitCode> {
    let variables = args.variables.iter().map(|text| variable(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let socket = Places::new(args.run_dir.as_deref())?.connect(sandbox.to_str().unwrap_or_default())?;
    let wants_terminal = args.terminal || (io::stdin().is_terminal() && io::stdout().is_terminal());
    let terminal = wants_terminal.then(|| {
        let size = attached::size();
        TerminalSpec { kind: terminal_type(), columns: size.columns, rows: size.rows }
    });
    let exec = Exec { arguments: args.words, variables, directory: args.workdir, terminal };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
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
        value.with_context(|| format!("-e {text}: there is no such variable; set one by NAME=VALUE"))?,
    ))
}

fn terminal_type() -> Option<OsString> {
    config::variable_of_client("TERM").filter(|kind| !kind.is_empty())
}

/// Runs a command by the control socket `socket`, with `streams` or this process's own, until its end; returns its exit code.
///
/// # Errors
/// The sandbox goes away.
pub(crate) async fn run_with(socket: OwnedFd, exec: Exec, streams: Option<[OwnedFd; 3]>) -> anyhow::Result<u8> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    let connection = PacketSocket::new(socket)?;
    // Nothing that arrives from here on is lost.
    let mut signals = receive_signals()?;
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    let has_terminal = exec.terminal.is_some();
    let given = match &streams {
        Some(streams) => streams.each_ref().map(AsFd::as_fd),
        None => [input.as_fd(), output.as_fd(), errors.as_fd()],
    };
    connection.send(&Request::Exec(exec), if has_terminal { &[] } else { &given }).await?;
    // Held on here, they would never end for their other ends.
    drop(streams);
    let mut master = None;
    loop {
        match connection.receive::<Reply>().await? {
            Some((Reply::Terminal, descriptors)) => master = descriptors.into_iter().next(),
            Some((Reply::Started, _)) => break,
            Some((Reply::Refused { code, reason }, _)) => {
                print_stderr(&format!("openshell-sandbox: {reason}"));
                return Ok(code);
            }
            Some((reply, _)) => bail!("unexpected answer of the sandbox: {reply:?}"),
            None => bail!("the sandbox does not let this process in, or has ended"),
        }
    }
    let terminal = match (has_terminal, master) {
        (false, _) => None,
        (true, Some(master)) => Some(AttachedTerminal::start(master)?),
        (true, None) => bail!("the terminal did not arrive: no descriptor is free"),
    };
    let ended = wait(&connection, &mut signals, terminal.as_ref()).await;
    if let Some(terminal) = terminal {
        terminal.finish();
    }
    ended
}

/// Passes signals on until the command has ended; returns its exit code.
async fn wait(
    connection: &PacketSocket,
    signals: &mut mpsc::Receiver<Signal>,
    terminal: Option<&AttachedTerminal>,
) -> anyhow::Result<u8> {
    loop {
        tokio::select! {
            reply = connection.receive::<Reply>() => match reply? {
                Some((Reply::Ended { code }, _)) => return Ok(code),
                Some((reply, _)) => bail!("unexpected answer of the sandbox: {reply:?}"),
                None => return Err(anyhow!("the sandbox has ended, and the command with it")),
            },
            Some(signal) = signals.recv() => match (signal, terminal) {
                (Signal::WINCH, Some(terminal)) => terminal.resize(),
                (Signal::WINCH, None) => {}
                (Signal::TSTP, _) => {
                    // Its process group has no shell that would continue it: only STOP stops it.
                    connection.send(&Request::Signal(Signal::STOP.as_raw()), &[]).await?;
                    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
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
        let (sender, mut stream) = (sender.clone(), signal(SignalKind::from_raw(number.as_raw()))?);
        tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(number).await.is_ok() {} });
    }
    ignore_terminal_output_stop()?;
    Ok(receiver)
}
