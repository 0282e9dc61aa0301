//! Lines for people and for audit: on standard error, and in a dated file. Standard output is the workload's.

mod file;
mod shorthand;

use std::io::Write;

use anyhow::Context as _;
use openshell_proxy::record::AUDIT;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::config::Config;
use file::DatedFile;
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
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(error)),
    };
    let output = Output { file, level: config.log_level };
    let subscriber = tracing_subscriber::registry().with(output);
    tracing::subscriber::set_global_default(subscriber).context("logging was started before")?;
    if let Some(error) = problem {
        let folder = config.log_dir.display();
        tracing::warn!("no log file: {folder} cannot be written ({error}); lines go to standard error alone");
    }
    Ok(())
}

/// A line on standard error, even before logging has started.
pub(crate) fn say(line: &str) {
    // Nobody may be listening; that keeps nothing from going on.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Something about the sandbox itself: what was loaded, what is enforced.
pub(crate) fn config_event(state: &'static str, severity: &'static str, message: &str) {
    tracing::info!(target: AUDIT, class = "CONFIG", activity = state, severity, "{message}");
}

/// Something about the command.
pub(crate) fn process_event(process: &ProcessEvent<'_>, message: &str) {
    let ProcessEvent { activity, severity, name, pid, exit, cmd } = process;
    tracing::info!(target: AUDIT, class = "PROC", activity, severity, binary = name, pid, exit, cmd, "{message}");
}

/// What a line about a process holds.
pub(crate) struct ProcessEvent<'e> {
    pub(crate) activity: &'static str,
    pub(crate) severity: &'static str,
    pub(crate) name: &'e str,
    pub(crate) pid: i32,
    pub(crate) exit: Option<i32>,
    pub(crate) cmd: Option<&'e str>,
}

/// Both outputs. The file takes everything from `info` up; standard error what `--log-level` asks for.
struct Output {
    file: Option<DatedFile>,
    level: Level,
}

impl<S: Subscriber> Layer<S> for Output {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        let is_ours = metadata.target() == AUDIT || metadata.target().starts_with("openshell");
        *metadata.level() <= self.level.max(Level::INFO) && (is_ours || *metadata.level() <= Level::WARN)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let fields = Fields::of(event);
        let (target, level) = (event.metadata().target(), *event.metadata().level());
        let now = time::OffsetDateTime::now_utc();
        let line = shorthand::line(now, level, target, &fields);
        if level <= Level::INFO
            && let Some(file) = &self.file
        {
            file.write(now, &line);
        }
        // An audit line is news at `info`, but what an operator must look at is a warning.
        let level = if target == AUDIT && fields.needs_attention() { Level::WARN } else { level };
        if level <= self.level {
            say(&line);
        }
    }
}
