//! A line on the terminal about work that takes long.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use openshell_events::text::printable;

/// How long work may take without a line, and the time between two changes of the line.
const PATIENCE: Duration = Duration::from_secs(1);

/// True while a line is on the terminal.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Shows, while it lives, what is being done and for how long: on standard error, after a second,
/// if that is a terminal. Dropping it removes the line.
pub struct Progress {
    /// `None` if nothing is shown.
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts to count the time of the work that `what` names.
    #[must_use]
    pub fn start(what: &str) -> Self {
        if !stderr().is_terminal() {
            return Self { shown: None };
        }
        let what = printable(what).into_owned();
        let (ended, end) = channel::<()>();
        let began = Instant::now();
        let show = move || {
            while end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                IS_SHOWN.store(true, Ordering::Relaxed);
                let seconds = began.elapsed().as_secs();
                let _ = write!(stderr(), "\r{what}: {seconds} s");
            }
            remove();
        };
        // Without the line the work is the same.
        let thread = std::thread::Builder::new().spawn(show).ok();
        Self {
            shown: thread.map(|thread| (ended, thread)),
        }
    }
}

/// Removes the line, if there is one, because another follows. It comes again if the work goes on.
pub(super) fn remove() {
    if IS_SHOWN.swap(false, Ordering::Relaxed) {
        // CSI K, erase in line (ECMA-48).
        let _ = write!(stderr(), "\r\x1b[K");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((ended, thread)) = self.shown.take() {
            drop(ended);
            let _ = thread.join();
        }
    }
}
