//! `openshell-sandbox` runs one untrusted command inside a policy.

#![forbid(unsafe_code)]

mod activation;
#[cfg(test)]
mod activation_tests;
mod audit;
mod background_reporter;
mod bound_socket;
mod ca_dir;
mod cli;
#[cfg(test)]
mod cli_pages;
mod config;
mod exit;
mod file_refusals;
mod gateway_reports;
mod invocation;
mod look_up;
mod parent;
mod refusals;
mod run_reports;
mod servers;
mod signals;
mod startup;
mod subcommands;
mod telemetry;
mod terminal;
mod timings;
mod workload;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use openshell_events::text;
use openshell_events::words::{ConfigState, LifecycleActivity, Severity};
use openshell_sources::input::Phase;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::init::{self, Forked, Init};
use openshell_supervisor::paths::own_folder::OwnFolder;
use openshell_telemetry::logging;

use crate::activation::{Origin, Policy};
use crate::cli::Args;
use crate::config::Config;
use crate::invocation::Invocation;
use crate::parent::Parent;
use crate::startup::groundwork::Groundwork;
use crate::startup::groundwork::network::PendingNetwork;
use crate::subcommands::internal;
use crate::timings::Timings;

fn main() -> ExitCode {
    let code = invoke();
    match logging::output_failure() {
        Some(error) => {
            logging::print_failure(&format!(
                "openshell-sandbox: standard output cannot be written: {error}"
            ));
            ExitCode::FAILURE
        }
        None => code,
    }
}

/// Does what the command line asks for.
fn invoke() -> ExitCode {
    let is_policy_given = config::origin::is_in_environment();
    let done = match invocation::parse(std::env::args_os(), is_policy_given) {
        Invocation::Run(args) => return run_command(args),
        Invocation::Subcommand(subcommand) => subcommand.run(),
        Invocation::Internal { service, words } => internal::serve(&service, &words),
        Invocation::Printed(code) => Ok(code),
    };
    done.unwrap_or_else(|error| failed(&error))
}

/// Runs the command of `args` in a sandbox.
fn run_command(args: Box<Args>) -> ExitCode {
    if args.policy.print_policy {
        return print_policy(&args).unwrap_or_else(|error| failed(&error));
    }
    let mut timings = Timings::begin(args.timings);
    // It may end at any moment.
    let parent = match args.die_with_parent.map(Parent::open).transpose() {
        Ok(parent) => parent,
        Err(error) => return failed(&error),
    };
    // Before any thread, and before any secret is read.
    let privilege = match Privilege::acquire(args.network.is_isolated()) {
        Ok(privilege) => privilege,
        Err(error) => return failed(&within_another(error.into())),
    };
    let init = match init::fork() {
        Ok(Forked::Supervisor(init)) => init,
        Ok(Forked::Init) => return ExitCode::SUCCESS,
        Err(error) => return failed(&within_another(error.into())),
    };
    // Init sets itself up meanwhile.
    let begun = SystemTime::now();
    let origin = config::origin::named(&args);
    let init = match init.finish() {
        Ok(Forked::Supervisor(init)) => init,
        Ok(Forked::Init) => return ExitCode::SUCCESS,
        Err(error) => return failed(&within_another(error.into())),
    };
    timings.end("init");
    let code = origin
        .and_then(|origin| run(*args, origin, begun, privilege, init, parent, timings))
        .unwrap_or_else(|error| failed(&error));
    logging::finish();
    code
}

/// Prints the policy that `args` mean.
///
/// # Errors
/// They name none, or an invalid one.
fn print_policy(args: &Args) -> anyhow::Result<ExitCode> {
    let Origin::Files(policy) = config::origin::named(args)? else {
        anyhow::bail!("--print-policy: the gateway gives the policy");
    };
    let Policy { files, version } = *policy;
    version?;
    let (_, text) = files.text(Phase::Start)?;
    for line in text.lines() {
        logging::print_line(line);
    }
    Ok(ExitCode::SUCCESS)
}

fn run(
    args: Args,
    origin: Origin,
    begun: SystemTime,
    privilege: Privilege,
    init: Init,
    parent: Option<Parent>,
    mut timings: Timings,
) -> anyhow::Result<ExitCode> {
    // Init has been cloned before, so that the command keeps the default.
    openshell_supervisor::command::signals::survive_file_size_limit()?;
    // The network takes as long as everything until it is needed.
    let network = PendingNetwork::start(&args)?;
    let mut config = Config::read(args, &origin)?;
    let directories = config.log.dirs.as_slice();
    // Lines wait there until the gateway takes them.
    let (push, lines) = config
        .log
        .push_level
        .map(|level| {
            let (queue, lines) = openshell_gateway::logs::queue();
            ((level, queue), lines)
        })
        .unzip();
    config.secrets.lines = lines;
    let form = config.log.form;
    let level = config.log.to_stderr.then_some(config.log.level);
    let is_plain = config.log.is_plain;
    let identity = &logging::RunIdentity::new(
        config.sandbox.clone(),
        std::mem::take(&mut config.log.labels),
    );
    config.log.dir = logging::start(&logging::Options {
        directories,
        open: open_log_folder,
        level,
        is_plain,
        form,
        identity,
        push,
    })?;
    let version = env!("CARGO_PKG_VERSION");
    let pid = std::process::id();
    logging::lifecycle_event(
        LifecycleActivity::Start,
        Severity::Info,
        &format!("success [version:{version} pid:{pid}]"),
    );
    for warning in &config.warnings {
        logging::config_event(ConfigState::Validated, Severity::Medium, warning);
    }
    timings.end("config");
    let groundwork = Groundwork {
        begun,
        network,
        privilege,
        init,
        parent,
        timings,
    };
    let ended = run_in_sandbox(&mut config, origin, groundwork);
    match &ended {
        Ok(ended) => {
            logging::lifecycle_event(LifecycleActivity::End, Severity::Info, &ended.summary())
        }
        Err(error) => {
            let code = exit::exit_code(error);
            let text = format!("{error:#}");
            // The log has the first violation of an invalid policy; standard error has all.
            let reason = text.lines().next().unwrap_or_default();
            logging::lifecycle_event(
                LifecycleActivity::End,
                Severity::Medium,
                &format!("failure [exit:{code}] {reason}"),
            );
        }
    }
    ended.map(|ended| ExitCode::from(ended.code))
}

/// Opens the folder `path` for log files; `is_made` makes it where it is missing.
fn open_log_folder(path: &Path, is_made: bool) -> io::Result<logging::Folder> {
    let folder = if is_made {
        OwnFolder::make(path, 0o700)
    } else {
        OwnFolder::open(path)
    };
    let (path, opened) = folder?.into_parts();
    Ok(logging::Folder::new(path, opened))
}

/// Starts the sandbox, runs the command in it, and removes it.
fn run_in_sandbox(
    config: &mut Config,
    origin: Origin,
    groundwork: Groundwork,
) -> anyhow::Result<exit::Ended> {
    let secrets = std::mem::take(&mut config.secrets);
    // Connections have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let code = runtime.block_on(async {
        let sandbox = Box::pin(startup::start(config, origin, secrets, groundwork)).await?;
        workload::run(config, sandbox).await
    });
    // The clients of connections that are still open are gone.
    runtime.shutdown_background();
    code
}

/// Adds to a failure to make namespaces that this is the inside of a sandbox, if it looks so.
fn within_another(error: anyhow::Error) -> anyhow::Error {
    if config::is_within_another() {
        error.context(
            "a sandbox cannot start inside another, and OPENSHELL_SANDBOX is 1 as it is in one",
        )
    } else {
        error
    }
}

/// Prints the reason why nothing ran: one line, or for a policy one line per violation.
fn failed(error: &anyhow::Error) -> ExitCode {
    logging::print_failure(&text::indented(&format!("openshell-sandbox: {error:#}")));
    ExitCode::from(exit::exit_code(error))
}
