//! A command that somebody attends: started under the sandbox's confinement, heard of and
//! signalled, and ended when its client has gone.

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

/// Time for a command to end after its client has gone.
pub(crate) const HANG_UP: Duration = Duration::from_secs(5);

/// Events of a command that wait to be heard.
const EVENTS: usize = 8;

/// What a client asks for.
pub(crate) struct Asked {
    pub(crate) arguments: Vec<OsString>,
    /// Variables beside those of the main command, the last of several values counts.
    pub(crate) variables: Vec<(OsString, OsString)>,
    /// Directory to start in, instead of the main command's.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) session: Session,
}

impl Asked {
    /// Returns the command, in the environment and the directories of the main one.
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

/// Opens a terminal of `size` inside.
///
/// # Errors
/// There is no /dev/pts inside, or init is gone.
pub(crate) async fn open_terminal(
    launcher: &Launcher,
    size: Size,
) -> Result<Terminal, LaunchError> {
    let (opened, terminal) = oneshot::channel();
    let listener = Box::new(move |terminal| drop(opened.send(terminal)));
    launcher.open_terminal(size, listener)?;
    terminal.await.unwrap_or(Err(LaunchError::Gone))
}

/// A command that runs.
pub(crate) struct Attended {
    running: Running,
    events: mpsc::Receiver<Event>,
}

/// What became of a command.
pub(crate) enum Heard {
    /// It was stopped by this signal.
    Stopped(i32),
    /// It has ended; killed, if the sandbox has.
    Ended(Status),
}

impl Attended {
    /// Starts `command`, whose job has the terminal `job`. `held` is dropped at its end.
    ///
    /// # Errors
    /// It cannot be started, or init is gone.
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
            // A stop that repeats those that are not heard yet tells nothing new; of the others a
            // command has two at most.
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

    /// Waits for the next stop, or for the end, behind which nothing follows. Safe to be cancelled.
    pub(crate) async fn next(&mut self) -> Heard {
        match self.events.recv().await {
            Some(Event::Stopped(signal)) => Heard::Stopped(signal),
            Some(Event::Ended(status)) => Heard::Ended(status),
            Some(_) | None => Heard::Ended(Status::Killed(Signal::KILL.as_raw())),
        }
    }

    /// Sends a signal to its process group. One that has just ended needs none.
    pub(crate) fn signal(&self, number: i32) {
        let _ = self.running.signal(number);
    }

    /// Continues it, in the foreground of its terminal or in its background.
    pub(crate) fn continue_in(&self, is_foreground: bool) {
        self.running.continue_in(is_foreground);
    }

    /// Tells it that its client has gone.
    pub(crate) fn hang_up(&self) {
        for signal in [Signal::HUP, Signal::CONT] {
            self.signal(signal.as_raw());
        }
    }

    /// Ends what has no client any more; what has left its process group stays.
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
