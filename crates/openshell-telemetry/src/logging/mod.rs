//! Log lines for people and for audit, on standard error and in a dated file. Standard output is
//! the workload's.

mod fields;
mod file;
mod folder;
mod form;
mod identity;
mod json;
mod layer;
mod ocsf;
mod push;
mod queue;
#[cfg(test)]
mod renderings;
mod shorthand;
mod sink;
mod spans;
mod stderr;
mod word;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use openshell_events::event::{Audit, Configuration, Event, Finding, Lifecycle, PolicyId, Process};
use openshell_events::lines::LineQueue;
use openshell_events::text::{printable, printable_lines};
use openshell_events::words::{
    Confidence, ConfigState, FindingActivity, LifecycleActivity, Severity,
};
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

use file::LogFile;
pub use folder::Folder;
pub use form::Form;
pub use identity::{Label, RunIdentity};
use json::JsonSink;
use layer::LogLayer;
use push::PushSink;
use shorthand::Content;
use sink::{LogEvent, Sink};
use stderr::StandardError;

/// Settings of the log.
pub struct Options<'o> {
    /// Folders for the log files, in order of preference. None for no file.
    pub directories: &'o [PathBuf],
    /// Opens one of the folders; the first is not made where it is missing (false), the others are.
    pub open: fn(&Path, bool) -> io::Result<Folder>,
    /// The most verbose level that standard error shows; `None` for no events.
    pub level: Option<Level>,
    /// True if standard error has messages for people in place of log lines.
    pub is_plain: bool,
    /// The form of the lines.
    pub form: Form,
    /// The end of every line.
    pub identity: &'o RunIdentity,
    /// The most verbose level that a gateway gets, and its queue; `None` without a gateway.
    pub push: Option<(Level, Arc<dyn LineQueue>)>,
}

/// Why the log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// None of the folders can be written, and lines are to go nowhere else.
    #[error("no log file: {0}; see --log-dir and --log-to")]
    NoFile(String),
    /// The thread that writes cannot be started.
    #[error(transparent)]
    Thread(#[from] io::Error),
    /// It was started before.
    #[error("logging was started before")]
    Again,
}

/// The log, once it has started.
static LOG: OnceLock<Log> = OnceLock::new();

/// Longest wait for standard error before the command starts.
const BEFORE_OUTPUT: Duration = Duration::from_millis(50);

/// Longest wait for a sink at the end.
const FINISH: Duration = Duration::from_secs(1);

struct Log {
    /// All destinations, standard error among them.
    sinks: Vec<Arc<dyn Sink>>,
    stderr: Arc<StandardError>,
    /// Records for a gateway's operator; `None` without a gateway, or without a log file.
    json: Option<Arc<JsonSink>>,
    /// Ends every line.
    identity: RunIdentity,
}

/// Sends all events and diagnostics from now on to the log file, to standard error, and into the
/// queue for a gateway. Returns the folder of the log file. If no folder can be written, that is
/// reported, and leaves standard error.
///
/// # Errors
/// Logging was started before, a thread cannot be started, or there is neither a file nor standard
/// error to write to.
pub fn start(options: &Options<'_>) -> Result<Option<PathBuf>, StartError> {
    let mut sinks: Vec<Arc<dyn Sink>> = Vec::new();
    let (folder, problem) = match open_first(options) {
        Ok(Some((file, folder))) => {
            sinks.push(Arc::new(file.start()?));
            (Some(folder), None)
        }
        Ok(None) => (None, None),
        Err(problem) if options.level.is_none() => return Err(StartError::NoFile(problem)),
        Err(problem) => (None, Some(problem)),
    };
    let stderr = StandardError::new(options.level, options.form, options.identity.clone());
    // Without the file it is all the log that there is.
    let stderr = Arc::new(if options.is_plain && problem.is_none() {
        stderr.for_people()
    } else {
        stderr
    });
    sinks.push(Arc::clone(&stderr) as _);
    if let Some((level, queue)) = &options.push {
        sinks.push(Arc::new(PushSink::new(*level, Arc::clone(queue))));
    }
    // A log of records needs no other file of them.
    let has_json = options.push.is_some() && options.form == Form::Text;
    let path = folder.as_ref().map(|folder| folder.path().to_owned());
    let json = folder
        .filter(|_| has_json)
        .map(|folder| Arc::new(JsonSink::new(folder, print_stderr)));
    sinks.extend(json.clone().map(|json| json as Arc<dyn Sink>));
    let layer = LogLayer::new(sinks.clone(), options.identity.clone());
    LOG.set(Log {
        sinks,
        stderr,
        json,
        identity: options.identity.clone(),
    })
    .map_err(|_| StartError::Again)?;
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| StartError::Again)?;
    if let Some(problem) = problem {
        tracing::warn!("no log file: {problem}; lines go to standard error alone; see --log-dir");
    }
    Ok(path)
}

/// Opens the log file in the first of the folders that can be written, if there are any; else
/// describes why none can.
fn open_first(options: &Options<'_>) -> Result<Option<(LogFile, Folder)>, String> {
    if options.directories.is_empty() {
        return Ok(None);
    }
    let mut problems = Vec::new();
    for (index, folder) in options.directories.iter().enumerate() {
        let opened = (options.open)(folder, index > 0).and_then(|folder| {
            let file = LogFile::open(folder.clone(), options.form, print_stderr)?;
            Ok((file, folder))
        });
        match opened {
            Ok(opened) => return Ok(Some(opened)),
            Err(error) => {
                problems.push(format!("{} cannot be written ({error})", folder.display()))
            }
        }
    }
    Err(problems.join(", "))
}

/// Prints a message on standard error, even before logging has started.
pub fn print_stderr(text: &str) {
    print_as(Level::WARN, text);
}

/// As [`print_stderr`], for the cause of a failure.
pub fn print_failure(text: &str) {
    print_as(Level::ERROR, text);
}

fn print_as(level: Level, text: &str) {
    // Names of files and of programs come from the command.
    let text = printable_lines(text);
    match LOG.get() {
        Some(log) => log.stderr.print(level, &text),
        None => stderr::print_unqueued(&text),
    }
}

/// The first failure of standard output.
static OUTPUT_FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Prints a line on standard output, for a subcommand that runs nothing.
pub fn print_line(line: &str) {
    keep_output_failure(writeln!(io::stdout(), "{}", printable(line)));
}

/// Keeps the failure of a write to standard output, as what should have been printed is the result
/// of the program. A reader that has gone has seen enough.
pub fn keep_output_failure(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = OUTPUT_FAILURE.set(error);
    }
}

/// The failure that was kept.
pub fn output_failure() -> Option<&'static io::Error> {
    OUTPUT_FAILURE.get()
}

/// Holds back lines on standard error, if that is a terminal, until [`release`]: the command draws
/// on it.
pub fn hold() {
    if let Some(log) = LOG.get() {
        log.stderr.hold(FINISH);
    }
}

/// Waits until earlier lines are on standard error, as the output of the command follows.
pub fn before_output() {
    if let Some(log) = LOG.get() {
        log.stderr.flush(BEFORE_OUTPUT);
    }
}

/// Shows how many lines were held back, and the last of them.
pub fn release() {
    if let Some(log) = LOG.get() {
        log.stderr.release();
    }
}

/// Has OCSF records written beside the log from now on, or no more.
pub fn enable_json(is_enabled: bool) {
    let Some(json) = LOG.get().and_then(|log| log.json.as_ref()) else {
        return;
    };
    if let Err(error) = json.enable(is_enabled) {
        tracing::warn!("OCSF records are not written: {error}");
    }
}

/// Returns how many lines no output took so far.
pub fn lines_left_out() -> u64 {
    queue::left_out()
}

/// Waits until all lines are written, as far as the sinks take them.
pub fn finish() {
    if let Some(log) = LOG.get() {
        for sink in &log.sinks {
            sink.flush(FINISH);
        }
    }
}

/// Logs `event`, once logging has started.
fn report(event: &Event<'_>) {
    if let Some(log) = LOG.get() {
        let event = LogEvent::new(Content::Audit(event), &log.identity);
        for sink in &log.sinks {
            sink.take(&event);
        }
    }
}

/// Logs an event about the sandbox itself, such as a policy loaded or a restriction enforced.
pub fn config_event(state: ConfigState, severity: Severity, message: &str) {
    report(&Event::Configuration(Configuration {
        state,
        severity,
        message,
        policy: None,
    }));
}

/// As [`config_event`], about the version `policy` of the policy.
pub fn policy_event(state: ConfigState, severity: Severity, message: &str, policy: PolicyId<'_>) {
    report(&Event::Configuration(Configuration {
        state,
        severity,
        message,
        policy: Some(policy),
    }));
}

/// Logs a sign of misuse, which was kept from having an effect.
pub fn finding_event(title: &str, message: &str) {
    let activity = FindingActivity::Blocked;
    let severity = Severity::High;
    let confidence = Confidence::High;
    report(&Event::Finding(Finding {
        activity,
        severity,
        title,
        confidence,
        message,
    }));
}

/// Logs the sandbox's own start or end.
pub fn lifecycle_event(activity: LifecycleActivity, severity: Severity, message: &str) {
    report(&Event::Lifecycle(Lifecycle {
        activity,
        severity,
        message,
    }));
}

/// Logs the start or end of a command.
pub fn process_event(process: Process<'_>) {
    report(&Event::Process(process));
}

/// The log as a receiver of the proxy's events.
#[derive(Debug)]
pub struct AuditLog;

impl Audit for AuditLog {
    fn event(&self, event: &Event<'_>) {
        report(event);
    }
}
