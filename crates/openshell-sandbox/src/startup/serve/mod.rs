//! The last stage: starts what serves a confined sandbox, until it is ready for its command.

mod approvals;
mod ask_command;
mod gateway_review;
mod helpers;
pub(crate) mod inside;
mod keeping;
mod opening;
pub(crate) mod sandbox;
pub(crate) mod ssh;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use openshell_access::control::approvals::Approvals;
use openshell_access::control::console::Console;
use openshell_access::control::server::{self, Control, State};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::filesystem::Filesystem;
use openshell_proxy::approvals::desk::{Desk, Settings};
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::denial::guidance::Guidance;
use openshell_proxy::policy_local::review::Review;
use openshell_proxy::policy_local::serve::PolicyLocal;
use openshell_sources::lints;
use openshell_sources::origin::Sources;
use openshell_sources::policy::saving::PolicyFile;
use openshell_sources::tasks::Tasks;
use openshell_sources::watch::{OwnWrites, Watch};
use openshell_supervisor::command::packets;
use openshell_supervisor::helpers::program;
use openshell_supervisor::network::netns::Netns;
use openshell_telemetry::logging;
use rustix::stdio::stdout;
use tokio::sync::Notify;
use tracing::Level;

use crate::activation::InForce;
use crate::config::approvals::HelperCommand;
use crate::config::{CommandTerminal, Config, origin};
use crate::reports::gateway_reports::GatewayReports;
use crate::reports::run_reports::saved::SavedPolicy;
use crate::startup::confine::confined::{Audience, CommandParts, Confined};
use crate::startup::confine::{ConfinedInit, main_output};
use crate::startup::groundwork::network::Network;
use crate::startup::host::Host;
use crate::startup::plan::planned::Run;
use crate::startup::plan::ssh_sockets::SshSockets;
use crate::startup::plan::{Plan, carve_out_loss, git_config};
use crate::startup::serve::approvals::DeskApprovals;
use crate::startup::serve::ask_command::AskCommand;
use crate::startup::serve::gateway_review::GatewayReview;
use crate::startup::serve::helpers::Helpers;
use crate::startup::serve::inside::InsideNetwork;
use crate::startup::serve::keeping::Keeping;
use crate::startup::serve::sandbox::{Resources, Sandbox};
use crate::startup::serve::ssh::{Relays, SshServer};
use crate::startup::services::file_log::FileLog;
use crate::startup::services::{Calls, RunServices, activate};

/// Starts everything that serves a `confined` sandbox.
///
/// # Errors
/// Fails if a part cannot be started; everything made before is removed.
pub(crate) async fn serve(config: &mut Config, confined: Confined) -> anyhow::Result<Sandbox> {
    let Confined {
        plan,
        host,
        network,
        proof,
        mut services,
        mut command,
        sources,
        initial,
        ssh,
        gateway,
        audience,
        mut run,
        // Bound last, so that it ends before everything else if this fails.
        mut init,
    } = confined;
    let routes = initial.routes.as_ref().map(|routes| routes.report.clone());
    let writes = OwnWrites::default();
    let mut review = None;
    let in_force = InForce::new(initial, config.network.leaks, |policy| {
        let desk = config.approvals.as_ref().map(|options| {
            let saved = services.run_reports.saved();
            let keeping = match gateway {
                // It would not be the gateway's policy.
                Some(_) => Keeping::Nowhere,
                None => keeping(config, &init, saved, &writes),
            };
            desk(policy, options.settings, &init, keeping, &audience)
        });
        let guidance = guidance(config, gateway.as_ref(), &host);
        let guidance = Arc::new(guidance);
        review = gateway.as_ref().map(|gateway| {
            let receiver = gateway.receiver().clone();
            let denials = Arc::clone(gateway.denials());
            GatewayReview::new(receiver, denials, Arc::clone(policy), Arc::clone(&guidance))
        });
        let reviewed: Option<Box<dyn Review>> = match &review {
            Some(review) => Some(Box::new(review.clone())),
            None => desk.clone().map(|desk| Box::new(desk) as _),
        };
        let denials = Arc::clone(&audience.denials);
        let local = PolicyLocal::new(Arc::clone(policy), denials, reviewed, guidance);
        (desk, local)
    });
    if let (Some(desk), Some(gateway)) = (&in_force.approvals, &gateway) {
        desk.suspend(gateway.receiver().proposing.borrow().is_global);
    }
    if let Some(review) = review {
        let reviewing = review.run(in_force.approvals.clone());
        run.tasks.spawn("answers of the gateway", reviewing);
    }
    let approvals = in_force.approvals.clone();
    know_tokens(gateway.as_ref(), &in_force, &mut run.tasks);
    let reload = follow(config, sources, &in_force, &init, writes, &mut run)?;
    watch_carve_outs(config, &plan, &init, &mut run.tasks);
    init.log(config, &plan, &network)?;
    if let Some(routes) = &routes {
        routes.log();
    }
    let serving = Serving {
        config,
        init: &init,
        command: &command,
        audience: &audience,
        network: &network,
        services: &services,
        in_force: &in_force,
    };
    let policy = serving.in_force.policy.load();
    opening::greet(config, &plan, policy.policy(), routes.is_some());
    if config.approvals.is_some() {
        warn_of_terminals(config, policy.policy().filesystem());
    }
    tell_of_questions(config, approvals.as_ref(), &mut run.tasks);
    start_helpers(config, &init, &in_force, &mut run)?;
    let files = serving.file_log(&plan);
    let file_refusals = files.as_ref().map(|log| Arc::clone(log.refusals()));
    let (ssh, relays) = serving.ways(ssh)?;
    serving.control(host.run_dir.control_socket(), &mut run.tasks)?;
    serving.monitor(&host, &mut run)?;
    let calls = Calls {
        waiting: init.waiting_calls.take(),
        files,
    };
    let names = host.resolver_files.local;
    services.serve(in_force, host.tls, names, calls, &network, &mut run.tasks)?;
    // From here on init may open files, because calls about them are answered.
    let asking = approvals.as_ref();
    let console = open_terminal(config, &init, &mut command, asking, &mut run.tasks).await?;
    run.timings.end("serve");
    Ok(Sandbox {
        ssh,
        main_process: command.main_process,
        launcher: init.launcher,
        made: host.made,
        signals: run.signals,
        environment: command.environment,
        streams: Some(command.streams),
        console,
        granted: init.granted,
        directories: command.directories,
        reporters: services.reporters,
        run_reports: services.run_reports,
        reload,
        refusals: audience.refusals,
        approvals,
        servers: services.servers,
        file_refusals,
        sessions: gateway.as_ref().map(|gateway| gateway.sessions(relays)),
        gateway,
        tasks: run.tasks,
        closed: services.closed,
        monitoring: run.monitoring,
        timings: Some(run.timings),
        _resources: Resources {
            _network: network,
            _proof: proof,
            _run_dir: host.run_dir,
        },
    })
}

/// Returns what tells whether the workload can write a path.
fn writable(init: &ConfinedInit) -> impl Fn(&Path) -> bool + Send + Sync + use<> {
    let landlock = init.granted.clone();
    move |path| landlock.grants_writing(path)
}

/// Returns what asks a person about `policy`.
fn desk(
    policy: &Arc<PolicyStore>,
    settings: Settings,
    init: &ConfinedInit,
    keeping: Keeping,
    audience: &Audience,
) -> Arc<Desk> {
    let policy = Arc::clone(policy);
    let is_writable = Box::new(writable(init));
    let audit = Arc::clone(&audience.audit);
    Desk::new(settings, policy, is_writable, Box::new(keeping), audit)
}

/// Returns what refusals tell programs that may propose lines of policy.
fn guidance(config: &Config, gateway: Option<&GatewayReports>, host: &Host) -> Guidance {
    let is_on = match gateway {
        Some(gateway) => gateway.receiver().proposing.borrow().takes_of_agents,
        None => config.takes_proposals(),
    };
    Guidance::new(is_on, host.skill.clone())
}

/// Returns where answers are written that outlast the run: the file of --save, or the policy's own.
fn keeping(
    config: &Config,
    init: &ConfinedInit,
    saved: Option<Arc<SavedPolicy>>,
    writes: &OwnWrites,
) -> Keeping {
    if let Some(saved) = saved {
        return Keeping::Saved(saved);
    }
    let is_writable = Box::new(writable(init));
    let owner = origin::uid_of_caller(config.sudo);
    let policy = &config.inputs.policy;
    match PolicyFile::of(policy, owner, is_writable, writes.clone()) {
        Some(file) => Keeping::Own(file),
        None => Keeping::Nowhere,
    }
}

/// Warns of granted paths by which the command could answer its own questions.
fn warn_of_terminals(config: &Config, filesystem: &Filesystem) {
    let uid = origin::uid_of_caller(config.sudo);
    for line in lints::files::typing(filesystem, uid) {
        logging::config_event(ConfigState::Degraded, Severity::High, &line);
    }
}

/// Says on standard error that requests wait, where no start line has said it on a terminal.
fn tell_of_questions(config: &Config, approvals: Option<&Arc<Desk>>, tasks: &mut Tasks) {
    if let Some(desk) = approvals
        && !config.is_interactive()
        && config.log.level >= Level::WARN
    {
        let decides = decides_here(config);
        let telling = approvals::tell(Arc::clone(desk), config.sandbox.clone(), decides);
        tasks.spawn("questions that wait", telling);
    }
}

/// Returns true if answers are given on this host.
fn decides_here(config: &Config) -> bool {
    let options = config.approvals.as_ref();
    options.is_none_or(|options| options.decides_here)
}

/// Has the program of --ask-command get each question.
///
/// # Errors
/// Fails if there is no such program, or if the workload can write it.
fn start_helpers(
    config: &Config,
    init: &ConfinedInit,
    in_force: &InForce,
    run: &mut Run,
) -> anyhow::Result<()> {
    let options = config.approvals.as_ref();
    let command = options.and_then(|options| options.command.as_ref());
    let (Some(command), Some(desk), Some(runner)) =
        (command, &in_force.approvals, run.runner.take())
    else {
        return Ok(());
    };
    let HelperCommand { words, variables } = command;
    let program = program::find(words, variables, writable(init));
    let program = program.context("--ask-command")?;
    let helpers = Helpers::begin(runner, vec![program]).context("--ask-command")?;
    let asking = AskCommand {
        helpers: Arc::clone(&helpers),
        desk: Arc::clone(desk),
        sandbox: config.sandbox.clone(),
        leaks: Arc::clone(&in_force.leaks),
        vault: Arc::clone(&in_force.vault),
    };
    run.tasks
        .spawn("reports of helper programs", helpers.receive());
    run.tasks.spawn("questions to --ask-command", asking.run());
    Ok(())
}

/// Has the tokens of the gateway searched for, as they are renewed.
fn know_tokens(gateway: Option<&GatewayReports>, in_force: &InForce, tasks: &mut Tasks) {
    if let Some(gateway) = gateway {
        let leaks = Arc::clone(&in_force.leaks);
        let vault = Arc::clone(&in_force.vault);
        tasks.spawn("tokens of the gateway", gateway.know_tokens(leaks, vault));
    }
}

/// Follows the changes of `sources`, and of the files that are watched; returns what has them read
/// again.
fn follow(
    config: &mut Config,
    sources: Sources,
    in_force: &InForce,
    init: &ConfinedInit,
    writes: OwnWrites,
    run: &mut Run,
) -> anyhow::Result<Arc<Notify>> {
    let reload = sources.reload();
    if !config.inputs.watched.is_empty() {
        let files = std::mem::take(&mut config.inputs.watched);
        let watch = Watch::new(files, run.begun, writes).context(
            "cannot watch the input files (--watch); raise fs.inotify.max_user_instances",
        )?;
        let watching = watch.run(Arc::clone(&reload));
        run.tasks.spawn("watch over the input files", watching);
    }
    let requests = activate(in_force, &mut run.tasks);
    sources.follow(requests, init.protection(), &mut run.tasks);
    Ok(reload)
}

/// Watches what is taken out of the policy's grants, and explains how to write git's configuration.
fn watch_carve_outs(config: &Config, plan: &Plan, init: &ConfinedInit, tasks: &mut Tasks) {
    let repositories = plan.carve_outs.repositories();
    if !repositories.is_empty() {
        tasks.spawn(
            "watch over git's configuration",
            git_config::say_how_to_write(repositories),
        );
    }
    let kept = init.carve_outs().to_vec();
    carve_out_loss::watch(&init.launcher, kept, config.files.carve_outs.carve_out_lost);
}

/// Opens the terminal that the command needs: its own, or one that is shown on the caller's, whose
/// bell rings for the questions of `approvals`.
async fn open_terminal(
    config: &Config,
    init: &ConfinedInit,
    command: &mut CommandParts,
    approvals: Option<&Arc<Desk>>,
    tasks: &mut Tasks,
) -> anyhow::Result<Option<Console>> {
    match &command.main_process {
        Some(process) if config.command.terminal == CommandTerminal::Own => {
            command.streams =
                main_output::on_own_terminal(&init.launcher, stdout(), process).await?;
            Ok(None)
        }
        _ if command.streams.need_terminal() => {
            let streams = &mut command.streams;
            let keyboard = config.keyboard();
            let tap = command.tap.take();
            let (relay, console) =
                main_output::on_callers_terminal(&init.launcher, streams, keyboard, tap).await?;
            if let Some(desk) = approvals.filter(|_| decides_here(config)) {
                let ringing = approvals::ring(Arc::clone(desk), Arc::downgrade(&relay));
                tasks.spawn("the bell for questions that wait", ringing);
            }
            Ok(console)
        }
        _ => Ok(None),
    }
}

/// The parts of a sandbox that the ways into it need.
struct Serving<'s> {
    config: &'s Config,
    init: &'s ConfinedInit,
    command: &'s CommandParts,
    audience: &'s Audience,
    network: &'s Network,
    services: &'s RunServices,
    in_force: &'s InForce,
}

impl Serving<'_> {
    /// Returns the log of accesses to files, if they are logged.
    fn file_log(&self, plan: &Plan) -> Option<FileLog> {
        let config = self.config;
        if !config.log.files && !config.reports.observe_files {
            return None;
        }
        // Every granted path is looked up for them.
        let rights = self.init.file_rights();
        Some(FileLog::create(
            config,
            rights,
            (&plan.user, self.in_force.policy.load().policy().form()),
            &self.command.environment,
            self.services.run_reports.observed_files(),
            &self.audience.audit,
        ))
    }

    /// Starts the SSH server, if a door or a gateway leads to it. Returns it, and where the relays
    /// of a gateway enter the sandbox.
    fn ways(&self, sockets: SshSockets) -> anyhow::Result<(Option<SshServer>, Arc<Relays>)> {
        let netns = self.netns()?;
        let inside = Arc::new(InsideNetwork::new(netns));
        let closed = || self.services.closed.subscribe();
        let mut server = None;
        if sockets.is_needed(self.config.is_launched) {
            let workload = ssh::workload(
                Arc::clone(&self.init.launcher),
                self.command.environment.clone(),
                self.command.directories.clone(),
                self.config.ssh.has_login_shells,
                self.command.main_process.clone(),
                Arc::clone(&inside),
            );
            let audit = Arc::clone(&self.audience.audit);
            server = SshServer::start(workload, audit, sockets, closed());
        }
        let relays = Relays {
            inside,
            ssh: server.as_ref().map(SshServer::door),
            closed: closed(),
        };
        Ok((server, Arc::new(relays)))
    }

    /// Listens at `socket` for further commands. Clients find it once the sandbox serves.
    fn control(&self, socket: impl AsRef<Path>, tasks: &mut Tasks) -> anyhow::Result<()> {
        let policy = Arc::clone(&self.in_force.policy);
        let slots = self.services.slots.clone();
        let words = self.config.command.words.iter();
        let control = Control {
            launcher: Arc::clone(&self.init.launcher),
            audit: Arc::clone(&self.audience.audit),
            environment: self.command.environment.clone(),
            directories: self.command.directories.clone(),
            netns: self.netns()?,
            state: Box::new(move || State {
                generation: policy.load().generation(),
                connections: slots.taken(),
            }),
            name: self.config.sandbox.clone(),
            command: words.map(|word| word.display().to_string()).collect(),
            started: SystemTime::now(),
            approvals: self.in_force.approvals.clone().map(|desk| {
                let options = self.config.approvals.as_ref();
                let decides = options.is_none_or(|options| options.decides_here);
                let approvals: Arc<dyn Approvals> = Arc::new(DeskApprovals { desk, decides });
                approvals
            }),
            slots: server::slots(),
        };
        let clients = packets::listen(socket.as_ref())
            .context("cannot listen in the run directory (--run-dir)")?;
        tasks.spawn("control socket", control.serve(clients));
        Ok(())
    }

    /// Connects health and metrics to what they report.
    fn monitor(&self, host: &Host, run: &mut Run) -> anyhow::Result<()> {
        let Some(monitoring) = &mut run.monitoring else {
            return Ok(());
        };
        let refusals = &self.audience.refusals;
        monitoring
            .metrics
            .read_with(self.services.reader(self.in_force, refusals));
        if let Some(test) = self.services.test() {
            monitoring.health.test_with(test);
        }
        let resolver = self.services.resolver();
        monitoring.export(resolver, &host.tls.roots, run.begun)
    }

    /// Returns another handle of the sandbox's network, unless that is the host's.
    fn netns(&self) -> anyhow::Result<Option<Netns>> {
        let netns = self.network.netns.as_ref();
        Ok(netns.map(Netns::try_clone).transpose()?)
    }
}
