//! The main process of a sandbox, as clients attach to it: its last output, its keyboard, its end.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openshell_supervisor::command::pty::{self, Size};
use openshell_supervisor::command::streams::retained::{Output, Piece, Retained};
use openshell_supervisor::init::launch::Running;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::timeout;

/// The main process. Its output is kept from its start on.
pub struct MainProcess {
    retained: Mutex<Retained>,
    /// Wakes the readers of `retained`.
    written: watch::Sender<()>,
    /// Master of its terminal, if it has one of its own.
    terminal: OnceLock<OwnedFd>,
    running: OnceLock<Arc<Running>>,
    /// Its exit code, once it has ended and everything that it wrote is in `retained`.
    ended: watch::Sender<Option<u8>>,
    /// Clients that are attached.
    attached: watch::Sender<usize>,
    has_keyboard_owner: AtomicBool,
}

impl Default for MainProcess {
    fn default() -> Self {
        Self {
            retained: Mutex::default(),
            written: watch::Sender::new(()),
            terminal: OnceLock::new(),
            running: OnceLock::new(),
            ended: watch::Sender::new(None),
            attached: watch::Sender::new(0),
            has_keyboard_owner: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for MainProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MainProcess")
            .field("attached", &*self.attached.borrow())
            .finish_non_exhaustive()
    }
}

impl MainProcess {
    /// Keeps `bytes`, which it wrote to `output`. Does not block.
    pub fn append(&self, output: Output, bytes: &[u8]) {
        self.lock().append(output, bytes);
        self.written.send_replace(());
    }

    /// Sets the master of its terminal.
    pub fn set_terminal(&self, master: OwnedFd) {
        // It has one at most.
        let _ = self.terminal.set(master);
    }

    /// Sets the process, once it runs.
    pub fn set_running(&self, running: Arc<Running>) {
        let _ = self.running.set(running);
    }

    /// Tells clients of its end, and waits until they have everything, for `patience` at most.
    pub async fn end(&self, code: u8, patience: Duration) {
        self.ended.send_replace(Some(code));
        let mut attached = self.attached.subscribe();
        // The sender lives as long as this.
        let _ = timeout(patience, attached.wait_for(|count| *count == 0)).await;
    }

    /// Attaches a client; with the keyboard, unless it wants to read only or another one has it.
    pub(crate) fn attach(self: &Arc<Self>, is_read_only: bool) -> Attached {
        let has_keyboard = !is_read_only
            && self.terminal.get().is_some()
            && !self.has_keyboard_owner.swap(true, Ordering::AcqRel);
        self.attached.send_modify(|count| *count += 1);
        Attached {
            process: Arc::clone(self),
            position: 0,
            written: self.written.subscribe(),
            ended: self.ended.subscribe(),
            has_keyboard,
        }
    }

    /// A panic elsewhere cannot leave the output half changed.
    fn lock(&self) -> MutexGuard<'_, Retained> {
        self.retained.lock()
    }
}

/// A client's place in the output, and its keyboard if it has it.
pub(crate) struct Attached {
    process: Arc<MainProcess>,
    position: u64,
    written: watch::Receiver<()>,
    ended: watch::Receiver<Option<u8>>,
    pub(crate) has_keyboard: bool,
}

/// An event of the main process for a client.
pub(crate) enum Happened {
    Wrote(Piece),
    Ended(u8),
}

impl Attached {
    /// Waits for the next output, or for the end behind all of it. Safe to be cancelled.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            // Seen before the output is looked at, as is an end: nothing is written behind it.
            self.written.borrow_and_update();
            let ended = *self.ended.borrow_and_update();
            let piece = self.process.lock().read(self.position);
            if let Some(mut piece) = piece {
                // A new client has not missed what was dropped before.
                if self.position == 0 {
                    piece.lost = 0;
                }
                self.position = piece.next;
                return Happened::Wrote(piece);
            }
            if let Some(code) = ended {
                return Happened::Ended(code);
            }
            tokio::select! {
                _ = self.written.changed() => {}
                _ = self.ended.changed() => {}
            }
        }
    }

    /// Returns the place where its input goes, if this client has the keyboard.
    pub(crate) fn keyboard(&self) -> Option<pipe::Sender> {
        let master = self.process.terminal.get().filter(|_| self.has_keyboard)?;
        pipe::Sender::from_owned_fd_unchecked(master.try_clone().ok()?).ok()
    }

    /// Sends a signal to its process group.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(running) = self.process.running.get() {
            // It may have ended.
            let _ = running.signal(signal);
        }
    }

    /// Changes the size of its terminal, if this client has the keyboard.
    pub(crate) fn resize(&self, size: Size) {
        if let Some(master) = self.process.terminal.get()
            && self.has_keyboard
        {
            let _ = pty::resize(master.as_fd(), size);
        }
    }
}

impl Attached {
    /// Leaves the keyboard to the next client.
    pub(crate) fn release_keyboard(&mut self) {
        if std::mem::take(&mut self.has_keyboard) {
            self.process
                .has_keyboard_owner
                .store(false, Ordering::Release);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.release_keyboard();
        self.process.attached.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use openshell_supervisor::command::streams::retained::Output;

    use super::{Happened, MainProcess};

    #[tokio::test(start_paused = true)]
    async fn clients_hear_everything_and_then_the_end_also_those_who_come_later() {
        let process: Arc<MainProcess> = Arc::default();
        process.append(Output::Standard, b"early ");
        let mut early = process.attach(false);
        assert!(!early.has_keyboard, "it has no terminal");
        process.append(Output::Error, b"late");
        let mut later = process.attach(true);
        let ending = Arc::clone(&process);
        let end = tokio::spawn(async move { ending.end(7, Duration::from_secs(60)).await });
        for client in [&mut early, &mut later] {
            let mut heard = Vec::new();
            loop {
                match client.next().await {
                    Happened::Wrote(piece) => heard.push((piece.output, piece.bytes)),
                    Happened::Ended(code) => break assert_eq!(code, 7),
                }
            }
            assert_eq!(
                heard,
                [
                    (Output::Standard, b"early ".to_vec()),
                    (Output::Error, b"late".to_vec())
                ]
            );
        }
        assert!(
            !end.is_finished(),
            "they have not told it to their clients yet"
        );
        drop((early, later));
        end.await.unwrap();
    }
}
