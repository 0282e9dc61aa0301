//! `openshell-sandbox ps`: lists the sandboxes of this user on this host.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openshell_access::control::client::Found;
use openshell_access::control::wire::Description;
use openshell_events::text::printable;
use openshell_telemetry::logging::{print_line, print_stderr};

use crate::subcommands::exec::places;

/// Lists your running sandboxes.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0; 1 if a sandbox does not answer.

Example:
  openshell-sandbox ps --json")]
pub(crate) struct PsArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// The --run-dir that the sandboxes were started with
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// The headings of the columns.
const HEADS: [&str; 6] = ["NAME", "PID", "AGE", "POLICY", "CONNECTIONS", "COMMAND"];

/// Prints the running sandboxes.
///
/// # Errors
/// Fails if the run directory cannot be determined.
pub(crate) fn ps(args: &PsArgs) -> anyhow::Result<ExitCode> {
    let found = places(args.run_dir.as_deref())?.list();
    let mut described = Vec::new();
    let mut is_silent = false;
    for found in found {
        match found {
            Found::Described(description) => described.push(description),
            Found::Silent { folder, error } => {
                is_silent = true;
                print_stderr(&format!(
                    "openshell-sandbox: the sandbox of {} does not answer: {error}",
                    folder.display()
                ));
            }
        }
    }
    if args.json {
        print_line(&serde_json::to_string(&described)?);
    } else {
        print_table(&described);
    }
    Ok(ExitCode::from(u8::from(is_silent)))
}

fn print_table(sandboxes: &[Description]) {
    let rows: Vec<_> = std::iter::once(HEADS.map(str::to_owned))
        .chain(sandboxes.iter().map(row))
        .collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        print_line(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn row(of: &Description) -> [String; 6] {
    let started = UNIX_EPOCH + Duration::from_secs(of.started);
    let age = SystemTime::now()
        .duration_since(started)
        .unwrap_or_default()
        .as_secs();
    let command = printable(&of.command.join(" ")).into_owned();
    [
        of.name.clone(),
        of.pid.to_string(),
        age_text(age),
        of.generation.to_string(),
        of.connections.to_string(),
        command,
    ]
}

/// Returns an age in its two largest units.
fn age_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::age_text;

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m1s"),
            (3 * 3600 + 120, "3h2m"),
            (90_000, "1d1h"),
        ] {
            assert_eq!(age_text(seconds), text);
        }
    }
}
