//! Log lines for people and for audit, on standard error and in a dated file. Standard output is the workload's.

mod fields;
mod file;
mod layer;
mod queue;
mod shorthand;
mod sink;
mod spans;
mod stderr;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use openshell_proxy::record::AUDIT;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

use crate::text::printable;
use file::LogFile;
use layer::LogLayer;
use sink::Sink;
use stderr::StandardError;

/// Settings of the log.
pub(crate) struct Options<'o> {
    /// Folder of the log files.
    pub(crate) directory: &'o Path,
    /// The most verbose level that standard error shows.
    pub(crate) level: Level,
    /// Name of the sandbox, the last word of every line.
    pub(crate) sandbox: &'o str,
}

/// The log, once it has started.
static LOG: OnceLock<Log> = OnceLock::new();

/// Longest wait for a sink at the end.
const FINISH: Duration = Duration::from_secs(1);

struct Log {
    /// All destinations, standard error among them.
    sinks: Vec<Arc<dyn Sink>>,
    stderr: Arc<StandardError>,
}

/// Sends everything that is traced from now on to the log file and to standard error. A folder that cannot be written is
/// reported, and leaves standard error.
///
/// # Errors
/// Logging was started before, or a thread cannot be started.
pub(crate) fn start(options: &Options<'_>) -> anyhow::Result<()> {
    let mut sinks: Vec<Arc<dyn Sink>> = Vec::new();
    let problem = match LogFile::open(options.directory, print_stderr) {
        Ok(file) => {
            sinks.push(Arc::new(file.start()?));
            None
        }
        Err(error) => Some(error),
    };
    let stderr = Arc::new(StandardError::start(options.level)?);
    sinks.push(Arc::clone(&stderr) as _);
    let layer = LogLayer::new(sinks.clone(), options.sandbox.to_owned());
    LOG.set(Log { sinks, stderr }).map_err(|_| anyhow!("logging was started before"))?;
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).context("logging was started before")?;
    if let Some(error) = problem {
        let folder = options.directory.display();
        tracing::warn!("no log file: {folder} cannot be written ({error}); lines go to standard error alone");
    }
    Ok(())
}

/// Prints a message on standard error, even before logging has started.
pub(crate) fn print_stderr(text: &str) {
    match LOG.get() {
        Some(log) => log.stderr.print(text),
        None => stderr::print_unqueued(text),
    }
}

/// Prints a line on standard output, for a subcommand that runs nothing.
pub(crate) fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", printable(line));
}

/// Holds back lines on standard error, if that is a terminal, until [`release`]: the command draws on it.
pub(crate) fn hold() {
    if let Some(log) = LOG.get() {
        log.stderr.hold(FINISH);
    }
}

/// Shows how many lines were held back, and the last of them.
pub(crate) fn release() {
    if let Some(log) = LOG.get() {
        log.stderr.release();
    }
}

/// Waits until all lines are written, as far as the sinks take them.
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        log.sinks.iter().for_each(|sink| sink.flush(FINISH));
    }
}

/// Logs an event about the sandbox itself, such as a policy loaded or a restriction enforced.
pub(crate) fn config_event(state: &'static str, severity: &'static str, message: &str) {
    tracing::info!(target: AUDIT, class = "CONFIG", activity = state, severity, "{message}");
}

/// Logs the sandbox's own start or end.
pub(crate) fn lifecycle_event(activity: &'static str, severity: &'static str, message: &str) {
    tracing::info!(target: AUDIT, class = "LIFECYCLE", activity, severity, "openshell-sandbox {message}");
}

/// Logs an event about the command.
pub(crate) fn process_event(process: &ProcessEvent<'_>, message: &str) {
    let ProcessEvent { activity, severity, name, pid, exit, cmd, reason } = process;
    tracing::info!(target: AUDIT, class = "PROC", activity, severity, binary = name, pid, exit, cmd, reason, "{message}");
}

/// Fields of an event about a process.
pub(crate) struct ProcessEvent<'e> {
    pub(crate) activity: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) name: &'e str,
    pub(crate) pid: i32,
    pub(crate) exit: Option<i32>,
    pub(crate) cmd: Option<&'e str>,
    /// Cause of an end that is not the command's own.
    pub(crate) reason: Option<&'e str>,
}
