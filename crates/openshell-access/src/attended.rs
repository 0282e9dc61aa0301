//! A command that a client attends: it is started under the sandbox's confinement, reports its
//! events, takes signals, and is ended when its client has gone.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::pty::{Size, Terminal};
use openshell_supervisor::init::launch::{Event, LaunchError, Launcher, Running};
use openshell_supervisor::init::{Command, IgnoredSignals, Session, Status};
use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Time that a command has to end after its client has gone.
pub(crate) const HANG_UP: Duration = Duration::from_secs(5);

/// Events of a command that may wait to be received.
const EVENTS: usize = 8;

/// The command that a client asks for.
pub(crate) struct Asked {
    pub(crate) arguments: Vec<OsString>,
    /// Variables in addition to those of the main command; if one is set twice, the last value
    /// wins.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Directory to start in, instead of the main command's.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) session: Session,
}

impl Asked {
    /// Returns the command, with the environment and directories of the main command as defaults.
    pub(crate) fn command(self, base: &Environment, directories: &[PathBuf]) -> Command {
        let mut environment = Environment::new(owned(base));
        for (name, value) in self.variables {
            environment.set(name, value);
        }
        Command {
            arguments: self.arguments,
            environment: owned(&environment).collect(),
            directories: match self.directory {
                Some(directory) => vec![directory],
                None => directories.to_vec(),
            },
            session: self.session,
            ignored: IgnoredSignals::Reset,
        }
    }
}

fn owned(environment: &Environment) -> impl Iterator<Item = (OsString, OsString)> {
    environment
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// Opens a terminal of `size` in the sandbox.
///
/// # Errors
/// Fails if there is no /dev/pts inside, or if init is gone.
pub(crate) async fn open_terminal(
    launcher: &Launcher,
    size: Size,
) -> Result<Terminal, LaunchError> {
    let (opened, terminal) = oneshot::channel();
    let listener = Box::new(move |terminal| drop(opened.send(terminal)));
    launcher.open_terminal(size, listener)?;
    terminal.await.unwrap_or(Err(LaunchError::Gone))
}

/// A running command.
pub(crate) struct Attended {
    running: Running,
    events: mpsc::Receiver<Event>,
}

/// An event of a running command.
pub(crate) enum Heard {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It has ended; if the sandbox has ended, it counts as killed.
    Ended(Status),
}

impl Attended {
    /// Starts `command`, whose job gets the terminal `job`, if that is given. `held` is dropped
    /// when the command ends.
    ///
    /// # Errors
    /// Fails if it cannot be started, or if init is gone.
    pub(crate) async fn start(
        launcher: &Launcher,
        command: &Command,
        streams: [BorrowedFd<'_>; 3],
        job: Option<BorrowedFd<'_>>,
        held: impl Send + 'static,
    ) -> Result<Self, LaunchError> {
        let (listener, mut events) = mpsc::channel(EVENTS);
        let hear = Box::new(move |event: Event| {
            let _held = &held;
            // A stop that only repeats stops not yet received says nothing new. A command has at
            // most two other events, for which there is always room.
            if !matches!(event, Event::Stopped(_)) || listener.capacity() > 2 {
                let _ = listener.try_send(event);
            }
        });
        match job {
            Some(terminal) => launcher.start_job(command, streams, terminal, hear)?,
            None => launcher.start(command, streams, hear)?,
        }
        match events.recv().await {
            Some(Event::Started(running)) => Ok(Self { running, events }),
            Some(Event::NotStarted(error)) => Err(error),
            Some(_) | None => Err(LaunchError::Gone),
        }
    }

    /// Waits for the next stop or for the end, after which nothing follows. May be cancelled
    /// without loss.
    pub(crate) async fn next(&mut self) -> Heard {
        match self.events.recv().await {
            Some(Event::Stopped(signal)) => Heard::Stopped(signal),
            Some(Event::Ended(status)) => Heard::Ended(status),
            Some(_) | None => Heard::Ended(Status::Killed(Signal::KILL.as_raw())),
        }
    }

    /// Sends a signal to the command's process group. If the command has ended, nothing happens.
    pub(crate) fn signal(&self, number: i32) {
        let _ = self.running.signal(number);
    }

    /// Continues the command, in the foreground of its terminal or in the background.
    pub(crate) fn continue_in(&self, is_foreground: bool) {
        self.running.continue_in(is_foreground);
    }

    /// Tells the command that its client has gone.
    pub(crate) fn hang_up(&self) {
        for signal in [Signal::HUP, Signal::CONT] {
            self.signal(signal.as_raw());
        }
    }

    /// Ends a command without a client, by force if need be. Processes that have left its process
    /// group stay.
    pub(crate) async fn end(mut self) -> Status {
        self.hang_up();
        if let Ok(status) = timeout(HANG_UP, self.ended()).await {
            return status;
        }
        self.signal(Signal::KILL.as_raw());
        self.ended().await
    }

    async fn ended(&mut self) -> Status {
        loop {
            if let Heard::Ended(status) = self.next().await {
                return status;
            }
        }
    }
}
