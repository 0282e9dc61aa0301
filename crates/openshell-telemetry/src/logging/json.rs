//! The file of OCSF records beside the log, which is written while a gateway enables it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Level;

use super::file::LogFile;
use super::folder::Folder;
use super::form::Form;
use super::queue::Queue;
use super::shorthand::Content;
use super::sink::{LogEvent, Sink};

/// The file as a sink, which takes audit events while it is enabled.
pub(super) struct JsonSink {
    folder: Folder,
    report: fn(&str),
    is_enabled: AtomicBool,
    queue: OnceLock<Queue>,
}

impl JsonSink {
    /// Creates a sink that writes into `folder` once it is enabled. The first failed write is
    /// reported to `report`.
    pub(super) fn new(folder: Folder, report: fn(&str)) -> Self {
        Self {
            folder,
            report,
            is_enabled: AtomicBool::new(false),
            queue: OnceLock::new(),
        }
    }

    /// Starts or stops writing events.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread that writes it cannot be started.
    pub(super) fn enable(&self, is_enabled: bool) -> io::Result<()> {
        if is_enabled && self.queue.get().is_none() {
            let file = LogFile::open(self.folder.clone(), Form::Json, self.report)?;
            let queue = self.queue.get_or_init(|| Queue::new("log-json", file));
            if !queue.start() {
                return Err(io::Error::other(
                    "cannot start the thread that writes them; raise the limit of processes \
                     (pids.max, ulimit -u)",
                ));
            }
        }
        self.is_enabled.store(is_enabled, Ordering::Relaxed);
        Ok(())
    }
}

impl Sink for JsonSink {
    fn max_level(&self) -> Level {
        Level::ERROR
    }

    fn take(&self, event: &LogEvent<'_>) {
        let Some(queue) = self
            .queue
            .get()
            .filter(|_| self.is_enabled.load(Ordering::Relaxed))
        else {
            return;
        };
        if matches!(event.content(), Content::Audit(_)) {
            queue.push(event.line(Form::Json));
        }
    }

    fn flush(&self, patience: Duration) {
        if let Some(queue) = self.queue.get() {
            queue.flush(patience);
        }
    }
}
