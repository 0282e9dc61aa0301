//! The first stage: reads and decides everything, and makes nothing yet.

use std::future::pending;
use std::time::SystemTime;

use anyhow::bail;
use openshell_gateway::logs::Lines;
use openshell_sources::gateway::Receiver;
use openshell_sources::origin::{Secrets, Sources};
use openshell_sources::policy::Compile as _;
use openshell_sources::tasks::Tasks;
use openshell_supervisor::command::signals::{Received, SignalAction, action};
use openshell_supervisor::command::streams::{self, Inspected};
use openshell_supervisor::helpers::runner::Runner;
use openshell_supervisor::init::Init;
use openshell_telemetry::logging::progress::Progress;
use rustix::stdio::{stderr, stdin, stdout};
use tokio::sync::mpsc;

use crate::activation::{Initial, Origin};
use crate::config::Config;
use crate::process::parent::{self, Parent};
use crate::process::signals;
use crate::process::timings::Timings;
use crate::startup::groundwork::Groundwork;
use crate::startup::groundwork::monitoring::Monitoring;
use crate::startup::groundwork::network::PendingNetwork;
use crate::startup::plan::Plan;
use crate::startup::plan::ssh_sockets::SshSockets;

/// A sandbox that is planned but not made.
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    /// What the command line or the gateway gave.
    pub(crate) given: Given,
    /// The command's standard streams, as the caller has them.
    pub(crate) streams: Inspected<'static>,
    pub(crate) ssh: SshSockets,
    pub(crate) init: Init,
    pub(crate) network: PendingNetwork,
    pub(crate) run: Run,
}

/// What a sandbox starts with, and where later changes come from.
pub(crate) struct Given {
    pub(crate) sources: Sources,
    pub(crate) initial: Initial,
    /// The gateway as the receiver of reports, if there is one.
    pub(crate) receiver: Option<Receiver>,
    /// Log lines for the gateway.
    pub(crate) lines: Option<Lines>,
}

/// What the supervisor keeps from the first stage to its end.
pub(crate) struct Run {
    /// A time before any file was read.
    pub(crate) begun: SystemTime,
    /// Signals to the supervisor.
    pub(crate) signals: mpsc::Receiver<Received>,
    /// Tasks that must not end before the sandbox does.
    pub(crate) tasks: Tasks,
    /// Health and metrics, if they are wanted.
    pub(crate) monitoring: Option<Monitoring>,
    /// The parent of programs outside, until it knows them.
    pub(crate) runner: Option<Runner>,
    pub(crate) timings: Timings,
}

impl Planned {
    /// Reads what the sandbox starts with, and decides what to make.
    ///
    /// # Errors
    /// Fails if the policy, a secret or the gateway is not available, or the sandbox cannot be made
    /// as they ask. Also fails if a signal or the end of the parent ends the start.
    pub(crate) async fn read(
        config: &mut Config,
        origin: Origin,
        mut secrets: Secrets,
        groundwork: Groundwork,
    ) -> anyhow::Result<Self> {
        let Groundwork {
            begun,
            privilege,
            init,
            network,
            runner,
            parent,
            mut timings,
        } = groundwork;
        let streams = streams::inspect([stdin(), stdout(), stderr()])?;
        let mut tasks = Tasks::default();
        let monitoring = Monitoring::start(config, init.pid())?;
        let progress = Progress::start("openshell-sandbox: starting");
        let lines = secrets.lines.take();
        let (given, signals) = open(origin, secrets, lines, parent, &mut tasks).await?;
        let plan = Plan::make(config, given.initial.policy.compiled.policy(), privilege)?;
        drop(progress);
        let ssh = SshSockets::open(&mut config.ssh);
        // From here on, a signal must not end this process before it has removed what it makes.
        let signals = match signals {
            Some(signals) => signals,
            None => signals::receive(&mut tasks)?,
        };
        timings.end("plan");
        Ok(Self {
            plan,
            given,
            streams,
            ssh,
            init,
            network,
            run: Run {
                begun,
                signals,
                tasks,
                monitoring,
                runner,
                timings,
            },
        })
    }
}

/// Opens the sources of `origin`. Also returns the signals if they are received already.
async fn open(
    origin: Origin,
    secrets: Secrets,
    lines: Option<Lines>,
    parent: Option<Parent>,
    tasks: &mut Tasks,
) -> anyhow::Result<(Given, Option<mpsc::Receiver<Received>>)> {
    // A gateway may not answer for a while, and process 1 ends at a signal only if it receives it.
    let mut signals = match origin.place() {
        Some(_) => Some(signals::receive(tasks)?),
        None => None,
    };
    let is_watched = parent.is_some();
    let mut parent_ended = Box::pin(parent::ended(parent));
    let (sources, initial, receiver) = tokio::select! {
        opened = origin.open(secrets, tasks) => opened?,
        signal = ending(&mut signals) => bail!("signal {signal} ended the start"),
        reason = &mut parent_ended => bail!(reason),
    };
    if is_watched {
        tasks.spawn_watch("watch over the parent", parent_ended);
    }
    let given = Given {
        sources,
        initial,
        receiver,
        lines,
    };
    Ok((given, signals))
}

/// Waits for a signal that asks to end.
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
