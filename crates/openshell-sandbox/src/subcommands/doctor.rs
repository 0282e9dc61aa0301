//! `doctor`: shows what a start by this caller has here, what it lacks, and whether it would work.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use openshell_sources::policy::policy_file::PolicyFiles;
use openshell_supervisor::checks::{self, Check};
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::init::launch::Event;
use openshell_supervisor::init::{self, Command, Forked, IgnoredSignals, Init, Session, Status};
use openshell_telemetry::logging::{self, Tone, print_line, print_toned_line};
use serde_json::json;

use crate::activation::{Origin, Policy};
use crate::cli::{self, NetworkMode};
use crate::config::Config;
use crate::config::origin;
use crate::process::timings::Timings;
use crate::startup;
use crate::startup::groundwork::Groundwork;
use crate::startup::groundwork::network::PendingNetwork;
use crate::startup::serve::sandbox::Sandbox;

/// Checks what this host offers to you, and starts a sandbox on trial. Nothing is left behind.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 if a sandbox starts under the policy; 1 if not.

Examples:
  openshell-sandbox doctor
  openshell-sandbox doctor --json policy.yaml")]
pub(crate) struct DoctorArgs {
    /// The policy (YAML) [default: one that grants nothing]
    #[arg(value_name = "POLICY")]
    pub(crate) policy: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// A moment that no correct clock is before: 2026-01-01, in seconds since 1970-01-01, UTC.
const RELEASED: Duration = Duration::from_secs(1_767_225_600);

/// How long the program of the trial run may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the checks and the trial start found.
struct Findings {
    tier: String,
    checks: Vec<Check>,
    /// Why a sandbox would not start.
    failure: Option<String>,
}

/// Checks the host, starts a sandbox under the policy of `args`, or under one that grants nothing,
/// with `--version` of this program as its command, and prints all findings. Must be called before
/// any thread exists. Returns in init as well.
pub(crate) fn doctor(args: &DoctorArgs) -> ExitCode {
    match examine(args) {
        Ok(Some(findings)) => {
            print(&findings, args.json);
            ExitCode::from(u8::from(findings.failure.is_some()))
        }
        // Init has ended.
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            logging::print_stderr(&format!("openshell-sandbox: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Checks the host and tries a start. Returns `None` in init.
fn examine(args: &DoctorArgs) -> anyhow::Result<Option<Findings>> {
    let planned = Privilege::of_start(NetworkMode::Proxy.is_isolated())?;
    let tier = match planned.caller() {
        None => "capabilities: commands become the user of the policy".to_owned(),
        Some(caller) => format!(
            "a user namespace: commands run as the caller, user {}",
            caller.uid
        ),
    };
    let mut findings = Findings {
        tier,
        checks: checks::of_caller(&planned),
        failure: None,
    };
    let prepared = prepare(&mut findings.checks);
    if let Ok(None) = prepared {
        return Ok(None);
    }
    findings.checks.extend(checks::of_kernel());
    if prepared.is_ok() {
        findings.checks.extend(checks::of_network(PROXY_PORT));
    }
    findings.checks.extend([names(), clock()]);
    let tried = prepared.and_then(|prepared| {
        let (privilege, init) = prepared.context("init has ended")?;
        try_start(args, privilege, init)
    });
    findings.failure = tried.err().map(|error| format!("{error:#}"));
    Ok(Some(findings))
}

/// The proxy's default port.
const PROXY_PORT: u16 = 3128;

/// Acquires the privilege of a start and forks init. Returns `None` in init.
fn prepare(checks: &mut Vec<Check>) -> anyhow::Result<Option<(Privilege, Init)>> {
    const NAMESPACES: &str = "PID, mount and IPC namespaces";
    const USER: &str = "user namespace";
    let costs = "nothing starts";
    let privilege = match Privilege::acquire(NetworkMode::Proxy.is_isolated()) {
        Ok(privilege) => privilege,
        Err(error) => {
            checks.push(Check::missing(
                USER,
                "refused",
                "nothing starts without root",
                &error.to_string(),
            ));
            return Err(error.into());
        }
    };
    checks.push(match privilege.caller() {
        Some(_) => Check::ok(USER, "made, with the caller as its only user"),
        None => Check::ok(USER, "not needed"),
    });
    let forked = init::fork().and_then(|forked| match forked {
        Forked::Supervisor(init) => init.finish(|| ()),
        Forked::Init => Ok(Forked::Init),
    });
    match forked {
        Ok(Forked::Supervisor(init)) => {
            checks.push(Check::ok(NAMESPACES, "made as for a sandbox"));
            checks.push(match init.shared_pids() {
                None => Check::ok("/proc", "a new one can be mounted"),
                Some(why) => Check::missing(
                    "/proc",
                    format!("cannot {why}"),
                    "the sandbox shares the supervisor's PID namespace",
                    "a container whose /proc is not masked (`--security-opt \
                     systempaths=unconfined`)",
                ),
            });
            Ok(Some((privilege, init)))
        }
        Ok(Forked::Init) => Ok(None),
        Err(error) => {
            checks.push(Check::missing(
                NAMESPACES,
                "refused",
                costs,
                &error.to_string(),
            ));
            Err(error.into())
        }
    }
}

/// Checks that names can be looked up.
fn names() -> Check {
    let servers = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let servers: Vec<_> = servers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver "))
        .collect();
    if servers.is_empty() {
        Check::missing(
            "DNS",
            "/etc/resolv.conf names no server",
            "names other than those of /etc/hosts are refused with dns_failed",
            "add `nameserver` lines",
        )
    } else {
        Check::ok("DNS", format!("name servers {}", servers.join(", ")))
    }
}

fn clock() -> Check {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    if now >= RELEASED {
        Check::ok("clock", "later than this program")
    } else {
        Check::missing(
            "clock",
            "earlier than this program",
            "certificates of upstreams are not valid yet",
            "set the clock",
        )
    }
}

/// Starts a sandbox with a command that ends at once, and removes it.
fn try_start(args: &DoctorArgs, privilege: Privilege, init: Init) -> anyhow::Result<()> {
    let origin = Origin::Files(Box::new(match &args.policy {
        Some(data) => Policy::load(PolicyFiles::to_look_at(
            data.clone(),
            None,
            origin::caller_of_sudo(),
        )),
        None => Policy::restrictive(),
    }));
    let run = cli::run_args([
        "openshell-sandbox",
        "--no-interactive",
        "--log-level",
        "error",
        "--",
        "true",
    ])?;
    let network = PendingNetwork::start(&run)?;
    let mut config = Config::read(run, &origin)?;
    // The trial must not write log lines anywhere.
    config.log.dirs.clear();
    let secrets = std::mem::take(&mut config.secrets);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let tried = runtime.block_on(async {
        let groundwork = Groundwork {
            begun: SystemTime::now(),
            privilege,
            init,
            network,
            runner: None,
            parent: None,
            timings: Timings::begin(false),
        };
        let sandbox = Box::pin(startup::start(&mut config, origin, secrets, groundwork)).await?;
        let command = Command {
            arguments: vec!["/proc/self/exe".into(), "--version".into()],
            environment: Vec::new(),
            directories: vec!["/".into()],
            session: Session::New,
            ignored: IgnoredSignals::Kept,
        };
        run_command(&sandbox, &command)
    });
    runtime.shutdown_background();
    tried
}

/// Runs `command` in `sandbox`, which tests the mechanisms that every command tests first.
fn run_command(sandbox: &Sandbox, command: &Command) -> anyhow::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let (sender, events) = mpsc::channel();
    let listener = Box::new(move |event| drop(sender.send(event)));
    sandbox.launcher.start(
        command,
        [null.as_fd(), null.as_fd(), null.as_fd()],
        listener,
    )?;
    loop {
        match events
            .recv_timeout(PATIENCE)
            .context("the command of the trial did not end")?
        {
            Event::Started(_) | Event::Stopped(_) | Event::AllStopped => {}
            Event::Ended(Status::Exited(0)) => return Ok(()),
            Event::NotStarted(error) => return Err(error.into()),
            Event::SandboxGone(Some(why)) | Event::Lost(why) => bail!(why),
            Event::Ended(_) | Event::OutOfTime | Event::SandboxGone(None) => {
                bail!("the command of the trial failed")
            }
        }
    }
}

fn print(findings: &Findings, as_json: bool) {
    let Findings {
        tier,
        checks,
        failure,
    } = findings;
    if as_json {
        let checks = checks.iter().map(|check| {
            let missing = check.missing.as_ref();
            json!({
                "name": check.name,
                "ok": missing.is_none(),
                "detail": check.detail,
                "costs": missing.map(|missing| &missing.costs),
                "remedy": missing.map(|missing| &missing.remedy),
            })
        });
        let checks: Vec<_> = checks.collect();
        let all = json!({"tier": tier, "checks": checks, "would_start": failure.is_none(), "failure": failure});
        return print_line(&all.to_string());
    }
    for Check {
        name,
        detail,
        missing,
    } in checks
    {
        match missing {
            None => print_line(&format!("ok       {name}: {detail}")),
            Some(missing) => {
                let line = format!(
                    "missing  {name}: {detail}: {}; {}",
                    missing.costs, missing.remedy
                );
                print_toned_line(Tone::Warning, &line);
            }
        }
    }
    print_line(&format!("A start has {tier}."));
    match failure {
        None => print_line("It would start."),
        Some(why) => print_toned_line(Tone::Refusal, &format!("It would not start: {why}")),
    }
}
