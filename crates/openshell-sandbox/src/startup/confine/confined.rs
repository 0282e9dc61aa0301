//! The third stage: init is confined, and the supervisor holds its ends of what they share.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use openshell_access::main_process::MainProcess;
use openshell_events::event::Audit;
use openshell_proxy::policy_local::denials::RecentDenials;
use openshell_sources::origin::Sources;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::streams::retained::Tap;
use openshell_supervisor::command::streams::{Inspected, Purpose, Streams};
use openshell_supervisor::confine::LandlockProof;
use openshell_supervisor::seccomp::harden;

use crate::activation::Initial;
use crate::config::Config;
use crate::reports::audit;
use crate::reports::gateway_reports::GatewayReports;
use crate::reports::refusals::Refusals;
use crate::startup::confine::{self, ConfinedInit, main_output};
use crate::startup::groundwork::network::{Attached, Network, PendingNetwork};
use crate::startup::host::Host;
use crate::startup::host::hosted::{Hosted, Reports};
use crate::startup::plan::Plan;
use crate::startup::plan::planned::Run;
use crate::startup::plan::ssh_sockets::SshSockets;
use crate::startup::services::RunServices;

/// A sandbox that is confined but that nothing serves yet.
pub(crate) struct Confined {
    /// The first field, so that it is dropped first if no further stage takes it.
    pub(crate) init: ConfinedInit,
    pub(crate) plan: Plan,
    pub(crate) host: Host,
    pub(crate) network: Network,
    /// The listener of the Landlock self-test, if that needs one.
    pub(crate) proof: Option<UnixListener>,
    pub(crate) services: RunServices,
    pub(crate) command: CommandParts,
    pub(crate) sources: Sources,
    pub(crate) initial: Initial,
    pub(crate) ssh: SshSockets,
    pub(crate) gateway: Option<GatewayReports>,
    pub(crate) audience: Audience,
    pub(crate) run: Run,
}

/// What the main command gets, and what receives its output.
pub(crate) struct CommandParts {
    pub(crate) streams: Streams,
    pub(crate) environment: Environment,
    /// Directories where the command may start, in order of preference.
    pub(crate) directories: Vec<PathBuf>,
    /// The main process as clients see it, if they may attach to it.
    pub(crate) main_process: Option<Arc<MainProcess>>,
    /// Receives the command's output for those clients.
    pub(crate) tap: Option<Tap>,
}

/// The receivers of events.
pub(crate) struct Audience {
    pub(crate) audit: Arc<dyn Audit>,
    pub(crate) refusals: Arc<Refusals>,
    /// The last refusals, for programs inside.
    pub(crate) denials: Arc<RecentDenials>,
}

impl Confined {
    /// Makes init confine itself. Meanwhile, writes the certificates, enters the network, and takes
    /// the proxy's sockets.
    ///
    /// # Errors
    /// Fails if a restriction cannot be applied or proved, or the supervisor cannot be hardened.
    pub(crate) async fn enclose(config: &mut Config, hosted: Hosted) -> anyhow::Result<Self> {
        let Hosted {
            plan,
            mut host,
            directories,
            sources,
            initial,
            streams,
            ssh,
            init,
            network,
            reports: Reports {
                run: reports,
                gateway,
            },
            mut run,
        } = hosted;
        let protected = confine::protected(config, &plan, &host, &reports)?;
        let confinement = ConfinedInit::start(config, &plan, &mut host, protected, init)?;
        host.tls.write_bundles(config)?;
        let main_process = main_output::main_process(config);
        let tap = main_process.as_ref().map(main_output::tap);
        let attached = attach(config, network, streams, tap.as_ref(), &host.proof)?;
        confinement
            .enter(&attached.network, &attached.streams)
            .context("cannot inspect the standard streams")?;
        let audience = Audience::gather(&run, gateway.as_ref());
        let prepared = RunServices::prepare(
            config,
            reports,
            Arc::clone(&audience.audit),
            attached.sockets,
            &attached.network,
            confinement.init(),
            &host.landlock,
        );
        // Possible now: init is a process of its own, and the whole environment has been read.
        let hardened = harden::supervisor();
        // A failure of init is reported first, because it may have caused others.
        let init = confinement.finish(&mut host, &mut run.signals).await?;
        plan.carve_outs.verify()?;
        let mut services = prepared?;
        services.add_ssh_port(ssh.port());
        hardened?;
        let credentials = initial.credentials.as_ref();
        let environment =
            confine::environment(config, &plan.user, &host, &attached.network, credentials);
        run.timings.end("confine");
        Ok(Self {
            plan,
            host,
            init,
            network: attached.network,
            proof: attached.proof,
            services,
            command: CommandParts {
                streams: attached.streams,
                environment,
                directories,
                main_process,
                tap,
            },
            sources,
            initial,
            ssh,
            gateway,
            audience,
            run,
        })
    }
}

/// Waits for the network, and opens the command's streams in it. `tap` receives their output.
fn attach(
    config: &Config,
    network: PendingNetwork,
    streams: Inspected<'_>,
    tap: Option<&Tap>,
    proof: &LandlockProof,
) -> anyhow::Result<Attached> {
    let purpose = Purpose {
        tap,
        is_log: config.log.to_stderr,
        has_keyboard: config.is_interactive(),
    };
    Attached::open(network, streams, purpose, proof)
}

impl Audience {
    fn gather(run: &Run, gateway: Option<&GatewayReports>) -> Self {
        let refusals: Arc<Refusals> = Arc::default();
        let denials: Arc<RecentDenials> = Arc::default();
        let metrics = run
            .monitoring
            .as_ref()
            .map(|monitoring| &monitoring.metrics);
        let gateway = gateway.map(GatewayReports::audit);
        Self {
            audit: audit::receivers(&refusals, &denials, metrics, gateway),
            refusals,
            denials,
        }
    }
}
