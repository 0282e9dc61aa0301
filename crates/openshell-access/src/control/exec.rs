//! Commands of clients: started as the main command is, with the client's streams or on a terminal
//! of their own.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use openshell_events::event::{Event as AuditEvent, Ssh};
use openshell_events::words::{Action, Severity, SshActivity, SshDoor};
use openshell_policy::variable;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::pty::Size;
use openshell_supervisor::command::streams::{self, Purpose, Streams};
use openshell_supervisor::init::launch::{Event, LaunchError, Running};
use openshell_supervisor::init::{Command, IgnoredSignals, Session, Status};
use openshell_supervisor::network::netns;
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::server::Control;
use super::wire::{Exec, Reply, Request, TerminalKeyboard, TerminalSpec};
use crate::command_line;
use crate::packet_socket::PacketSocket;

/// Time for a command to end after its client has gone.
const HANG_UP: Duration = Duration::from_secs(5);

/// Longest wait for relayed outputs after the command's end.
const FLUSH: Duration = Duration::from_secs(5);

/// Events of a command that wait for its client.
const EVENTS: usize = 8;

/// Type of a terminal whose client names none.
const DEFAULT_TERM: &str = "xterm-256color";

/// A refusal to start a command, with the exit code for it.
struct Refused {
    code: u8,
    reason: String,
}

impl Refused {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            code: 1,
            reason: reason.into(),
        }
    }

    fn of(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        let launch = error.downcast_ref::<LaunchError>();
        Self {
            code: launch.map_or(1, LaunchError::exit_code),
            reason: format!("{error:#}"),
        }
    }
}

impl Control {
    /// Runs a command of a client until both have ended.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn exec(
        &self,
        client: &PacketSocket,
        pid: i32,
        exec: Exec,
        streams: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let words = command_line::redacted_words(&exec.arguments);
        let name = format!("pid:{pid}");
        let report = |activity, exit, reason: &str| {
            let is_refused = !reason.is_empty();
            self.audit.event(&AuditEvent::Ssh(Ssh {
                activity,
                severity: if is_refused {
                    Severity::Medium
                } else {
                    Severity::Info
                },
                action: if is_refused {
                    Action::Denied
                } else {
                    Action::Allowed
                },
                door: SshDoor::Exec,
                client: &name,
                authentication: None,
                command: Some(&words),
                target: None,
                exit,
                transferred: None,
                reason,
            }));
        };
        let (running, events, streams) = match self.start(client, exec, streams).await {
            Ok(started) => started,
            Err(Refused { code, reason }) => {
                report(SshActivity::Exec, None, &reason);
                return client.send(&Reply::Refused { code, reason }, &[]).await;
            }
        };
        report(SshActivity::Exec, None, "");
        let code = match client.send(&Reply::Started, &[]).await {
            Ok(()) => supervise(client, &running, events).await,
            Err(_) => hang_up(&running, events).await,
        };
        if streams.has_relays() {
            // Descendants may hold the streams for good.
            let _ = tokio::task::spawn_blocking(|| streams.finish(FLUSH)).await;
        }
        report(SshActivity::Close, Some(code.into()), "");
        client.send(&Reply::Ended { code }, &[]).await
    }

    async fn start(
        &self,
        client: &PacketSocket,
        exec: Exec,
        streams: Vec<OwnedFd>,
    ) -> Result<(Running, mpsc::Receiver<Event>, Streams), Refused> {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            return Err(Refused::new(
                "too many commands run in this sandbox already",
            ));
        };
        if let Some((name, _)) = exec
            .variables
            .iter()
            .find(|(name, _)| variable::is_refused(name))
        {
            return Err(Refused::new(format!(
                "{name} may not be set: it would have programs run other code, or leave the \
                 sandbox's proxy or certificates"
            )));
        }
        let which = exec
            .terminal
            .as_ref()
            .map_or([false; 3], |terminal| terminal.streams);
        let mut streams = self.take_streams(streams, which)?;
        if let Some(terminal) = &exec.terminal {
            self.open_terminal(client, terminal, &mut streams).await?;
        }
        let command = self.assemble(exec);
        let (listener, mut events) = mpsc::channel(EVENTS);
        let hear = Box::new(move |event: Event| {
            // Held until the end of the command.
            let _slot = &slot;
            // A stop that repeats those that are not heard yet tells nothing new; of the others a
            // command has two at most.
            if !matches!(event, Event::Stopped(_)) || listener.capacity() > 2 {
                let _ = listener.try_send(event);
            }
        });
        let descriptors = streams.as_fds().map_err(Refused::of)?;
        let started = match (command.session, streams.terminal()) {
            (Session::Job { .. }, Some(terminal)) => {
                self.launcher
                    .start_job(&command, descriptors, terminal, hear)
            }
            _ => self.launcher.start(&command, descriptors, hear),
        };
        started.map_err(Refused::of)?;
        match events.recv().await {
            Some(Event::Started(running)) => Ok((running, events, streams)),
            Some(Event::NotStarted(error)) => Err(Refused::of(error)),
            Some(_) | None => Err(Refused::new("the sandbox has ended")),
        }
    }

    /// Opens a terminal inside for `streams`, and hands its master to the client.
    async fn open_terminal(
        &self,
        client: &PacketSocket,
        spec: &TerminalSpec,
        streams: &mut Streams,
    ) -> Result<(), Refused> {
        let (opened, terminal) = oneshot::channel();
        let size = Size {
            columns: spec.columns,
            rows: spec.rows,
        };
        let listener = Box::new(move |terminal| drop(opened.send(terminal)));
        let asked = self.launcher.open_terminal(size, listener);
        asked.map_err(Refused::of)?;
        let terminal = terminal
            .await
            .unwrap_or(Err(LaunchError::Gone))
            .map_err(Refused::of)?;
        let has_keyboard = spec.keyboard != TerminalKeyboard::None;
        let master = streams
            .set_terminal(terminal, has_keyboard, spec.streams)
            .map_err(Refused::of)?;
        let sent = client.send(&Reply::Terminal, &[master.as_fd()]).await;
        sent.map_err(|_| Refused::new("the client has gone"))
    }

    /// Returns the client's streams, of which some are relayed; those `on_terminal` are left to be
    /// opened.
    fn take_streams(
        &self,
        given: Vec<OwnedFd>,
        on_terminal: [bool; 3],
    ) -> Result<Streams, Refused> {
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .map_err(Refused::of)?;
        let mut given = given.iter().map(AsFd::as_fd);
        let mut streams = [null.as_fd(); 3];
        for (stream, is_on_terminal) in streams.iter_mut().zip(on_terminal) {
            if !is_on_terminal {
                *stream = given
                    .next()
                    .ok_or_else(|| Refused::new("three standard streams are needed"))?;
            }
        }
        let inspected = streams::inspect(streams).map_err(Refused::of)?;
        // New sockets must belong to the network of the command.
        let opened = match self.netns.as_ref().filter(|_| inspected.has_sockets()) {
            Some(netns) => netns::run_in(netns.as_fd(), || Ok(inspected.open(Purpose::default())))
                .map_err(Refused::of)?,
            None => inspected.open(Purpose::default()),
        };
        opened.map_err(Refused::of)
    }

    fn assemble(&self, exec: Exec) -> Command {
        let Exec {
            arguments,
            variables,
            directory,
            terminal,
        } = exec;
        let base = self
            .environment
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut environment = Environment::new(base);
        let session = match terminal {
            Some(terminal) => {
                environment.set("TERM", terminal.kind.unwrap_or_else(|| DEFAULT_TERM.into()));
                match terminal.keyboard {
                    TerminalKeyboard::None => Session::New,
                    TerminalKeyboard::Later => Session::Job {
                        is_foreground: false,
                    },
                    TerminalKeyboard::Now => Session::Job {
                        is_foreground: true,
                    },
                }
            }
            None => Session::New,
        };
        for (name, value) in variables {
            environment.set(OsString::from(name), value);
        }
        let environment = environment
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let directories =
            directory.map_or_else(|| self.directories.clone(), |directory| vec![directory]);
        Command {
            arguments,
            environment,
            directories,
            session,
            ignored: IgnoredSignals::Reset,
        }
    }
}

/// Passes the client's signals on until the command has ended; returns its exit code.
async fn supervise(
    client: &PacketSocket,
    running: &Running,
    mut events: mpsc::Receiver<Event>,
) -> u8 {
    loop {
        tokio::select! {
            event = events.recv() => match event {
                // A client that is gone tells it itself.
                Some(Event::Stopped(signal)) => drop(client.send(&Reply::Stopped(signal), &[]).await),
                event => return code_of(event),
            },
            message = client.receive::<Request>() => match message {
                Ok(Some((Request::Signal(number), _))) => forward(running, number),
                Ok(Some((Request::Continue { is_foreground }, _))) => running.continue_in(is_foreground),
                Ok(Some((Request::Describe | Request::Exec(_), _))) => {}
                Ok(None) | Err(_) => return hang_up(running, events).await,
            },
        }
    }
}

/// Sends a signal to the command. One that has just ended needs none.
fn forward(running: &Running, number: i32) {
    let _ = running.signal(number);
}

/// Ends a command whose client has gone; what has left its process group stays.
async fn hang_up(running: &Running, mut events: mpsc::Receiver<Event>) -> u8 {
    for signal in [Signal::HUP, Signal::CONT] {
        forward(running, signal.as_raw());
    }
    if let Ok(event) = timeout(HANG_UP, last(&mut events)).await {
        return code_of(event);
    }
    forward(running, Signal::KILL.as_raw());
    code_of(last(&mut events).await)
}

/// Waits for the event with which a command ends.
async fn last(events: &mut mpsc::Receiver<Event>) -> Option<Event> {
    loop {
        let event = events.recv().await;
        if !matches!(event, Some(Event::Stopped(_))) {
            return event;
        }
    }
}

/// Returns the exit code of a command whose last event is `event`.
fn code_of(event: Option<Event>) -> u8 {
    match event {
        Some(Event::Ended(status)) => status.exit_code(),
        _ => Status::Killed(Signal::KILL.as_raw()).exit_code(),
    }
}
