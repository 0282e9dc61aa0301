//! The main process of a sandbox as attached clients see it: its latest output, its keyboard, its
//! end.

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

/// The main process. Its output is kept from the start.
pub struct MainProcess {
    retained: Mutex<Retained>,
    /// Wakes the readers of `retained`.
    written: watch::Sender<()>,
    /// Master of the process's terminal, if it has one of its own.
    terminal: OnceLock<OwnedFd>,
    running: OnceLock<Arc<Running>>,
    /// The exit code, once the process has ended and all its output is in `retained`.
    ended: watch::Sender<Option<u8>>,
    /// Number of attached clients.
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
    /// Keeps `bytes`, which the process wrote to `output`. Does not block.
    pub fn append(&self, output: Output, bytes: &[u8]) {
        self.lock().append(output, bytes);
        self.written.send_replace(());
    }

    /// Sets the master of the process's terminal.
    pub fn set_terminal(&self, master: OwnedFd) {
        // The process has at most one terminal.
        let _ = self.terminal.set(master);
    }

    /// Sets the process once it is running.
    pub fn set_running(&self, running: Arc<Running>) {
        let _ = self.running.set(running);
    }

    /// Tells clients that the process has ended, and waits until they have received everything, but
    /// no longer than `patience`.
    pub async fn end(&self, code: u8, patience: Duration) {
        self.ended.send_replace(Some(code));
        let mut attached = self.attached.subscribe();
        // This cannot fail because `self` keeps the sender alive.
        let _ = timeout(patience, attached.wait_for(|count| *count == 0)).await;
    }

    /// Attaches a client. It gets the keyboard unless it only wants to read, another client has it,
    /// or the process has no terminal.
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

    /// Locks the output, which a panic elsewhere cannot leave half changed.
    fn lock(&self) -> MutexGuard<'_, Retained> {
        self.retained.lock()
    }
}

/// A client's position in the output, and whether it has the keyboard.
pub(crate) struct Attached {
    process: Arc<MainProcess>,
    position: u64,
    written: watch::Receiver<()>,
    ended: watch::Receiver<Option<u8>>,
    pub(crate) has_keyboard: bool,
}

/// Something that happened to the main process, for a client.
pub(crate) enum Happened {
    Wrote(Piece),
    Ended(u8),
}

impl Attached {
    /// Waits for the next output, or for the end after all output. May be cancelled without loss.
    pub(crate) async fn next(&mut self) -> Happened {
        loop {
            // Both are marked as seen before the output is read, so that nothing later is missed.
            // After the end, nothing more is written.
            self.written.borrow_and_update();
            let ended = *self.ended.borrow_and_update();
            let piece = self.process.lock().read(self.position);
            if let Some(mut piece) = piece {
                // What was dropped before a client attached does not count as lost for it.
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

    /// Returns a writer to the terminal's input, if this client has the keyboard.
    pub(crate) fn keyboard(&self) -> Option<pipe::Sender> {
        let master = self.process.terminal.get().filter(|_| self.has_keyboard)?;
        pipe::Sender::from_owned_fd_unchecked(master.try_clone().ok()?).ok()
    }

    /// Sends a signal to the process group of the main process.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(running) = self.process.running.get() {
            // The process may have ended.
            let _ = running.signal(signal);
        }
    }

    /// Changes the size of the process's terminal, if this client has the keyboard.
    pub(crate) fn resize(&self, size: Size) {
        if let Some(master) = self.process.terminal.get()
            && self.has_keyboard
        {
            let _ = pty::resize(master.as_fd(), size);
        }
    }
}

impl Attached {
    /// Gives the keyboard up, so that the next client can have it.
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
