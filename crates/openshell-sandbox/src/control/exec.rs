//! Commands of clients: started as the main command is, with the client's streams or on a terminal of their own.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use openshell_policy::event::{Event as AuditEvent, Ssh};
use openshell_policy::variable;
use openshell_policy::words::{Action, Severity, SshActivity, SshDoor};
use openshell_ssh::command_line;
use openshell_ssh::packet_socket::PacketSocket;
use openshell_supervisor::environment::Environment;
use openshell_supervisor::init::{Command, IgnoredSignals, Session};
use openshell_supervisor::launch::{Event, LaunchError, Running};
use openshell_supervisor::netns;
use openshell_supervisor::pty::{Size, Terminal};
use openshell_supervisor::streams::{self, Streams};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::server::Control;
use super::wire::{Exec, Reply, Request, TerminalSpec};
use crate::exit::{code_of_killed, code_of_status, exit_code};
use crate::signals::forward;

/// Time for a command to end after its client has gone.
const HANG_UP: Duration = Duration::from_secs(5);

/// Longest wait for relayed outputs after the command's end.
const FLUSH: Duration = Duration::from_secs(5);

/// Type of a terminal whose client names none.
const DEFAULT_TERM: &str = "xterm-256color";

/// A refusal to start a command, with the exit code for it.
struct Refused {
    code: u8,
    reason: String,
}

impl Refused {
    fn new(reason: impl Into<String>) -> Self {
        Self { code: 1, reason: reason.into() }
    }

    fn of(error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { code: exit_code(&error), reason: format!("{error:#}") }
    }
}

/// The streams of a command.
enum Given {
    Streams(Streams),
    Terminal(OwnedFd),
}

impl Given {
    fn as_fds(&self) -> [BorrowedFd<'_>; 3] {
        match self {
            Self::Streams(streams) => streams.as_fds(),
            Self::Terminal(slave) => [slave.as_fd(); 3],
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
        let (words, name) = (command_line::redacted_words(&exec.arguments), format!("pid:{pid}"));
        let report = |activity, exit, reason: &str| {
            let is_refused = !reason.is_empty();
            self.audit.event(&AuditEvent::Ssh(Ssh {
                activity,
                severity: if is_refused { Severity::Medium } else { Severity::Info },
                action: if is_refused { Action::Denied } else { Action::Allowed },
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
        let (running, events, given) = match self.start(client, exec, streams).await {
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
        if let Given::Streams(streams) = given
            && streams.has_relays()
        {
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
    ) -> Result<(Running, mpsc::Receiver<Event>, Given), Refused> {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            return Err(Refused::new("too many commands run in this sandbox already"));
        };
        if let Some((name, _)) = exec.variables.iter().find(|(name, _)| variable::is_refused(name)) {
            return Err(Refused::new(format!(
                "{name} may not be set: it would have programs run other code, or leave the sandbox's proxy or certificates"
            )));
        }
        let given = match &exec.terminal {
            Some(terminal) => Given::Terminal(self.open_terminal(client, terminal).await?),
            None => Given::Streams(self.take_streams(streams)?),
        };
        let command = self.assemble(exec);
        let (listener, mut events) = mpsc::channel(4);
        let hear = move |event: Event| {
            // Held until the end of the command.
            let _slot = &slot;
            // Stops are the business of shells; of the others a command has two at most.
            if !matches!(event, Event::Stopped(_)) {
                let _ = listener.try_send(event);
            }
        };
        let started = self.launcher.start(&command, given.as_fds(), Box::new(hear));
        started.map_err(Refused::of)?;
        match events.recv().await {
            Some(Event::Started(running)) => Ok((running, events, given)),
            Some(Event::NotStarted(error)) => Err(Refused::of(error)),
            Some(_) | None => Err(Refused::new("the sandbox has ended")),
        }
    }

    /// Opens a terminal inside, and hands its master to the client; returns the slave.
    async fn open_terminal(&self, client: &PacketSocket, spec: &TerminalSpec) -> Result<OwnedFd, Refused> {
        let (opened, terminal) = oneshot::channel();
        let size = Size { columns: spec.columns, rows: spec.rows };
        let listener = Box::new(move |terminal| drop(opened.send(terminal)));
        let asked = self.launcher.open_terminal(size, listener);
        asked.map_err(Refused::of)?;
        let terminal = terminal.await.unwrap_or(Err(LaunchError::Gone)).map_err(Refused::of)?;
        let (master, slave) = Terminal::into_parts(terminal);
        let sent = client.send(&Reply::Terminal, &[master.as_fd()]).await;
        sent.map_err(|_| Refused::new("the client has gone"))?;
        Ok(slave)
    }

    /// Returns the client's streams, of which some are relayed.
    fn take_streams(&self, given: Vec<OwnedFd>) -> Result<Streams, Refused> {
        let [input, output, errors] = &given[..] else {
            return Err(Refused::new("three standard streams are needed"));
        };
        let inspected = streams::inspect([input.as_fd(), output.as_fd(), errors.as_fd()]);
        let inspected = inspected.map_err(Refused::of)?;
        // New sockets must belong to the network of the command.
        let opened = match self.netns.as_ref().filter(|_| inspected.has_relays()) {
            Some(netns) => netns::run_in(netns.as_fd(), || Ok(inspected.open(None))).map_err(Refused::of)?,
            None => inspected.open(None),
        };
        opened.map_err(Refused::of)
    }

    fn assemble(&self, exec: Exec) -> Command {
        let Exec { arguments, variables, directory, terminal } = exec;
        let base = self.environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut environment = Environment::new(base);
        let session = match terminal {
            Some(terminal) => {
                environment.set("TERM", terminal.kind.unwrap_or_else(|| DEFAULT_TERM.into()));
                Session::Terminal
            }
            None => Session::New,
        };
        variables.into_iter().for_each(|(name, value)| environment.set(OsString::from(name), value));
        let environment = environment.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let directories = directory.map_or_else(|| self.directories.clone(), |directory| vec![directory]);
        Command { arguments, environment, directories, session, ignored: IgnoredSignals::Reset }
    }
}

/// Passes the client's signals on until the command has ended; returns its exit code.
async fn supervise(client: &PacketSocket, running: &Running, mut events: mpsc::Receiver<Event>) -> u8 {
    loop {
        tokio::select! {
            event = events.recv() => return code_of(event),
            message = client.receive::<Request>() => match message {
                Ok(Some((Request::Signal(number), _))) => forward(running, number),
                Ok(Some((Request::Describe | Request::Exec(_), _))) => {}
                Ok(None) | Err(_) => return hang_up(running, events).await,
            },
        }
    }
}

/// Ends a command whose client has gone; what has left its process group stays.
async fn hang_up(running: &Running, mut events: mpsc::Receiver<Event>) -> u8 {
    for signal in [Signal::HUP, Signal::CONT] {
        forward(running, signal.as_raw());
    }
    if let Ok(event) = timeout(HANG_UP, events.recv()).await {
        return code_of(event);
    }
    forward(running, Signal::KILL.as_raw());
    code_of(events.recv().await)
}

/// Returns the exit code of a command whose last event is `event`.
fn code_of(event: Option<Event>) -> u8 {
    match event {
        Some(Event::Ended(status)) => code_of_status(status, None),
        _ => code_of_killed(),
    }
}
