//! The second stage: makes what the sandbox needs on the host.

use std::path::PathBuf;

use openshell_sources::origin::Sources;
use openshell_sources::policy::Compile as _;
use openshell_supervisor::command::streams::Inspected;
use openshell_supervisor::init::Init;

use crate::activation::Initial;
use crate::config::Config;
use crate::reports::gateway_reports::GatewayReports;
use crate::reports::run_reports::RunReports;
use crate::startup::groundwork::network::PendingNetwork;
use crate::startup::host::{self, Host};
use crate::startup::plan::planned::{Given, Planned, Run};
use crate::startup::plan::ssh_sockets::SshSockets;
use crate::startup::plan::{self, Plan};

/// A sandbox whose files and folders on the host exist.
pub(crate) struct Hosted {
    pub(crate) plan: Plan,
    pub(crate) host: Host,
    /// Directories where the command may start, in order of preference.
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) sources: Sources,
    pub(crate) initial: Initial,
    pub(crate) streams: Inspected<'static>,
    pub(crate) ssh: SshSockets,
    pub(crate) init: Init,
    pub(crate) network: PendingNetwork,
    pub(crate) reports: Reports,
    pub(crate) run: Run,
}

/// The receivers of reports about the run.
pub(crate) struct Reports {
    /// Files that are written at the end.
    pub(crate) run: RunReports,
    /// The gateway, if there is one.
    pub(crate) gateway: Option<GatewayReports>,
}

impl Hosted {
    /// Makes the files and folders of a `planned` sandbox.
    ///
    /// # Errors
    /// Fails if one of them cannot be made; those made before are removed.
    pub(crate) fn create(config: &mut Config, planned: Planned) -> anyhow::Result<Self> {
        let Planned {
            mut plan,
            given,
            streams,
            ssh,
            mut init,
            network,
            mut run,
        } = planned;
        let Given {
            sources,
            initial,
            receiver,
            lines,
        } = given;
        let is_proposing = match &receiver {
            Some(receiver) => receiver.proposing.borrow().takes_of_agents,
            None => config.takes_proposals(),
        };
        let host = Host::create(config, &mut plan, init.take_files(), is_proposing)?;
        let directories = plan::start_directories(config, &plan, &host.landlock, &host.home);
        plan::warn_of_program(config, &host.landlock);
        host::log_limits(&init, &plan.privilege);
        let policy = initial.policy.compiled.policy();
        let run_reports = RunReports::prepare(config, policy, &plan.user)?;
        let resolver = run_reports.resolver();
        let gateway = receiver
            .map(|receiver| GatewayReports::start(receiver, lines, resolver, &mut run.tasks))
            .transpose()?;
        run.timings.end("host");
        Ok(Self {
            plan,
            host,
            directories,
            sources,
            initial,
            streams,
            ssh,
            init,
            network,
            reports: Reports {
                run: run_reports,
                gateway,
            },
            run,
        })
    }
}
