//! Where log lines go, and in which form.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::identity::run_as;
use openshell_telemetry::logging::{Form, Label};
use tracing::Level;

use super::values::{path_of, variable_of};
use crate::cli::{self, Args, LogPlace};

/// The log of a run.
#[derive(Debug)]
pub(crate) struct LogOptions {
    pub(crate) level: Level,
    /// True if standard error shows messages for people instead of log lines.
    pub(crate) is_plain: bool,
    pub(crate) form: Form,
    /// True if standard error shows events.
    pub(crate) to_stderr: bool,
    /// The directory that holds the log, once it has started.
    pub(crate) dir: Option<PathBuf>,
    /// Directories for the log, in order of preference.
    pub(crate) dirs: Vec<PathBuf>,
    /// Labels of the run. The log takes them.
    pub(crate) labels: Vec<Label>,
    /// The most verbose level of the log lines that a gateway gets.
    pub(crate) push_level: Option<Level>,
    /// True if refused accesses to files are logged.
    pub(crate) files: bool,
}

/// Default directory of the log.
const LOG_DIR: &str = "/var/log";

impl LogOptions {
    /// Reads the options, and takes the labels out of `environment`. A flag wins over its variable.
    ///
    /// # Errors
    /// Fails if a level or a label is invalid.
    pub(super) fn read(
        args: &mut Args,
        environment: &mut Environment,
        is_launched: bool,
    ) -> anyhow::Result<Self> {
        let labels = labels(environment, std::mem::take(&mut args.label))?;
        let level = args
            .log_level
            .take()
            .map(OsString::from)
            .or_else(|| variable_of(environment, "OPENSHELL_LOG_LEVEL"));
        let usual = if args.log_to == LogPlace::Stderr {
            Level::INFO
        } else {
            Level::WARN
        };
        let form = Form::from(args.log_format);
        // Whoever asks for a level, or for no file, wants the lines of the log.
        let is_plain =
            level.is_none() && usual == Level::WARN && !is_launched && form == Form::Text;
        Ok(Self {
            level: level.map_or(Ok(usual), log_level)?,
            is_plain,
            form,
            to_stderr: args.log_to != LogPlace::File,
            dir: None,
            dirs: directories(args, environment),
            labels,
            push_level: None,
            files: args.log_files,
        })
    }
}

/// Returns the directories for log files, in order of preference.
fn directories(args: &mut Args, environment: &Environment) -> Vec<PathBuf> {
    if args.log_to == LogPlace::Stderr {
        return Vec::new();
    }
    if let Some(named) = args.log_dir.take() {
        return vec![named];
    }
    let state = path_of(environment, "XDG_STATE_HOME").filter(|state| state.is_absolute());
    let home = || {
        path_of(environment, "HOME")
            .filter(|home| home.is_absolute())
            .or_else(run_as::home_of_caller)
    };
    let state = state.or_else(|| home().map(|home| home.join(".local/state")));
    [PathBuf::from(LOG_DIR)]
        .into_iter()
        .chain(state.map(|state| state.join("openshell")))
        .collect()
}

/// The most labels of a run.
const LABELS: usize = 32;

/// Takes the labels of `OPENSHELL_LABELS`, and adds `flags`, which replace labels with the same
/// key.
///
/// # Errors
/// Fails if a label is invalid, or there are too many.
fn labels(environment: &mut Environment, flags: Vec<Label>) -> anyhow::Result<Vec<Label>> {
    let text = environment.take("OPENSHELL_LABELS").unwrap_or_default();
    let text = text
        .into_string()
        .map_err(|_| anyhow!("OPENSHELL_LABELS is not UTF-8"))?;
    let words = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let named = words.map(cli::label).collect::<Result<Vec<_>, _>>();
    let mut labels: Vec<Label> = Vec::new();
    for label in named
        .map_err(|error| anyhow!("OPENSHELL_LABELS: {error}"))?
        .into_iter()
        .chain(flags)
    {
        labels.retain(|other| other.key != label.key);
        labels.push(label);
    }
    if labels.len() > LABELS {
        bail!(
            "{} labels are too many: a run has at most {LABELS}; take some out of --label or \
             OPENSHELL_LABELS",
            labels.len()
        );
    }
    Ok(labels)
}

fn log_level(word: OsString) -> anyhow::Result<Level> {
    let known = word.to_str().and_then(|word| word.parse().ok());
    known.with_context(|| {
        format!(
            "log level {} is not one of error, warn, info, debug, trace",
            word.display()
        )
    })
}
