//! The forms of log lines.

use openshell_events::text::counted;
use serde_json::json;
use time::OffsetDateTime;
use tracing::Level;

use super::identity::{Label, RunIdentity};

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text for people and grep
    Text,
    /// A JSON object each: OCSF records, and diagnostics
    Json,
}

impl Form {
    /// Returns the part of a file's name before the day.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Text => "openshell.",
            Self::Json => "openshell-ocsf.",
        }
    }

    /// Returns `line` with a note that `left_out` lines are missing before it; `None` if it has no
    /// place for the note.
    pub(super) fn after(self, line: &str, left_out: u64) -> Option<String> {
        match self {
            Self::Text => {
                let (text, sandbox) = line.rsplit_once(' ')?;
                Some(format!(
                    "{text} [{} left out before] {sandbox}",
                    counted(left_out, "line", "lines")
                ))
            }
            Self::Json => Some(format!(
                "{{\"lines_left_out\":{left_out},{}",
                line.strip_prefix('{')?
            )),
        }
    }

    /// Returns a message of the supervisor to its operator as a line; in JSON it contains
    /// `identity`, once that is known.
    pub(super) fn message(
        self,
        level: Level,
        text: &str,
        identity: Option<&RunIdentity>,
    ) -> String {
        match self {
            Self::Text => text.to_owned(),
            Self::Json => diagnostic(
                OffsetDateTime::now_utc(),
                level.as_str(),
                "openshell_sandbox",
                text,
                identity,
            ),
        }
    }
}

/// Returns a diagnostic, or a message to the operator, as one line of JSON.
pub(super) fn diagnostic(
    made: OffsetDateTime,
    level: &str,
    target: &str,
    message: &str,
    identity: Option<&RunIdentity>,
) -> String {
    let time = i64::try_from(made.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    let mut record = json!({ "time": time, "level": level, "target": target, "message": message });
    if let Some(identity) = identity {
        record["sandbox"] = identity.sandbox().into();
        for Label { key, value } in identity.labels() {
            record["labels"][key] = value.as_str().into();
        }
    }
    record.to_string()
}
