//! Clients of control sockets: the sandboxes of this user on this host, and connections to them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_supervisor::command::packets;
use openshell_supervisor::identity::peer;
use openshell_supervisor::runs::run_dir::{control_socket, names};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use super::wire::{Answer, Answered, Description, Listing, Reply, Request};

/// Longest wait for the description of each sandbox in a list; its supervisor may be stopped.
const GLANCE: Duration = Duration::from_secs(1);

/// Longest wait for the description of the sandbox that was asked for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Folders that contain run directories.
#[derive(Debug)]
pub struct Places(Vec<PathBuf>);

/// A running sandbox, as far as it answers.
#[derive(Debug)]
pub enum Found {
    /// Its answer.
    Described(Description),
    /// It does not answer.
    Silent {
        /// Its run directory.
        folder: PathBuf,
        /// Why it is silent.
        error: io::Error,
    },
}

impl Places {
    /// Returns the places of this user's sandboxes: `run_dir` if given, else the defaults, of which
    /// one is in `runtime_dir` (XDG Base Directory Specification, `XDG_RUNTIME_DIR`).
    ///
    /// # Errors
    /// Fails if `run_dir` is relative and there is no current directory.
    pub fn new(run_dir: Option<&Path>, runtime_dir: Option<&Path>) -> anyhow::Result<Self> {
        let run_dir = run_dir
            .map(std::path::absolute)
            .transpose()
            .context("--run-dir")?;
        Ok(Self(names::parents(run_dir.as_deref(), runtime_dir)))
    }

    /// Returns the running sandboxes in the order of their start; those that do not answer come
    /// last.
    pub fn list(&self) -> Vec<Found> {
        let folders = self.0.iter().flat_map(|parent| names::list(parent));
        let mut found: Vec<_> = folders.filter_map(|folder| look_at(&folder)).collect();
        found.sort_by_key(|found| match found {
            Found::Described(description) => (description.started, description.pid),
            Found::Silent { .. } => (u64::MAX, 0),
        });
        found
    }

    /// Connects to the sandbox with this name or id, or whose supervisor has this PID.
    ///
    /// # Errors
    /// Fails if there is none, or if it does not let this process in.
    pub fn connect(&self, which: &str) -> anyhow::Result<OwnedFd> {
        // If the user of another sandbox can write here, the file with this name may belong to that
        // one. So only the answer of the supervisor counts.
        if let Some(folder) = self
            .0
            .iter()
            .find_map(|parent| names::find(parent, which).ok())
            && let Some((socket, description)) = describe(&folder, PATIENCE)
                .with_context(|| format!("sandbox {which} does not answer"))?
            && description.name == which
        {
            return Ok(socket);
        }
        let mut others = Vec::new();
        for folder in self.0.iter().flat_map(|parent| names::list(parent)) {
            match describe(&folder, GLANCE) {
                Ok(Some((socket, of))) if of.name == which || of.pid.to_string() == which => {
                    return Ok(socket);
                }
                Ok(Some((_, of))) => others.push(of.name),
                Ok(None) | Err(_) => {}
            }
        }
        if others.is_empty() {
            bail!(
                "no sandbox of this user runs on this host (looked in {})",
                self.text()
            )
        } else {
            bail!("no sandbox {which} runs; these run: {}", others.join(", "))
        }
    }

    /// Returns the names of the running sandboxes that answer.
    pub fn names(&self) -> Vec<String> {
        let names = self.list().into_iter().filter_map(|found| match found {
            Found::Described(description) => Some(description.name),
            Found::Silent { .. } => None,
        });
        names.collect()
    }

    /// Returns the places as text.
    pub fn text(&self) -> String {
        self.0
            .iter()
            .map(|place| place.display().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A connection to the questions of a sandbox.
#[derive(Debug)]
pub struct Questions(OwnedFd);

impl Questions {
    /// Asks the sandbox at `socket`, which [`Places::connect`] returned, for its questions. If
    /// `is_following`, it lists them again whenever they change.
    ///
    /// # Errors
    /// The sandbox has gone.
    pub fn open(socket: OwnedFd, is_following: bool) -> io::Result<Self> {
        packets::send(socket.as_fd(), &Request::Questions { is_following }, &[])?;
        if is_following {
            set_socket_timeout(&socket, Timeout::Recv, None)?;
        }
        Ok(Self(socket))
    }

    /// Returns the next message; `None` at the end of the sandbox.
    ///
    /// # Errors
    /// What arrives is not such a message.
    pub fn next(&self) -> io::Result<Option<FromQuestions>> {
        let received = packets::receive::<Reply>(self.0.as_fd())?;
        Ok(match received {
            None => None,
            Some((Reply::Questions(listing), _)) => Some(FromQuestions::Listed(listing)),
            Some((Reply::Answered(answered), _)) => Some(FromQuestions::Answered(answered)),
            Some((Reply::AsksNobody, _)) => Some(FromQuestions::AsksNobody),
            Some((reply, _)) => {
                return Err(io::Error::other(format!("unexpected answer {reply:?}")));
            }
        })
    }

    /// Gives an answer. What becomes of it comes as a message, if the questions are followed.
    ///
    /// # Errors
    /// The sandbox has gone.
    pub fn answer(&self, answer: Answer) -> io::Result<()> {
        packets::send(self.0.as_fd(), &Request::Answer(answer), &[])
    }
}

/// A message of a sandbox about its questions.
#[derive(Debug)]
pub enum FromQuestions {
    /// The questions.
    Listed(Listing),
    /// What became of the last answer.
    Answered(Answered),
    /// It asks nobody.
    AsksNobody,
}

/// Gives an answer to the sandbox at `socket`, which [`Places::connect`] returned; `None` if it asks
/// nobody.
///
/// # Errors
/// The sandbox has gone.
pub fn answer(socket: &OwnedFd, answer: Answer) -> io::Result<Option<Answered>> {
    packets::send(socket.as_fd(), &Request::Answer(answer), &[])?;
    match packets::receive(socket.as_fd())? {
        Some((Reply::Answered(answered), _)) => Ok(Some(answered)),
        Some((Reply::AsksNobody, _)) => Ok(None),
        Some((reply, _)) => Err(io::Error::other(format!("unexpected answer {reply:?}"))),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Connects to the supervisor of a run directory. Makes sure that the listener there is not a
/// program in a sandbox, because it is given the streams of this process.
fn connect(folder: &Path) -> io::Result<OwnedFd> {
    let socket = packets::connect(&control_socket(folder))?;
    peer::supervisor(socket.as_fd()).map_err(io::Error::other)?;
    Ok(socket)
}

/// Returns the sandbox of a run directory; `None` if none is running.
fn look_at(folder: &Path) -> Option<Found> {
    match describe(folder, GLANCE) {
        Ok(described) => described.map(|(_, description)| Found::Described(description)),
        Err(error) => Some(Found::Silent {
            folder: folder.to_owned(),
            error,
        }),
    }
}

/// Connects to the supervisor of a run directory, and asks it to describe its sandbox within
/// `patience`; `None` if none is running.
fn describe(folder: &Path, patience: Duration) -> io::Result<Option<(OwnedFd, Description)>> {
    match asked(folder, patience) {
        // A sandbox that is ending may answer with any error.
        Err(_)
            if packets::connect(&control_socket(folder))
                .is_err_and(|error| is_of_ended(&error)) =>
        {
            Ok(None)
        }
        described => described,
    }
}

/// Returns true if the error means that the sandbox has ended or is still starting.
fn is_of_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Asks the supervisor of a run directory for its description; `None` if the connection ends
/// without an answer.
fn asked(folder: &Path, patience: Duration) -> io::Result<Option<(OwnedFd, Description)>> {
    let socket = connect(folder)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
    packets::send(socket.as_fd(), &Request::Describe, &[])?;
    match packets::receive(socket.as_fd())? {
        Some((Reply::Described(description), _)) => Ok(Some((socket, description))),
        Some((reply, _)) => Err(io::Error::other(format!("unexpected answer {reply:?}"))),
        None => Ok(None),
    }
}
