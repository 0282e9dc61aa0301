//! Log lines for people and for audit: on standard error, in a dated file, and for a gateway.
//! Standard output belongs to the workload.

mod fields;
mod file;
mod folder;
mod form;
mod identity;
mod json;
mod layer;
mod ocsf;
pub mod progress;
mod push;
mod queue;
#[cfg(test)]
mod renderings_tests;
mod shorthand;
mod sink;
mod spans;
mod stderr;
mod tone;
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
pub use tone::{Tone, set_colours};

/// Settings of the log.
pub struct Options<'o> {
    /// Folders for the log files, in order of preference. None for no file.
    pub directories: &'o [PathBuf],
    /// Opens one of the folders. If it is missing, it is created only if the flag is true; the flag
    /// is false for the first folder.
    pub open: fn(&Path, bool) -> io::Result<Folder>,
    /// The most verbose level that standard error shows; `None` for no events.
    pub level: Option<Level>,
    /// True if standard error shows messages for people instead of log lines.
    pub is_plain: bool,
    /// The form of the lines.
    pub form: Form,
    /// The sandbox's name and labels, which end every line.
    pub identity: &'o RunIdentity,
    /// The most verbose level that a gateway gets, and the queue for it; `None` without a gateway.
    pub push: Option<(Level, Arc<dyn LineQueue>)>,
}

/// Why the log cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No folder can be written to, and standard error shows no lines.
    #[error(
        "cannot write a log file in {0}; name another folder with --log-dir, or use --log-to stderr"
    )]
    NoFile(String),
    /// The thread that writes the file cannot be started.
    #[error(transparent)]
    Thread(#[from] io::Error),
    /// Logging was started before.
    #[error("logging was started before")]
    Again,
}

/// The log, once it has started.
static LOG: OnceLock<Log> = OnceLock::new();

/// How long the start of the command waits for standard error.
const BEFORE_OUTPUT: Duration = Duration::from_millis(50);

/// How long the end waits for each sink.
const FINISH: Duration = Duration::from_secs(1);

struct Log {
    /// All destinations, standard error among them.
    sinks: Vec<Arc<dyn Sink>>,
    stderr: Arc<StandardError>,
    /// The file of OCSF records, which a gateway can enable. `None` without a gateway or a log
    /// file, or if the log itself consists of records.
    json: Option<Arc<JsonSink>>,
    /// The end of every line.
    identity: RunIdentity,
}

/// Starts the log: all events and diagnostics go to the log file, to standard error, and into the
/// queue for a gateway. Returns the folder of the log file. If no folder can be written to, this is
/// reported, and lines go only to standard error.
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
    // Without a file, standard error is the whole log.
    let stderr = Arc::new(if options.is_plain && problem.is_none() {
        stderr.for_people()
    } else {
        stderr
    });
    sinks.push(Arc::clone(&stderr) as _);
    if let Some((level, queue)) = &options.push {
        sinks.push(Arc::new(PushSink::new(*level, Arc::clone(queue))));
    }
    // A log that consists of records needs no second file of records.
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
        tracing::warn!(
            "cannot write a log file in {problem}; lines go only to standard error; name another \
             folder with --log-dir"
        );
    }
    Ok(path)
}

/// Opens the log file in the first folder that can be written to; `None` if no folder is given. An
/// error says why no folder can be written to.
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
            Err(error) => problems.push(format!("{} ({error})", folder.display())),
        }
    }
    Err(problems.join(", "))
}

/// Prints a message on standard error, even before logging has started.
pub fn print_stderr(text: &str) {
    print_as(Level::WARN, Tone::Plain, text);
}

/// Does the same as [`print_stderr`], for a text of the given tone.
pub fn print_toned(tone: Tone, text: &str) {
    print_as(Level::WARN, tone, text);
}

/// Does the same as [`print_stderr`], for the cause of a failure.
pub fn print_failure(text: &str) {
    print_as(Level::ERROR, Tone::Refusal, text);
}

fn print_as(level: Level, tone: Tone, text: &str) {
    // The command chooses names of files and programs.
    let text = printable_lines(text);
    progress::remove();
    match LOG.get() {
        Some(log) => log.stderr.print(level, tone, &text),
        None => stderr::print_unqueued(&tone.paint(&text, &io::stderr())),
    }
}

/// The first error of a write to standard output.
static OUTPUT_FAILURE: OnceLock<io::Error> = OnceLock::new();

/// Prints a line on standard output, for a subcommand that runs nothing.
pub fn print_line(line: &str) {
    print_toned_line(Tone::Plain, line);
}

/// Does the same as [`print_line`], for a line of the given tone.
pub fn print_toned_line(tone: Tone, line: &str) {
    let mut output = io::stdout();
    let line = printable(line);
    let line = tone.paint(&line, &output);
    keep_output_failure(writeln!(output, "{line}"));
}

/// Keeps the error of a write to standard output, because the output is the result of the program.
/// A broken pipe is not kept: its reader has seen enough.
pub fn keep_output_failure(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = OUTPUT_FAILURE.set(error);
    }
}

/// Returns the error that was kept.
pub fn output_failure() -> Option<&'static io::Error> {
    OUTPUT_FAILURE.get()
}

/// Holds back lines on standard error until [`release`], if that is a terminal, because the command
/// draws on it.
pub fn hold() {
    if let Some(log) = LOG.get() {
        log.stderr.hold(FINISH);
    }
}

/// Waits until earlier lines are on standard error, because the output of the command follows.
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

/// Starts or stops writing OCSF records to a file beside the log.
pub fn enable_json(is_enabled: bool) {
    let Some(json) = LOG.get().and_then(|log| log.json.as_ref()) else {
        return;
    };
    if let Err(error) = json.enable(is_enabled) {
        tracing::warn!("cannot write OCSF records: {error}");
    }
}

/// Returns how many lines were lost so far because no output took them.
pub fn lines_left_out() -> u64 {
    queue::left_out()
}

/// Waits until the sinks have written all lines, for at most a second each.
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
        line: None,
    }));
}

/// Does the same as [`config_event`], for an event about the version `policy` of the policy.
pub fn policy_event(state: ConfigState, severity: Severity, message: &str, policy: PolicyId<'_>) {
    report(&Event::Configuration(Configuration {
        state,
        severity,
        message,
        policy: Some(policy),
        line: None,
    }));
}

/// Logs a sign of misuse that was blocked.
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

/// The log, as a receiver of the proxy's events.
#[derive(Debug)]
pub struct AuditLog;

impl Audit for AuditLog {
    fn event(&self, event: &Event<'_>) {
        report(event);
    }
}
