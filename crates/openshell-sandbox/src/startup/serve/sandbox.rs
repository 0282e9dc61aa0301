//! A sandbox that is ready for its command.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use openshell_access::control::console::Console;
use openshell_access::main_process::MainProcess;
use openshell_gateway::session::Sessions;
use openshell_proxy::approvals::desk::Desk;
use openshell_sources::tasks::Tasks;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::signals::Received;
use openshell_supervisor::command::streams::Streams;
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::init::launch::Launcher;
use openshell_supervisor::runs::run_dir::RunDir;
use openshell_supervisor::runs::run_dir::created_dirs::CreatedDirs;
use openshell_telemetry::health::Phase;
use tokio::sync::{Notify, mpsc, watch};

use crate::process::timings::Timings;
use crate::reports::background_reporter::BackgroundReporter;
use crate::reports::file_refusals::FileRefusals;
use crate::reports::gateway_reports::GatewayReports;
use crate::reports::refusals::Refusals;
use crate::reports::run_reports::RunReports;
use crate::reports::servers::Servers;
use crate::startup::groundwork::monitoring::Monitoring;
use crate::startup::groundwork::network::Network;
use crate::startup::serve::ssh::SshServer;

/// A sandbox without its command. Dropping it ends everything inside, waits until that is over, and
/// removes everything made for it.
pub(crate) struct Sandbox {
    /// The SSH server, if there is one. It ends before everything that it uses.
    pub(crate) ssh: Option<SshServer>,
    /// The main process as clients see it, if they may attach to it.
    pub(crate) main_process: Option<Arc<MainProcess>>,
    pub(crate) launcher: Arc<Launcher>,
    /// Folders that the start made on the host.
    pub(crate) made: CreatedDirs,
    /// Signals to the supervisor.
    pub(crate) signals: mpsc::Receiver<Received>,
    pub(crate) environment: Environment,
    /// The command's standard streams, until its end takes them.
    pub(crate) streams: Option<Streams>,
    /// The caller's terminal, if the command may read it.
    pub(crate) console: Option<Console>,
    /// The file rules, for messages about a command that cannot run.
    pub(crate) granted: Request,
    /// Directories where the command may start, in order of preference.
    pub(crate) directories: Vec<PathBuf>,
    /// Tasks that are finished at the end.
    pub(crate) reporters: Vec<BackgroundReporter>,
    /// Files that are written at the end.
    pub(crate) run_reports: RunReports,
    /// Triggers reading the policy again.
    pub(crate) reload: Arc<Notify>,
    /// Refusals so far.
    pub(crate) refusals: Arc<Refusals>,
    /// Asks a person about what is refused; `None` if nobody is asked.
    pub(crate) approvals: Option<Arc<Desk>>,
    /// Servers inside.
    pub(crate) servers: Arc<Servers>,
    /// Refused accesses to files, if they are logged.
    pub(crate) file_refusals: Option<Arc<FileRefusals>>,
    /// Reports to the gateway, if there is one.
    pub(crate) gateway: Option<GatewayReports>,
    /// The sessions with the gateway, which begin once the command runs.
    pub(crate) sessions: Option<Sessions>,
    /// Tasks that must not end before the sandbox does.
    pub(crate) tasks: Tasks,
    /// True once no more clients are let in from outside.
    pub(crate) closed: watch::Sender<bool>,
    /// Health and metrics, if they are wanted.
    pub(crate) monitoring: Option<Monitoring>,
    /// The stages of the start, until the command runs.
    pub(crate) timings: Option<Timings>,
    /// Held only so that it lives as long as the sandbox.
    pub(super) _resources: Resources,
}

impl Sandbox {
    /// Tells probes which phase the sandbox is in.
    pub(crate) fn enter(&self, phase: Phase) {
        if let Some(monitoring) = &self.monitoring {
            monitoring.health.enter(phase);
        }
    }

    /// Lets no more clients in from outside, and tells probes that the sandbox ends.
    pub(crate) fn close(&self) {
        self.enter(Phase::Draining);
        if let Some(approvals) = &self.approvals {
            approvals.close();
        }
        self.closed.send_replace(true);
    }
}

/// Resources of the host, in the order in which they are released.
pub(super) struct Resources {
    pub(super) _network: Network,
    pub(super) _proof: Option<UnixListener>,
    pub(super) _run_dir: RunDir,
}
