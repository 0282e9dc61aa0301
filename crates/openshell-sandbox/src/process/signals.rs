//! Signals: those that the supervisor receives on one channel, and those that it passes on to the
//! command.

use openshell_supervisor::command::reaper;
use openshell_supervisor::command::signals::{self, Received};
use openshell_supervisor::init::launch::Running;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use openshell_sources::tasks::Tasks;

/// How many signals may wait in the channel; more would carry no more information.
const WAITING: usize = 64;

/// Receives the signals that the supervisor handles, on one channel. From then on none of them ends
/// the supervisor.
///
/// # Errors
/// Fails if a handler cannot be installed.
pub(crate) fn receive(tasks: &mut Tasks) -> anyhow::Result<mpsc::Receiver<Received>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    for number in signals::HANDLED {
        let sender = sender.clone();
        let mut stream = signal(SignalKind::from_raw(*number))?;
        let signal = Received {
            number: *number,
            is_hang_up: false,
        };
        let pass_on = async move {
            while stream.recv().await.is_some() && sender.send(signal).await.is_ok() {}
        };
        tasks.spawn("signal handler", pass_on);
    }
    let mut hang_ups = pipe::Receiver::from_owned_fd(signals::hang_ups()?)?;
    tasks.spawn("hang-up handler", async move {
        let mut byte = [0];
        while hang_ups.read_exact(&mut byte).await.is_ok()
            && sender.send(Received::hang_up(byte[0])).await.is_ok()
        {}
    });
    let mut children = signal(SignalKind::child())?;
    tasks.spawn("reaper", async move {
        while children.recv().await.is_some() {
            reaper::collect_orphans();
        }
    });
    Ok(receiver)
}

/// Sends a signal to the command. Errors are ignored: a command that has ended needs no signal, and
/// the end of init is a separate event.
pub(crate) fn forward(running: &Running, number: i32) {
    let _ = running.signal(number);
}
