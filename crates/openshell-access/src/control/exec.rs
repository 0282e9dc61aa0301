//! Commands of clients. They start as the main command does, with the client's streams or on a
//! terminal of their own.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use openshell_events::event::{Event as AuditEvent, Ssh};
use openshell_events::words::{Action, Severity, SshActivity, SshDoor};
use openshell_policy::variable;
use openshell_supervisor::command::pty::Size;
use openshell_supervisor::command::streams::{self, Purpose, Streams};
use openshell_supervisor::init::launch::LaunchError;
use openshell_supervisor::init::{Session, Status};
use openshell_supervisor::network::netns;

use super::server::Control;
use super::wire::{Exec, Reply, Request, TerminalKeyboard, TerminalSpec};
use crate::attended::{self, Asked, Attended, Heard};
use crate::command_line;
use crate::packet_socket::PacketSocket;

/// Longest wait for relayed output after the end of a command.
const FLUSH: Duration = Duration::from_secs(5);

/// Type of a terminal if its client names none.
const DEFAULT_TERM: &str = "xterm-256color";

/// A refusal to start a command, with an exit code.
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
    /// Runs a command of a client until it has ended; if the client goes first, ends it.
    ///
    /// # Errors
    /// Fails if the client is gone.
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
        let (attended, streams) = match self.start(client, exec, streams).await {
            Ok(started) => started,
            Err(Refused { code, reason }) => {
                report(SshActivity::Exec, None, &reason);
                return client.send(&Reply::Refused { code, reason }, &[]).await;
            }
        };
        report(SshActivity::Exec, None, "");
        let status = match client.send(&Reply::Started, &[]).await {
            Ok(()) => supervise(client, attended).await,
            Err(_) => attended.end().await,
        };
        let code = status.exit_code();
        if streams.has_relays() {
            // Descendants of the command may hold the streams open forever.
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
    ) -> Result<(Attended, Streams), Refused> {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else {
            return Err(Refused::new(
                "too many commands run in this sandbox already; wait until one ends",
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
        let command = asked(exec).command(&self.environment, &self.directories);
        let descriptors = streams.as_fds().map_err(Refused::of)?;
        let job = match command.session {
            Session::Job { .. } => streams.terminal(),
            Session::New | Session::Terminal => None,
        };
        let started = Attended::start(&self.launcher, &command, descriptors, job, slot).await;
        let attended = started.map_err(Refused::of)?;
        Ok((attended, streams))
    }

    /// Opens a terminal inside for `streams`, and passes its master to the client.
    async fn open_terminal(
        &self,
        client: &PacketSocket,
        spec: &TerminalSpec,
        streams: &mut Streams,
    ) -> Result<(), Refused> {
        let size = Size {
            columns: spec.columns,
            rows: spec.rows,
        };
        let opened = attended::open_terminal(&self.launcher, size).await;
        let terminal = opened.map_err(Refused::of)?;
        let has_keyboard = spec.keyboard != TerminalKeyboard::None;
        let master = streams
            .set_terminal(terminal, has_keyboard, spec.streams)
            .map_err(Refused::of)?;
        let sent = client.send(&Reply::Terminal, &[master.as_fd()]).await;
        sent.map_err(|_| Refused::new("the client has gone"))
    }

    /// Returns the client's streams, some of which are relayed. Those `on_terminal` are opened
    /// later.
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
        // New sockets must belong to the network namespace of the command.
        let opened = match self.netns.as_ref().filter(|_| inspected.has_sockets()) {
            Some(netns) => netns::run_in(netns.as_fd(), || Ok(inspected.open(Purpose::default())))
                .map_err(Refused::of)?,
            None => inspected.open(Purpose::default()),
        };
        opened.map_err(Refused::of)
    }
}

fn asked(exec: Exec) -> Asked {
    let mut variables = Vec::new();
    let mut session = Session::New;
    if let Some(terminal) = exec.terminal {
        let kind = terminal.kind.unwrap_or_else(|| DEFAULT_TERM.into());
        variables.push(("TERM".into(), kind));
        session = match terminal.keyboard {
            TerminalKeyboard::None => Session::New,
            TerminalKeyboard::Later => Session::Job {
                is_foreground: false,
            },
            TerminalKeyboard::Now => Session::Job {
                is_foreground: true,
            },
        };
    }
    for (name, value) in exec.variables {
        variables.push((OsString::from(name), value));
    }
    Asked {
        arguments: exec.arguments,
        variables,
        directory: exec.directory,
        session,
    }
}

/// Passes the client's signals on, and reports stops to it, until the command has ended.
async fn supervise(client: &PacketSocket, mut attended: Attended) -> Status {
    loop {
        tokio::select! {
            heard = attended.next() => match heard {
                // If the client is gone, `receive` reports that.
                Heard::Stopped(signal) => drop(client.send(&Reply::Stopped(signal), &[]).await),
                Heard::Ended(status) => return status,
            },
            message = client.receive::<Request>() => match message {
                Ok(Some((Request::Signal(number), _))) => attended.signal(number),
                Ok(Some((Request::Continue { is_foreground }, _))) => attended.continue_in(is_foreground),
                Ok(Some((Request::Describe | Request::Exec(_) | Request::Questions { .. } | Request::Answer(_), _))) => {}
                Ok(None) | Err(_) => return attended.end().await,
            },
        }
    }
}
