//! From a configuration to a sandbox that is ready for its command: one line a step, nothing left
//! of a start that fails.

mod ca_files;
mod carve_outs;
mod confine;
mod file_log;
mod host;
mod inside;
mod main_output;
mod monitoring;
mod names;
pub(crate) mod network;
mod plan;
mod resolver_files;
mod serve;
mod ssh;
mod ssh_settings;
mod witness;

use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use openshell_access::control::console::Console;
use openshell_access::control::server::{self, Control, State};
use openshell_access::main_process::MainProcess;
use openshell_gateway::session::Sessions;
use openshell_sources::origin::Secrets;
use openshell_sources::policy::Compile as _;
use openshell_sources::tasks::Tasks;
use openshell_sources::watch::Watch;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::packets;
use openshell_supervisor::command::signals::{Received, SignalAction, action};
use openshell_supervisor::command::streams::{self, Purpose, Streams};
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::init::Init;
use openshell_supervisor::init::launch::Launcher;
use openshell_supervisor::network::netns::Netns;
use openshell_supervisor::runs::run_dir::RunDir;
use openshell_supervisor::runs::run_dir::created_dirs::CreatedDirs;
use openshell_supervisor::seccomp::harden;
use openshell_telemetry::health::Phase;
use tokio::sync::{Notify, mpsc, watch};

use crate::activation::InForce;
use crate::activation::Origin;
use crate::audit;
use crate::background_reporter::BackgroundReporter;
use crate::config::{CommandTerminal, Config};
use crate::file_refusals::FileRefusals;
use crate::gateway_reports::GatewayReports;
use crate::parent::{self, Parent};
use crate::refusals::Refusals;
use crate::run_reports::RunReports;
use crate::servers::Servers;
use crate::signals;
use confine::Confined;
use file_log::FileLog;
use host::Host;
use inside::InsideNetwork;
use monitoring::Monitoring;
use network::{Attached, Network, PendingNetwork};
use plan::Plan;
use serve::{Calls, RunServices};
use ssh::{SshServer, SshSockets};

/// A sandbox without its command. Dropping it ends everything inside, waits for that, and removes
/// everything made for it.
pub(crate) struct Sandbox {
    /// The SSH server, if there is one; it ends before everything that it uses.
    pub(crate) ssh: Option<SshServer>,
    /// The main process as clients see it, if they may attach to it.
    pub(crate) main_process: Option<Arc<MainProcess>>,
    pub(crate) launcher: Arc<Launcher>,
    /// Folders that the start made on the host.
    pub(crate) made: CreatedDirs,
    /// Signals to the supervisor.
    pub(crate) signals: mpsc::Receiver<Received>,
    pub(crate) environment: Environment,
    /// The command's standard streams; taken at its end.
    pub(crate) streams: Option<Streams>,
    /// The caller's terminal, if the command may read it.
    pub(crate) console: Option<Console>,
    /// The file rules, for messages about a command that cannot run.
    pub(crate) granted: Request,
    /// Directories where the command may start, in order of preference.
    pub(crate) directories: Vec<PathBuf>,
    /// Tasks to be finished at the end.
    pub(crate) reporters: Vec<BackgroundReporter>,
    /// Files to be written at the end.
    pub(crate) run_reports: RunReports,
    /// Has the policy read again.
    pub(crate) reload: Arc<Notify>,
    /// Refusals so far.
    pub(crate) refusals: Arc<Refusals>,
    /// Servers inside.
    pub(crate) servers: Arc<Servers>,
    /// Refused accesses to files, if they are logged.
    pub(crate) file_refusals: Option<Arc<FileRefusals>>,
    /// Reports to the gateway, if there is one.
    pub(crate) gateway: Option<GatewayReports>,
    /// Its sessions, which begin once the command runs.
    pub(crate) sessions: Option<Sessions>,
    /// Tasks that must not end before the sandbox does.
    pub(crate) tasks: Tasks,
    /// Once it is true, no more clients are let in from outside.
    pub(crate) closed: watch::Sender<bool>,
    /// Health and metrics, if they are wanted.
    pub(crate) monitoring: Option<Monitoring>,
    /// Held for as long as the sandbox lives.
    _resources: Resources,
}

impl Sandbox {
    /// Tells probes of a phase.
    pub(crate) fn enter(&self, phase: Phase) {
        if let Some(monitoring) = &self.monitoring {
            monitoring.health.enter(phase);
        }
    }

    /// Lets no more clients in from outside; probes hear that the sandbox ends.
    pub(crate) fn close(&self) {
        self.enter(Phase::Draining);
        self.closed.send_replace(true);
    }
}

/// Resources of the host, in the order in which they are released.
struct Resources {
    _network: Network,
    _proof: Option<UnixListener>,
    _run_dir: RunDir,
}

/// The parts of a sandbox that are under way before its configuration has been read.
pub(crate) struct Groundwork {
    /// The time before any file was read.
    pub(crate) begun: SystemTime,
    pub(crate) privilege: Privilege,
    pub(crate) init: Init,
    pub(crate) network: PendingNetwork,
    /// The parent that the sandbox ends with.
    pub(crate) parent: Option<Parent>,
}

/// Starts a sandbox up to its command.
///
/// # Errors
/// A step fails; everything made before is removed.
pub(crate) async fn start(
    config: &mut Config,
    origin: Origin,
    secrets: Secrets,
    groundwork: Groundwork,
) -> anyhow::Result<Sandbox> {
    let Groundwork {
        begun,
        privilege,
        mut init,
        network,
        parent,
    } = groundwork;
    let input = io::stdin();
    let output = io::stdout();
    let errors = io::stderr();
    let streams = streams::inspect([input.as_fd(), output.as_fd(), errors.as_fd()])?;
    let mut tasks = Tasks::default();
    let mut monitoring = Monitoring::start(config, init.pid())?;
    let mut secrets = secrets;
    let lines = secrets.lines.take();
    // A gateway may not answer for a while, and process 1 ends by a signal only where it is
    // received.
    let mut signals = match origin.place() {
        Some(_) => Some(signals::receive(&mut tasks)?),
        None => None,
    };
    let is_watched = parent.is_some();
    let mut parent_ended = Box::pin(parent::ended(parent));
    let (sources, initial, receiver) = tokio::select! {
        opened = origin.open(secrets, &mut tasks) => opened?,
        signal = ending(&mut signals) => bail!("signal {signal} ended the start"),
        reason = &mut parent_ended => bail!(reason),
    };
    if is_watched {
        tasks.spawn_watch("watch over the parent", parent_ended);
    }
    let plan = Plan::make(config, initial.policy.compiled.policy(), privilege)?;
    let ssh_sockets = SshSockets::open(&mut config.ssh);
    // From here on things are made that a signal must not keep from being removed.
    let mut signals = match signals {
        Some(signals) => signals,
        None => signals::receive(&mut tasks)?,
    };
    let mut host = Host::create(config, &plan, init.take_files())?;
    let directories = plan::start_directories(config, &plan, &host.landlock, &host.home);
    plan::warn_of_program(config, &host.landlock);
    host::log_limits(&init, &plan.privilege);
    let policy = initial.policy.compiled.policy();
    let run_reports = RunReports::prepare(config, policy, &plan.user)?;
    let report =
        |receiver| GatewayReports::start(receiver, lines, run_reports.resolver(), &mut tasks);
    let gateway = receiver.map(report).transpose()?;
    let protected = confine::protected(config, &plan, &host, &run_reports)?;
    // Masks take as long as the network, the proxy and the rest.
    let confinement = Confined::start(config, &plan, &mut host, protected, init)?;
    host.tls.write_bundles(config)?;
    let main_process = main_output::main_process(config);
    let tap = main_process.as_ref().map(main_output::tap);
    let purpose = Purpose {
        tap: tap.as_ref(),
        is_log: config.logs_to_stderr,
        has_keyboard: config.is_interactive(),
    };
    let Attached {
        streams,
        network,
        sockets,
        proof,
    } = Attached::open(network, streams, purpose, &host.proof)?;
    confinement
        .enter(&network, &streams)
        .context("cannot look at the standard streams")?;
    let refusals: Arc<Refusals> = Arc::default();
    let metrics = monitoring.as_ref().map(|monitoring| &monitoring.metrics);
    let audit = audit::receivers(
        &refusals,
        metrics,
        gateway.as_ref().map(GatewayReports::audit),
    );
    let prepared = RunServices::prepare(
        config,
        run_reports,
        Arc::clone(&audit),
        sockets,
        &network,
        confinement.init(),
        &host.landlock,
    );
    // Init is a process of its own by now, and the whole environment has been read.
    let hardened = harden::supervisor();
    // A failure of init comes first: it may be the cause of others.
    let mut confined = confinement.finish(&mut host, &mut signals).await?;
    plan.carve_outs.verify()?;
    let mut services = prepared?;
    services.add_ssh_port(ssh_sockets.port());
    hardened?;
    let environment = confine::environment(
        config,
        &plan.user,
        &host,
        &network,
        initial.credentials.as_ref(),
    );
    let reload = sources.reload();
    let routes = initial.routes.as_ref().map(|routes| routes.report.clone());
    let in_force = InForce::new(initial, config.leaks);
    if let Some(gateway) = &gateway {
        tasks.spawn(
            "tokens of the gateway",
            gateway.know_tokens(Arc::clone(&in_force.leaks), Arc::clone(&in_force.vault)),
        );
    }
    if !config.watched.is_empty() {
        let files = std::mem::take(&mut config.watched);
        let watch = Watch::new(files, begun).context(
            "cannot watch the input files (--watch); raise fs.inotify.max_user_instances",
        )?;
        tasks.spawn("watch over the input files", watch.run(Arc::clone(&reload)));
    }
    let requests = serve::activate(&in_force, &mut tasks);
    let observed = services.run_reports.observed_files();
    let file_log = FileLog::create(
        config,
        &confined,
        &plan.user,
        &environment,
        observed,
        &audit,
    );
    let file_refusals = file_log.as_ref().map(|log| Arc::clone(log.refusals()));
    let protection = confined.protection();
    let kept = confined.take_carve_outs();
    let repositories = plan.carve_outs.repositories();
    if !repositories.is_empty() {
        tasks.spawn(
            "watch over git's configuration",
            carve_outs::say_how_to_write(repositories),
        );
    }
    carve_outs::watch(&confined.launcher, kept, config.carve_outs.carve_out_lost);
    sources.follow(requests, protection, &mut tasks);
    confined.log(config, &plan, &network)?;
    if let Some(routes) = &routes {
        routes.log();
    }
    let inside = network.netns.as_ref().map(Netns::try_clone).transpose()?;
    let inside = Arc::new(InsideNetwork::new(inside));
    let ssh = if ssh_sockets.is_needed(config.is_launched) {
        let launcher = Arc::clone(&confined.launcher);
        let directories = directories.clone();
        let environment = environment.clone();
        let process = main_process.clone();
        let login = config.ssh.has_login_shells;
        let workload = ssh::workload(
            launcher,
            environment,
            directories,
            login,
            process,
            Arc::clone(&inside),
        );
        SshServer::start(
            workload,
            Arc::clone(&audit),
            ssh_sockets,
            services.closed.subscribe(),
        )
    } else {
        None
    };
    let relays = Arc::new(ssh::Relays {
        inside,
        ssh: ssh.as_ref().map(SshServer::door),
        closed: services.closed.subscribe(),
    });
    let Host {
        tls,
        resolver_files,
        made,
        run_dir,
        ..
    } = host;
    let control = Control {
        launcher: Arc::clone(&confined.launcher),
        audit,
        environment: environment.clone(),
        directories: directories.clone(),
        netns: network.netns.as_ref().map(Netns::try_clone).transpose()?,
        state: {
            let policy = Arc::clone(&in_force.policy);
            let slots = services.slots.clone();
            Box::new(move || State {
                generation: policy.load().generation(),
                connections: slots.taken(),
            })
        },
        name: config.sandbox.clone(),
        command: config
            .command
            .iter()
            .map(|word| word.display().to_string())
            .collect(),
        started: SystemTime::now(),
        slots: server::slots(),
    };
    // Clients find it once the sandbox serves.
    let clients = packets::listen(&run_dir.control_socket())
        .context("cannot listen in the run directory (--run-dir)")?;
    tasks.spawn("control socket", control.serve(clients));
    if let Some(monitoring) = &mut monitoring {
        monitoring
            .metrics
            .read_with(services.reader(&in_force, &refusals));
        if let Some(test) = services.test() {
            monitoring.health.test_with(test);
        }
        monitoring.export(config, services.resolver(), &tls.roots, begun)?;
    }
    let calls = Calls {
        waiting: confined.waiting_calls.take(),
        files: file_log,
    };
    services.serve(
        in_force,
        tls,
        resolver_files.local,
        calls,
        &network,
        &mut tasks,
    )?;
    // Init opens files from here on, as calls about them are answered.
    let mut streams = streams;
    let mut console = None;
    match &main_process {
        Some(process) if config.terminal == CommandTerminal::Own => {
            streams =
                main_output::on_own_terminal(&confined.launcher, output.as_fd(), process).await?;
        }
        _ if streams.need_terminal() => {
            console = main_output::on_callers_terminal(
                &confined.launcher,
                &mut streams,
                config.keyboard(),
                tap,
            )
            .await?;
        }
        _ => {}
    }
    Ok(Sandbox {
        ssh,
        main_process,
        launcher: confined.launcher,
        made,
        signals,
        environment,
        streams: Some(streams),
        console,
        granted: confined.granted,
        directories,
        reporters: services.reporters,
        run_reports: services.run_reports,
        reload,
        refusals,
        servers: services.servers,
        file_refusals,
        sessions: gateway.as_ref().map(|gateway| gateway.sessions(relays)),
        gateway,
        tasks,
        monitoring,
        closed: services.closed,
        _resources: Resources {
            _network: network,
            _proof: proof,
            _run_dir: run_dir,
        },
    })
}

/// Waits for a signal to end.
async fn ending(signals: &mut Option<mpsc::Receiver<Received>>) -> i32 {
    while let Some(signal) = match signals {
        Some(signals) => signals.recv().await,
        None => None,
    } {
        if action(signal, false) == SignalAction::Terminate {
            return signal.number;
        }
    }
    pending().await
}
