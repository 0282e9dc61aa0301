//! Where the questions come from: one thread for each sandbox, and one for signals.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_access::control::client::{FromQuestions, Places, Questions, answer};
use openshell_access::control::wire::{Answer, Answered, Listing};
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::signal::unix::{SignalKind, signal};

use crate::subcommands::approvals::script::asks_nobody;
use crate::subcommands::exec::places;

/// How often new sandboxes, and the end of the terminal, are looked for.
const LOOK: Duration = Duration::from_secs(2);

/// The messages that wait for a screen that is stopped. Then the sandboxes wait.
const MESSAGES: usize = 64;

/// The time in which the screen is left after a signal.
const LEAVE: Duration = Duration::from_secs(1);

/// Something that the screen shows or does.
#[derive(Debug)]
pub(super) enum Message {
    /// The questions of a sandbox.
    Listed(String, Listing),
    /// A sandbox has ended.
    Ended(String),
    /// This signal ends the program.
    Signal(u8),
    /// A signal stops the program.
    Stop,
}

/// The sandboxes that ask.
pub(super) struct Source {
    pub(super) messages: Receiver<Message>,
    places: Places,
}

impl Source {
    /// Follows the sandbox `name`, or all that ask, those that start later too.
    ///
    /// # Errors
    /// No such sandbox runs, or it asks nobody.
    pub(super) fn start(run_dir: Option<&Path>, name: Option<&str>) -> anyhow::Result<Self> {
        let places = places(run_dir)?;
        let (sender, messages) = sync_channel(MESSAGES);
        let mut known = BTreeSet::new();
        match name {
            Some(name) => {
                if !follow(&places, name, &sender)? {
                    bail!("{}", asks_nobody(Some(name)));
                }
            }
            None => {
                if places.list().is_empty() {
                    bail!(
                        "no sandbox of this user runs on this host (looked in {})",
                        places.text()
                    );
                }
                if follow_new(&places, &mut known, &sender) == 0 {
                    bail!("{}", asks_nobody(None));
                }
                let run_dir: Option<PathBuf> = run_dir.map(Path::to_owned);
                let sender = sender.clone();
                thread::spawn(move || look_for_new(run_dir.as_deref(), known, &sender));
            }
        }
        watch_signals(sender)?;
        Ok(Self { messages, places })
    }

    /// Gives `given` to the sandbox `name`.
    pub(super) fn give(&self, name: &str, given: &Answer) -> Answered {
        let socket = self.places.connect(name);
        let answered = socket.and_then(|socket| Ok(answer(&socket, given.clone())?));
        match answered {
            Ok(Some(answered)) => answered,
            Ok(None) => Answered::Gone,
            Err(error) => Answered::Unfit(format!("{error:#}")),
        }
    }
}

/// Follows the sandboxes that are not `known`; returns how many of those ask.
fn follow_new(
    places: &Places,
    known: &mut BTreeSet<String>,
    sender: &SyncSender<Message>,
) -> usize {
    let names: BTreeSet<_> = places.names().into_iter().collect();
    let mut asking = 0;
    for name in names.difference(&known.clone()) {
        if follow(places, name, sender).unwrap_or(false) {
            asking += 1;
        }
    }
    *known = names;
    asking
}

/// Looks for new sandboxes until the screen has gone.
fn look_for_new(run_dir: Option<&Path>, mut known: BTreeSet<String>, sender: &SyncSender<Message>) {
    let Ok(places) = places(run_dir) else { return };
    loop {
        thread::sleep(LOOK);
        follow_new(&places, &mut known, sender);
    }
}

/// Follows the sandbox `name` on a thread of its own; returns false if it asks nobody.
///
/// # Errors
/// It does not run.
fn follow(places: &Places, name: &str, sender: &SyncSender<Message>) -> anyhow::Result<bool> {
    let questions = Questions::open(places.connect(name)?, true)?;
    let Some(FromQuestions::Listed(first)) = questions.next()? else {
        return Ok(false);
    };
    let name = name.to_owned();
    let sender = sender.clone();
    thread::spawn(move || {
        // A screen that has gone needs no message.
        let _ = sender.send(Message::Listed(name.clone(), first));
        while let Ok(Some(message)) = questions.next() {
            if let FromQuestions::Listed(listing) = message
                && sender.send(Message::Listed(name.clone(), listing)).is_err()
            {
                return;
            }
        }
        let _ = sender.send(Message::Ended(name));
    });
    Ok(true)
}

/// Ends when the terminal has gone.
async fn hung_up() {
    loop {
        tokio::time::sleep(LOOK).await;
        let stdin = io::stdin();
        let mut poll = [PollFd::new(&stdin, PollFlags::empty())];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        let is_told = rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|count| count > 0);
        if is_told && poll[0].revents().intersects(gone) {
            return;
        }
    }
}

/// Has signals leave the screen before they take effect, and its end end the program.
///
/// # Errors
/// There are no more threads or descriptors.
fn watch_signals(sender: SyncSender<Message>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("signals")?;
    let watch = {
        let _guard = runtime.enter();
        let of = |kind| signal(kind).context("signals");
        [
            of(SignalKind::hangup())?,
            of(SignalKind::interrupt())?,
            of(SignalKind::quit())?,
            of(SignalKind::terminate())?,
            of(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw()))?,
        ]
    };
    thread::spawn(move || {
        let [mut hangup, mut interrupt, mut quit, mut terminate, mut stop] = watch;
        runtime.block_on(async {
            loop {
                let message = tokio::select! {
                    _ = hangup.recv() => Message::Signal(1),
                    _ = interrupt.recv() => Message::Signal(2),
                    _ = quit.recv() => Message::Signal(3),
                    _ = terminate.recv() => Message::Signal(15),
                    _ = stop.recv() => Message::Stop,
                    () = hung_up() => Message::Signal(1),
                };
                let ends = match message {
                    Message::Signal(number) => Some(number),
                    Message::Listed(..) | Message::Ended(_) | Message::Stop => None,
                };
                // A screen that is stopped takes nothing; one that has gone needs nothing.
                if let Err(TrySendError::Disconnected(_)) = sender.try_send(message) {
                    return;
                }
                if let Some(number) = ends {
                    // The library that reads keys never returns from a terminal that has gone.
                    tokio::time::sleep(LEAVE).await;
                    ratatui::restore();
                    #[expect(
                        clippy::disallowed_methods,
                        clippy::exit,
                        reason = "the thread with the guards never returns"
                    )]
                    std::process::exit(128 + i32::from(number));
                }
            }
        });
    });
    Ok(())
}
