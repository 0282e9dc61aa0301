//! The command's life: started, waited for, signalled, timed, and the end of everything with it.

use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use openshell_supervisor::init::{Command, Session, Status};
use openshell_supervisor::launch::{Event, LaunchError, Running};
use openshell_supervisor::signals::{self, Meaning};
use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::config::Config;
use crate::logging::{self, ProcessEvent};
use crate::startup::Sandbox;

/// What `timeout(1)` ends with.
const TIMED_OUT: u8 = 124;
/// What a shell ends with when a command cannot be executed, and when there is none.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The exit code of an error that kept the command from running.
pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<LaunchError>() {
        Some(LaunchError::NotFound(_)) => NOT_FOUND,
        Some(LaunchError::NotExecutable { .. }) => NOT_EXECUTABLE,
        _ => 1,
    }
}

/// Runs the command until its end, and ends the sandbox with it.
pub(crate) async fn run(config: &Config, sandbox: Sandbox) -> anyhow::Result<ExitCode> {
    let mut received = take_signals()?;
    if config.interactive {
        signals::ignore_terminal_output_stop()?;
    }
    let (sender, mut events) = mpsc::channel(EVENTS);
    let variables = sandbox.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let command = Command {
        arguments: config.command.clone(),
        environment: variables.collect(),
        directories: sandbox.directories.clone(),
        session: if config.interactive { Session::Foreground } else { Session::New },
    };
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    // A full channel holds news that make this one worthless.
    let listener = Box::new(move |event| {
        let _ = sender.try_send(event);
    });
    let running = sandbox.launcher.start(&command, [input.as_fd(), output.as_fd(), errors.as_fd()], listener)?;
    let name = config.command.first().map(|word| word.display().to_string()).unwrap_or_default();
    note_started(config, &name, &running);

    let mut end = End { deadline: config.timeout.map(|limit| Instant::now() + limit), asked: None };
    let code = loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Ended(status)) => break end.code(status),
                Some(Event::Stopped(_)) if config.interactive => suspend(&running)?,
                Some(Event::Stopped(_)) => {}
                Some(Event::SandboxGone) | None => bail!("the sandbox's init ended, and every process with it"),
            },
            Some(number) = received.recv() => match signals::meaning(number, config.interactive) {
                Meaning::Forward => forward(&running, number),
                Meaning::Terminate => {
                    forward(&running, number);
                    end.ask(Asked::Signalled, config.grace);
                }
                Meaning::Reload => logging::config_event(
                    "UNCHANGED", "MED", "SIGHUP: this build cannot read a policy again; the one loaded at start stays in force",
                ),
            },
            () = reached(end.deadline) => match end.asked {
                None => {
                    let message = "Process timed out, killing";
                    note(&name, running.pid, "TERMINATE", "CRIT", None, message);
                    forward(&running, Signal::TERM.as_raw());
                    end.ask(Asked::TimedOut, config.grace);
                }
                Some(Asked::TimedOut) => break TIMED_OUT,
                Some(Asked::Signalled) => break killed(Signal::KILL.as_raw()),
            },
        }
    };
    note(&name, running.pid, "TERMINATE", "INFO", Some(code.into()), &format!("Process exited with code {code}"));
    sandbox.launcher.end();
    sandbox.reaper.wait_for_init();
    if config.interactive {
        take_terminal()?;
    }
    Ok(ExitCode::from(code))
}

/// Events that may wait; a command has a handful in its life.
const EVENTS: usize = 64;

/// Why the command was asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Signalled,
    TimedOut,
}

/// When the patience ends, and with what.
struct End {
    deadline: Option<Instant>,
    asked: Option<Asked>,
}

impl End {
    /// From now on the command has `grace` left, whatever was granted before.
    fn ask(&mut self, why: Asked, grace: Duration) {
        if self.asked.is_none() {
            self.asked = Some(why);
            self.deadline = Some(Instant::now() + grace);
        }
    }

    fn code(&self, status: Status) -> u8 {
        match (self.asked, status) {
            (Some(Asked::TimedOut), _) => TIMED_OUT,
            // The kernel keeps 8 bits of an exit code.
            (_, Status::Exited(code)) => u8::try_from(code & 0xff).unwrap_or(1),
            (_, Status::Killed(signal)) => killed(signal),
        }
    }
}

fn killed(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// The signals that the supervisor takes, as numbers on one channel.
fn take_signals() -> anyhow::Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(EVENTS);
    for number in signals::TAKEN {
        let (sender, mut stream) = (sender.clone(), signal(SignalKind::from_raw(*number))?);
        tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(*number).await.is_ok() {} });
    }
    Ok(receiver)
}

/// A command that has just ended needs no signal; init's end is an event of its own.
fn forward(running: &Running, number: i32) {
    let _ = running.signal(number);
}

/// The command was stopped from its terminal: the supervisor stops too, so that the caller's shell takes over, and gives
/// the terminal back when it is continued.
fn suspend(running: &Running) -> anyhow::Result<()> {
    take_terminal()?;
    rustix::process::kill_process(rustix::process::getpid(), Signal::STOP)?;
    if let Some(group) = running.outer_pid().ok().and_then(Pid::from_raw) {
        set_foreground(group)?;
    }
    forward(running, Signal::CONT.as_raw());
    Ok(())
}

fn take_terminal() -> anyhow::Result<()> {
    set_foreground(rustix::process::getpgrp())
}

fn set_foreground(group: Pid) -> anyhow::Result<()> {
    match rustix::termios::tcsetpgrp(io::stdin(), group) {
        // The terminal is gone, or the group is; either way there is nothing to hand over.
        Ok(()) | Err(rustix::io::Errno::NOTTY | rustix::io::Errno::PERM | rustix::io::Errno::IO) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn note_started(config: &Config, name: &str, running: &Running) {
    let words: Vec<_> = config.command.iter().map(|word| word.display().to_string()).collect();
    let cmd = words.join(" ");
    let message = format!("Process started: pid={}", running.pid);
    let event =
        ProcessEvent { activity: "LAUNCH", severity: "INFO", name, pid: running.pid, exit: None, cmd: Some(&cmd) };
    logging::process_event(&event, &message);
}

fn note(name: &str, pid: i32, activity: &'static str, severity: &'static str, exit: Option<i32>, message: &str) {
    logging::process_event(&ProcessEvent { activity, severity, name, pid, exit, cmd: None }, message);
}
