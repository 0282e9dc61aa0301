//! What the caller asks the program to do.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;
use openshell_telemetry::logging;

use crate::cli::{Args, parse_as};
use crate::subcommands::{Named, Subcommand};

/// A parsed command line.
pub(crate) enum Invocation {
    /// Runs a command.
    Run(Box<Args>),
    /// Does something else.
    Subcommand(Subcommand),
    /// Serves a client of the sandbox, confined like any other command.
    Internal {
        service: String,
        words: Vec<OsString>,
    },
    /// Help, the version or a usage error was printed; no action remains.
    Printed(ExitCode),
}

/// Subcommands that are also names of programs. If variables give the policy, so that a command
/// line needs no flag, these words mean the programs.
const PROGRAMS: &[&str] = &["diff", "ps", "cp"];

/// Parses the command line. Only the first word can be a subcommand, because any later word may
/// belong to the command. Usage errors exit with 1, because the command itself could exit with 2.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>, has_policy: bool) -> Invocation {
    let words: Vec<_> = words.into_iter().collect();
    let first = words.get(1).and_then(|word| word.to_str());
    let first = first.unwrap_or_default();
    if first == "--internal" {
        let service = words.get(2).and_then(|word| word.to_str());
        return Invocation::Internal {
            service: service.unwrap_or_default().to_owned(),
            words: words.into_iter().skip(3).collect(),
        };
    }
    // Most runs begin with a flag, so the subcommands need not be built.
    let is_word = !first.is_empty() && !first.starts_with('-');
    let is_program = has_policy && PROGRAMS.contains(&first);
    let is_subcommand = is_word && !is_program && Named::command().find_subcommand(first).is_some();
    let parsed = if is_subcommand {
        Subcommand::parse(words).map(Invocation::Subcommand)
    } else {
        parse_as(words.into_iter()).map(|args| Invocation::Run(Box::new(args)))
    };
    parsed.unwrap_or_else(|error| {
        let printed = error.print();
        // After a usage error the exit code still reports the failure.
        if !error.use_stderr() {
            logging::keep_output_failure(printed);
        }
        Invocation::Printed(ExitCode::from(u8::from(error.use_stderr())))
    })
}
