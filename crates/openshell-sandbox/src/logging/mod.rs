//! Log lines for people and for audit, on standard error and in a dated file. Standard output is
//! the workload's.

mod fields;
mod file;
mod form;
mod identity;
mod json;
mod layer;
mod ocsf;
mod push;
mod queue;
mod shorthand;
mod sink;
mod spans;
mod stderr;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use openshell_events::event::{Audit, Configuration, Event, Finding, Lifecycle, Process};
use openshell_events::words::{
    Confidence, ConfigState, FindingActivity, LifecycleActivity, Severity,
};
use openshell_gateway::logs::Lines;
use openshell_supervisor::paths::own_folder::OwnFolder;
use tracing::Level;
use tracing_subscriber::layer::SubscriberExt;

use crate::text::{printable, printable_lines};
use file::LogFile;
pub(crate) use form::Form;
pub(crate) use identity::{Label, RunIdentity};
use json::JsonSink;
use layer::LogLayer;
use push::PushSink;
use shorthand::Content;
use sink::{LogEvent, Sink};
use stderr::StandardError;

/// Settings of the log.
pub(crate) struct Options<'o> {
    /// Folders for the log files, in order of preference; missing ones but the first are made. None
    /// for no file.
    pub(crate) directories: &'o [PathBuf],
    /// The most verbose level that standard error shows; `None` for no events.
    pub(crate) level: Option<Level>,
    /// True if standard error has messages for people in place of log lines.
    pub(crate) is_plain: bool,
    pub(crate) form: Form,
    /// The end of every line.
    pub(crate) identity: &'o RunIdentity,
    /// The most verbose level that a gateway gets; `None` without a gateway.
    pub(crate) push: Option<Level>,
}

/// A log that has started.
pub(crate) struct Started {
    /// The folder of the log file, if one can be written.
    pub(crate) folder: Option<PathBuf>,
    /// Lines for the gateway.
    pub(crate) lines: Option<Lines>,
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
/// queue for a gateway. If no folder can be written, that is reported, and leaves standard error.
///
/// # Errors
/// Logging was started before, or a thread cannot be started.
pub(crate) fn start(options: &Options<'_>) -> anyhow::Result<Started> {
    let mut sinks: Vec<Arc<dyn Sink>> = Vec::new();
    let (folder, problem) = match open_first(options.directories, options.form) {
        Ok(Some((file, folder))) => {
            sinks.push(Arc::new(file.start()?));
            (Some(folder), None)
        }
        Ok(None) => (None, None),
        Err(problem) if options.level.is_none() => {
            bail!("no log file: {problem}; see --log-dir and --log-to")
        }
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
    let (push, lines) = options.push.map(PushSink::new).unzip();
    sinks.extend(push.map(|push| Arc::new(push) as Arc<dyn Sink>));
    // A log of records needs no other file of them.
    let has_json = lines.is_some() && options.form == Form::Text;
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
    .map_err(|_| anyhow!("logging was started before"))?;
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).context("logging was started before")?;
    if let Some(problem) = problem {
        tracing::warn!("no log file: {problem}; lines go to standard error alone; see --log-dir");
    }
    Ok(Started {
        folder: path,
        lines,
    })
}

/// Opens the log file in the first of `folders` that can be written, if there are any; else
/// describes why none can.
fn open_first(folders: &[PathBuf], form: Form) -> Result<Option<(LogFile, OwnFolder)>, String> {
    if folders.is_empty() {
        return Ok(None);
    }
    let mut problems = Vec::new();
    for (index, folder) in folders.iter().enumerate() {
        let opened = if index > 0 {
            OwnFolder::make(folder, 0o700)
        } else {
            OwnFolder::open(folder)
        };
        let opened = opened.and_then(|folder| {
            Ok((
                LogFile::open(folder.try_clone()?, form, print_stderr)?,
                folder,
            ))
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
pub(crate) fn print_stderr(text: &str) {
    print_as(Level::WARN, text);
}

/// As [`print_stderr`], for the cause of a failure.
pub(crate) fn print_failure(text: &str) {
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
pub(crate) fn print_line(line: &str) {
    keep_output_failure(writeln!(io::stdout(), "{}", printable(line)));
}

/// Keeps the failure of a write to standard output, as what should have been printed is the result
/// of the program. A reader that has gone has seen enough.
pub(crate) fn keep_output_failure(written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = OUTPUT_FAILURE.set(error);
    }
}

/// The failure that was kept.
pub(crate) fn output_failure() -> Option<&'static io::Error> {
    OUTPUT_FAILURE.get()
}

/// Holds back lines on standard error, if that is a terminal, until [`release`]: the command draws
/// on it.
pub(crate) fn hold() {
    if let Some(log) = LOG.get() {
        log.stderr.hold(FINISH);
    }
}

/// Waits until earlier lines are on standard error, as the output of the command follows.
pub(crate) fn before_output() {
    if let Some(log) = LOG.get() {
        log.stderr.flush(BEFORE_OUTPUT);
    }
}

/// Shows how many lines were held back, and the last of them.
pub(crate) fn release() {
    if let Some(log) = LOG.get() {
        log.stderr.release();
    }
}

/// Has OCSF records written beside the log from now on, or no more.
pub(crate) fn enable_json(is_enabled: bool) {
    let Some(json) = LOG.get().and_then(|log| log.json.as_ref()) else {
        return;
    };
    if let Err(error) = json.enable(is_enabled) {
        tracing::warn!("OCSF records are not written: {error}");
    }
}

/// Returns how many lines no output took so far.
pub(crate) fn lines_left_out() -> u64 {
    queue::left_out()
}

/// Waits until all lines are written, as far as the sinks take them.
pub(crate) fn finish() {
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
pub(crate) fn config_event(state: ConfigState, severity: Severity, message: &str) {
    report(&Event::Configuration(Configuration {
        state,
        severity,
        message,
    }));
}

/// Logs a sign of misuse, which was kept from having an effect.
pub(crate) fn finding_event(title: &str, message: &str) {
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
pub(crate) fn lifecycle_event(activity: LifecycleActivity, severity: Severity, message: &str) {
    report(&Event::Lifecycle(Lifecycle {
        activity,
        severity,
        message,
    }));
}

/// Logs the start or end of a command.
pub(crate) fn process_event(process: Process<'_>) {
    report(&Event::Process(process));
}

/// The log as a receiver of the proxy's events.
#[derive(Debug)]
pub(crate) struct AuditLog;

impl Audit for AuditLog {
    fn event(&self, event: &Event<'_>) {
        report(event);
    }
}
