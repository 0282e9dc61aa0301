//! Log lines on their way to the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use openshell_events::lines::{Line, LineQueue};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use crate::channel::Backoff;
use crate::client::Gateway;
use crate::convert::logs::LogLine;
use crate::error::CallError;
use crate::proto::v1::PushSandboxLogsRequest;

/// How many lines may wait to be sent.
const WAITING: usize = 1_024;

/// Most lines in a batch, and the longest wait for a full batch.
const BATCH: (usize, Duration) = (50, Duration::from_millis(500));

/// Pause between two checks for more lines, because waking this task for each line would cost more
/// than the line itself. Up to 51,200 lines a second, no more lines arrive in a pause than can
/// wait.
const PAUSE: Duration = Duration::from_millis(20);

/// The lines to be sent, and the count of lines for which there was no room.
#[derive(Debug)]
pub struct Lines {
    lines: mpsc::Receiver<LogLine>,
    /// Count of lines that were dropped since it was last taken.
    dropped: Arc<AtomicU64>,
}

/// The end of the queue that takes lines.
#[derive(Debug)]
struct Entrance {
    lines: mpsc::Sender<LogLine>,
    dropped: Arc<AtomicU64>,
}

/// Returns both ends of a queue of lines.
#[must_use]
pub fn queue() -> (Arc<dyn LineQueue>, Lines) {
    let (sender, lines) = mpsc::channel(WAITING);
    let dropped: Arc<AtomicU64> = Arc::default();
    let entrance = Entrance {
        lines: sender,
        dropped: Arc::clone(&dropped),
    };
    (Arc::new(entrance), Lines { lines, dropped })
}

impl Entrance {
    /// Returns `is_taken`; counts the line as dropped if that is false.
    fn count(&self, is_taken: bool) -> bool {
        if !is_taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }
}

impl LineQueue for Entrance {
    fn has_room(&self) -> bool {
        self.count(self.lines.capacity() > 0)
    }

    fn push(&self, line: Line<'_>) -> bool {
        let sent = self.lines.try_send(LogLine::new(line));
        self.count(sent.is_ok())
    }
}

/// Age from which a stream counts as good, so that the waits start again with the shortest.
const GOOD: Duration = Duration::from_secs(60);

/// Sends `lines` until `stopped`, then sends those that still wait.
pub async fn push(gateway: Gateway, mut lines: Lines, mut stopped: oneshot::Receiver<()>) {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let mut unsent = Vec::new();
    loop {
        let number = gateway.token_number();
        let began = Instant::now();
        let is_last = is_over(&mut stopped);
        match stream(&gateway, &mut lines, &mut unsent, &mut stopped).await {
            Ok(()) => return,
            Err(error) if error.is_unauthenticated() => {
                // If the source has no newer token, nothing else helps.
                let _ = gateway.authenticate_again(number).await;
            }
            Err(_) => {}
        }
        if is_last {
            return;
        }
        if began.elapsed() >= GOOD {
            backoff.reset();
        }
        if !is_over(&mut stopped) {
            tokio::select! {
                () = tokio::time::sleep(backoff.next_wait()) => {}
                // The lines that wait are tried once more.
                _ = &mut stopped => {}
            }
        }
    }
}

/// Returns true once the sender of `stopped` has sent or has been dropped.
fn is_over(stopped: &mut oneshot::Receiver<()>) -> bool {
    stopped.is_terminated()
        || !matches!(stopped.try_recv(), Err(oneshot::error::TryRecvError::Empty))
}

/// Sends lines in one stream until it breaks, or until `stopped` and all are sent. Puts a batch
/// that may not have arrived back into `unsent`.
async fn stream(
    gateway: &Gateway,
    lines: &mut Lines,
    unsent: &mut Vec<LogLine>,
    stopped: &mut oneshot::Receiver<()>,
) -> Result<(), CallError> {
    let (sender, batches) = mpsc::channel(1);
    let mut call = std::pin::pin!(gateway.push_logs(batches));
    let mut last = Vec::new();
    let broken = |ended: Result<(), CallError>, last: Vec<LogLine>, unsent: &mut Vec<LogLine>| {
        unsent.splice(..0, last);
        ended.and_then(|()| Err(CallError::broken("PushSandboxLogs")))
    };
    loop {
        let is_stopped = tokio::select! {
            ended = &mut call => return broken(ended, last, unsent),
            is_stopped = collect(lines, unsent, stopped) => is_stopped,
        };
        if let dropped @ 1.. = lines.dropped.swap(0, Ordering::Relaxed) {
            let message =
                format!("{dropped} log lines were dropped: the gateway takes them too slowly");
            let note = unsent.last().map(|last| last.note(&message));
            unsent.extend(note);
        }
        if !unsent.is_empty() {
            let room = tokio::select! {
                ended = &mut call => return broken(ended, last, unsent),
                room = sender.reserve() => room,
            };
            let Ok(room) = room else {
                return broken(Ok(()), last, unsent);
            };
            // There was room, so the batch before this one has been taken out of the channel.
            last = std::mem::take(unsent);
            room.send(request(gateway, last.clone()));
        }
        if is_stopped && lines.lines.is_empty() {
            drop(sender);
            let ended = call.await;
            return if ended.is_ok() {
                ended
            } else {
                broken(ended, last, unsent)
            };
        }
    }
}

/// Collects a batch; returns true once `stopped`.
async fn collect(
    lines: &mut Lines,
    batch: &mut Vec<LogLine>,
    stopped: &mut oneshot::Receiver<()>,
) -> bool {
    let mut is_stopped = is_over(stopped);
    if batch.is_empty() && !is_stopped {
        tokio::select! {
            biased;
            line = lines.lines.recv() => batch.extend(line),
            _ = &mut *stopped => is_stopped = true,
        }
    }
    let deadline = Instant::now() + BATCH.1;
    loop {
        while batch.len() < BATCH.0
            && let Ok(line) = lines.lines.try_recv()
        {
            batch.push(line);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if is_stopped || batch.len() >= BATCH.0 || left.is_zero() {
            break;
        }
        is_stopped = timeout(left.min(PAUSE), &mut *stopped).await.is_ok();
    }
    is_stopped
}

fn request(gateway: &Gateway, lines: Vec<LogLine>) -> PushSandboxLogsRequest {
    let id: Arc<str> = gateway.id().into();
    let logs = lines.into_iter().map(|line| line.of(&id)).collect();
    PushSandboxLogsRequest {
        sandbox_id: gateway.id().to_owned(),
        logs,
    }
}
