//! Lines for people and for audit: on standard error, and in a dated file. Standard output is the workload's.

mod file;
mod queue;
mod shorthand;

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use openshell_proxy::record::AUDIT;
use time::OffsetDateTime;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::config::Config;
use file::DatedFile;
use queue::{Line, Output, Priority, Queue};
use shorthand::Fields;
pub(crate) use shorthand::printable;

/// Sends everything that is traced from now on where `config` says. A log folder that cannot be written is said, and
/// standard error is what remains.
///
/// # Errors
/// Logging was started before.
pub(crate) fn start(config: &Config) -> anyhow::Result<()> {
    let file = DatedFile::open(&config.log_dir);
    let (file, problem) = match file {
        Ok(file) => (Some(Queue::new("log-file", file)?), None),
        Err(error) => (None, Some(error)),
    };
    let errors = Queue::new("log-errors", StandardError)?;
    let outputs = OUTPUTS.get_or_init(|| Outputs {
        file,
        errors,
        level: config.log_level,
        sandbox: config.sandbox.clone(),
        held: Mutex::default(),
    });
    let subscriber = tracing_subscriber::registry().with(outputs);
    tracing::subscriber::set_global_default(subscriber).context("logging was started before")?;
    if let Some(error) = problem {
        let folder = config.log_dir.display();
        tracing::warn!("no log file: {folder} cannot be written ({error}); lines go to standard error alone");
    }
    Ok(())
}

/// A line on standard error, even before logging has started.
pub(crate) fn say(text: &str) {
    let line = Line { made: OffsetDateTime::now_utc(), priority: Priority::State, text: text.to_owned() };
    match OUTPUTS.get() {
        Some(outputs) => outputs.show(line),
        None => StandardError.write(line, 0),
    }
}

/// A line on standard output, of a subcommand that runs nothing.
pub(crate) fn answer(line: &str) {
    let _ = writeln!(std::io::stdout(), "{}", printable(line));
}

/// Holds back lines on standard error, if that is a terminal, until [`release`]: the command draws on it.
pub(crate) fn hold() {
    if let Some(outputs) = OUTPUTS.get().filter(|_| std::io::stderr().is_terminal()) {
        *outputs.held() = Some(Held::default());
        // Earlier lines are written before the command starts to draw.
        outputs.errors.flush(FINISH);
    }
}

/// Shows how many lines were held back, and the last of them.
pub(crate) fn release() {
    let Some(outputs) = OUTPUTS.get() else { return };
    let Some(Held { count: count @ 1.., last }) = outputs.held().take() else { return };
    let which = if count > HELD as u64 { format!("; the last {HELD} of them") } else { String::new() };
    let lines = counted(count, "line", "lines");
    say(&format!("openshell-sandbox: {lines} held back while the command had the terminal{which}:"));
    last.into_iter().for_each(|line| outputs.errors.push(line));
}

/// A count with its noun: `1 warning`, `2 warnings`.
pub(crate) fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// Waits until all lines are written, as far as their outputs take them.
pub(crate) fn finish() {
    if let Some(outputs) = OUTPUTS.get() {
        outputs.file.iter().chain([&outputs.errors]).for_each(|queue| queue.flush(FINISH));
    }
}

/// Something about the sandbox itself: what was loaded, what is enforced.
pub(crate) fn config_event(state: &'static str, severity: &'static str, message: &str) {
    tracing::info!(target: AUDIT, class = "CONFIG", activity = state, severity, "{message}");
}

/// The sandbox's own start or end.
pub(crate) fn lifecycle_event(activity: &'static str, severity: &'static str, message: &str) {
    tracing::info!(target: AUDIT, class = "LIFECYCLE", activity, severity, "openshell-sandbox {message}");
}

/// Something about the command.
pub(crate) fn process_event(process: &ProcessEvent<'_>, message: &str) {
    let ProcessEvent { activity, severity, name, pid, exit, cmd, reason } = process;
    tracing::info!(target: AUDIT, class = "PROC", activity, severity, binary = name, pid, exit, cmd, reason, "{message}");
}

/// What a line about a process holds.
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

/// Where lines go, once logging has started.
static OUTPUTS: OnceLock<Outputs> = OnceLock::new();

/// How long the end waits for an output.
const FINISH: Duration = Duration::from_secs(1);

/// Lines that are shown of those held back; the log has all from `info` up.
const HELD: usize = 20;

/// Lines for standard error while the command has the terminal.
#[derive(Default)]
struct Held {
    count: u64,
    last: VecDeque<Line>,
}

/// Both outputs. The file takes everything from `info` up; standard error what `--log-level` asks for.
struct Outputs {
    file: Option<Queue>,
    errors: Queue,
    level: Level,
    /// Ends every line.
    sandbox: String,
    /// `None` while lines are shown as they come.
    held: Mutex<Option<Held>>,
}

impl Outputs {
    /// Whole at every moment, so that a panic elsewhere does not matter.
    fn held(&self) -> std::sync::MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line to standard error, or holds it back.
    fn show(&self, line: Line) {
        if let Some(held) = self.held().as_mut() {
            held.count += 1;
            held.last.push_back(line);
            if held.last.len() > HELD {
                held.last.pop_front();
            }
            return;
        }
        self.errors.push(line);
    }
}

struct StandardError;

impl Output for StandardError {
    fn write(&mut self, mut line: Line, left_out: u64) {
        if left_out > 0 {
            line.text = format!("{} left out\n{}", counted(left_out, "line", "lines"), line.text);
        }
        // Nobody may be listening; that keeps nothing from going on.
        let _ = writeln!(std::io::stderr(), "{}", line.text);
    }
}

impl<S: Subscriber> Layer<S> for &'static Outputs {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let target = metadata.target();
        // Of libraries what they warn of, but for this one: it warns of what clients do, which is an event of ours.
        let most = if target == AUDIT || target.starts_with("openshell") {
            Level::TRACE
        } else if target.starts_with("h2::") {
            Level::ERROR
        } else {
            Level::WARN
        };
        *metadata.level() <= self.level.max(Level::INFO).min(most)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let fields = Fields::of(event);
        let (target, level) = (event.metadata().target(), *event.metadata().level());
        let now = OffsetDateTime::now_utc();
        let text = shorthand::line(now, level, target, &fields, &self.sandbox);
        let priority = if target == AUDIT { fields.priority() } else { Priority::Ordinary };
        let line = |text| Line { made: now, priority, text };
        let file = self.file.as_ref().filter(|_| level <= Level::INFO);
        // An audit line is news at `info`, but what an operator must look at is a warning.
        let level = if target == AUDIT && fields.needs_attention() { Level::WARN } else { level };
        match (file, level <= self.level) {
            (Some(file), true) => {
                file.push(line(text.clone()));
                self.show(line(text));
            }
            (Some(file), false) => file.push(line(text)),
            (None, true) => self.show(line(text)),
            (None, false) => {}
        }
    }
}
