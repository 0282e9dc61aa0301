//! One run: it clones init, starts the log, and runs the command in its sandbox.

mod workload;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use openshell_events::words::{ConfigState, LifecycleActivity, Severity};
use openshell_sources::input::Phase;
use openshell_supervisor::helpers::runner::Runner;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::init::{self, Forked};
use openshell_supervisor::paths::own_folder::OwnFolder;
use openshell_telemetry::logging;

use crate::activation::{Origin, Policy};
use crate::cli::Args;
use crate::config::{self, Config, origin};
use crate::process::exit::{self, failed};
use crate::process::parent::Parent;
use crate::process::timings::Timings;
use crate::startup;
use crate::startup::groundwork::Groundwork;
use crate::startup::groundwork::network::PendingNetwork;

/// Runs the command of `args` in a sandbox, or prints the policy that they mean.
pub(crate) fn run(args: Box<Args>) -> ExitCode {
    if args.policy.print_policy {
        return print_policy(&args).unwrap_or_else(|error| failed(&error));
    }
    let code = prepare(*args).unwrap_or_else(|error| failed(&error));
    logging::finish();
    code
}

/// Clones init, and meanwhile reads where the policy comes from; then runs the command. Also
/// returns in init, after its end.
///
/// # Errors
/// Fails if the command did not run.
fn prepare(args: Args) -> anyhow::Result<ExitCode> {
    let mut timings = Timings::begin(args.timings);
    // Opened first, because the parent may end at any moment.
    let parent = args.die_with_parent.map(Parent::open).transpose()?;
    // First of all, because it keeps what this process is now.
    let runner = match args.approvals.ask_command {
        Some(_) => Some(
            Runner::fork(config::variables_of_caller).context("the runner of helper programs")?,
        ),
        None => None,
    };
    // Before any thread starts, and before any secret is read.
    let privilege = Privilege::acquire(args.network.is_isolated())
        .map_err(|error| within_another(error.into()))?;
    let Forked::Supervisor(init) = init::fork().map_err(|error| within_another(error.into()))?
    else {
        std::mem::forget((runner, parent));
        return Ok(ExitCode::SUCCESS);
    };
    // Meanwhile, init sets itself up. The network is started now, because it takes as long as
    // everything until it is needed.
    let mut network = PendingNetwork::start(&args)?;
    let begun = SystemTime::now();
    let origin = origin::named(&args);
    let Forked::Supervisor(init) = init
        .finish(|| network.settle())
        .map_err(|error| within_another(error.into()))?
    else {
        // Init has closed the descriptors that are the supervisor's.
        std::mem::forget((network, runner, parent));
        return Ok(ExitCode::SUCCESS);
    };
    let origin = origin?;
    timings.end("init");
    // Init was cloned earlier, so the command keeps the default action of the signal.
    openshell_supervisor::command::signals::survive_file_size_limit()?;
    let groundwork = Groundwork {
        begun,
        network,
        runner,
        privilege,
        init,
        parent,
        timings,
    };
    run_logged(args, origin, groundwork)
}

/// Prints the policy that `args` mean.
///
/// # Errors
/// Fails if they name no policy, or an invalid one.
fn print_policy(args: &Args) -> anyhow::Result<ExitCode> {
    let Origin::Files(policy) = origin::named(args)? else {
        anyhow::bail!("--print-policy does not go with --sandbox-id: the gateway gives the policy");
    };
    let Policy { files, version } = *policy;
    version?;
    let (_, text) = files.text(Phase::Start)?;
    for line in text.lines() {
        logging::print_line(line);
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the log, and runs the command. The log begins with the start of the run and ends with its
/// end.
///
/// # Errors
/// Fails if the command did not run.
fn run_logged(args: Args, origin: Origin, mut groundwork: Groundwork) -> anyhow::Result<ExitCode> {
    let mut config = Config::read(args, &origin)?;
    start_log(&mut config)?;
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
    groundwork.timings.end("config");
    let ended = run_in_sandbox(&mut config, origin, groundwork);
    let (severity, message) = match &ended {
        Ok(ended) => (Severity::Info, ended.summary()),
        Err(error) => {
            let code = exit::exit_code(error);
            let text = format!("{error:#}");
            // The log has the first violation of an invalid policy; standard error has all.
            let reason = text.lines().next().unwrap_or_default();
            (Severity::Medium, format!("failure [exit:{code}] {reason}"))
        }
    };
    logging::lifecycle_event(LifecycleActivity::End, severity, &message);
    ended.map(|ended| ExitCode::from(ended.code))
}

/// Starts the log that `config` asks for. Lines for a gateway wait in a queue until it takes them.
///
/// # Errors
/// Fails if there is no place for the log.
fn start_log(config: &mut Config) -> anyhow::Result<()> {
    let mut push = None;
    if let Some(level) = config.log.push_level {
        let (queue, lines) = openshell_gateway::logs::queue();
        push = Some((level, queue));
        config.secrets.lines = Some(lines);
    }
    let labels = std::mem::take(&mut config.log.labels);
    let identity = logging::RunIdentity::new(config.sandbox.clone(), labels);
    config.log.dir = logging::start(&logging::Options {
        directories: &config.log.dirs,
        open: open_log_folder,
        level: config.log.to_stderr.then_some(config.log.level),
        is_plain: config.log.is_plain,
        form: config.log.form,
        identity: &identity,
        push,
    })?;
    Ok(())
}

/// Opens the folder `path` for log files. If `is_made`, a missing folder is made.
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
    // One thread is enough, because connections have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let code = runtime.block_on(async {
        let sandbox = Box::pin(startup::start(config, origin, secrets, groundwork)).await?;
        workload::run(config, sandbox).await
    });
    // Not waited for: the clients of connections that are still open are gone.
    runtime.shutdown_background();
    code
}

/// Adds to `error` that this process seems to run inside another sandbox, if it does.
fn within_another(error: anyhow::Error) -> anyhow::Error {
    if config::is_within_another() {
        error.context(
            "a sandbox cannot start inside another, and OPENSHELL_SANDBOX=1 says that this process \
             is in one",
        )
    } else {
        error
    }
}
