//! `openshell-sandbox approvals`: shows what running sandboxes ask, and answers.

mod screen;
mod script;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use rustix::termios::isatty;

use crate::cli::values;

/// Shows what running sandboxes ask, and gives your answers. A sandbox asks if it was started with
/// --ask or --policy-local.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(override_usage = "openshell-sandbox approvals [OPTIONS] [NAME]
       openshell-sandbox approvals decide ID once|run|save|deny|deny_run [--line NUMBER] [--reason TEXT]
       openshell-sandbox approvals revoke GRANT [NAME]
       openshell-sandbox approvals unmute PROGRAM [NAME]")]
#[command(after_help = "\
`once` lets the oldest request go on as it was shown, `run` adds the line of policy until the \
sandbox ends, `save` also writes it to the policy's file, `deny` refuses, and `deny_run` also does not ask again. `revoke` takes back a line. \
`unmute` asks again for a program that was denied three times in a row.

Exit codes: 0; 1 for an error; 3 if a question or grant is gone, or is asked anew.

Examples:
  openshell-sandbox approvals --json
  openshell-sandbox approvals decide q-7f3kq2m5x0c9w4r8t1v6b3n2za once")]
pub(crate) struct ApprovalsArgs {
    /// Name or id of the sandbox [default: all of this user], or what to do and about what
    #[arg(value_name = "NAME")]
    pub(crate) words: Vec<String>,

    /// The line that permits it, counted from 1, the narrowest
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) line: Option<u8>,

    /// Why you deny it, for the program that has proposed it
    #[arg(long, value_name = "TEXT", value_parser = values::reason)]
    pub(crate) reason: Option<String>,

    /// Print the questions as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print what is asked from now on too, and what becomes of it
    #[arg(long, requires = "json")]
    pub(crate) follow: bool,

    /// The --run-dir that the sandboxes were started with
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// Lists or answers questions.
///
/// # Errors
/// Fails if no such sandbox runs, or if it asks nobody.
pub(crate) fn approvals(args: &ApprovalsArgs) -> anyhow::Result<ExitCode> {
    let run_dir = args.run_dir.as_deref();
    let words: Vec<_> = args.words.iter().map(String::as_str).collect();
    let (action, rest) = words.split_first().unwrap_or((&"", &[]));
    let is_answer = matches!(*action, "decide" | "revoke" | "unmute");
    if is_answer && args.json {
        bail!("--json lists the questions, and does not go with an answer");
    }
    if *action != "decide" && args.line.is_some() {
        bail!("--line goes with decide");
    }
    if args.reason.is_some() && !matches!(rest, [_, "deny" | "deny_run"]) {
        bail!("--reason goes with decide ID deny, or deny_run");
    }
    match (*action, rest) {
        ("decide", [id, decision]) => {
            let line = args.line.unwrap_or(1);
            let reason = args.reason.as_deref().unwrap_or_default();
            script::decide(run_dir, id, decision, line, reason)
        }
        ("decide", _) => bail!("say which question and how: decide ID once|run|save|deny|deny_run"),
        ("revoke", [grant]) => script::revoke(run_dir, grant, None),
        ("revoke", [grant, name]) => script::revoke(run_dir, grant, Some(name)),
        ("revoke", _) => bail!("say which grant: revoke GRANT [NAME]"),
        ("unmute", [program]) => script::unmute(run_dir, program, None),
        ("unmute", [program, name]) => script::unmute(run_dir, program, Some(name)),
        ("unmute", _) => bail!("say which program: unmute PROGRAM [NAME]"),
        ("", _) => list(args, None),
        (name, []) => list(args, Some(name)),
        (name, _) => bail!("one sandbox at a time: {name}, or all without a name"),
    }
}

/// Shows the questions of the sandbox `name`, or of all: on the whole screen at a terminal, otherwise
/// as text.
fn list(args: &ApprovalsArgs, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let run_dir = args.run_dir.as_deref();
    if !args.json && isatty(io::stdin()) && isatty(io::stdout()) {
        screen::show(run_dir, name)
    } else {
        script::list(run_dir, name, args.json, args.follow)
    }
}
