//! What the program was called for.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;
use openshell_telemetry::logging;

use crate::cli::{Args, parse_as};
use crate::subcommands::{Named, Subcommand};

/// A parsed command line.
pub(crate) enum Invocation {
    /// Run a command.
    Run(Box<Args>),
    /// Do something else.
    Subcommand(Subcommand),
    /// Serve a client of the sandbox that is confined as any other command.
    Internal {
        service: String,
        words: Vec<OsString>,
    },
    /// Help, the version or a usage error was printed; no action remains.
    Printed(ExitCode),
}

/// Subcommands that are the programs of these names where variables give a policy, so that no flag
/// has to.
const PROGRAMS: &[&str] = &["diff", "ps", "cp"];

/// Parses the command line. Only the first word can be a subcommand, as any other may be the
/// command's. Usage errors exit with 1, as 2 could be the command's.
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
    // Most runs begin with a flag, for which nothing needs to be built.
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
        // Of a usage error the exit code still tells.
        if !error.use_stderr() {
            logging::keep_output_failure(printed);
        }
        Invocation::Printed(ExitCode::from(u8::from(error.use_stderr())))
    })
}
