//! Makes everything that a sandbox has on the host, beside its processes.

use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::confine::LandlockProof;
use openshell_supervisor::init::Init;
use openshell_supervisor::landlock::Request;
use openshell_supervisor::netns::Netns;
use openshell_supervisor::run_as::User;
use openshell_supervisor::run_dir::RunDir;
use openshell_supervisor::run_dir::created_dirs::CreatedDirs;
use openshell_supervisor::streams::{Inspected, Streams};
use openshell_supervisor::{environment, filesystem, netns, private_run};

use crate::config::Config;
use crate::lints;
use crate::logging;
use crate::startup::ca_files::CaFiles;
use crate::startup::network::{Network, PendingNetwork, ProxySockets};
use crate::startup::plan::Plan;

/// Everything that a start made on the host, in the order in which it is removed if the start fails.
pub(super) struct Host {
    pub(super) proof: Proof,
    pub(super) private: PrivateFolders,
    pub(super) streams: Streams,
    pub(super) tls: CaFiles,
    pub(super) network: Network,
    /// Taken by the proxy.
    pub(super) sockets: Option<ProxySockets>,
    pub(super) made: CreatedDirs,
    pub(super) run_dir: RunDir,
    /// File rules of the plan, and the private home.
    pub(super) landlock: Request,
    /// Home directory of the workload.
    pub(super) home: PathBuf,
}

impl Host {
    /// Makes the run directory, missing folders, the trust files, the relays of the standard streams, and the Landlock
    /// self-test, in this order; `network` is needed from the relays on. Signals must be received already, or one could leave something behind.
    ///
    /// # Errors
    /// One of them cannot be made; those made before are removed.
    pub(super) fn create(
        config: &Config,
        plan: &Plan,
        network: PendingNetwork,
        streams: Inspected<'_>,
    ) -> anyhow::Result<Self> {
        let Plan { user, landlock, writable } = plan;
        let writable = || writable.iter().map(PathBuf::as_path);
        let run_dir = RunDir::create(config.run_dir.as_deref())?;
        let uses = writable().chain([config.tls_dir.as_path()]);
        let mut made = CreatedDirs::new(&run_dir, uses).context("cannot write to the run directory; see --run-dir")?;
        filesystem::prepare(writable(), &user.identity, &mut made)?;
        warn_of_writable_inputs(config, run_dir.path(), user, landlock);
        let tls = CaFiles::create(config, &run_dir, &mut made)?;
        let (network, sockets) = network.finish()?;
        let streams = match &network.netns {
            Some(netns) => netns::run_in(netns.as_fd(), || Ok(streams.open()))??,
            None => streams.open()?,
        };
        let private = PrivateFolders::create(user, landlock, &run_dir)?;
        let landlock = match &private.home {
            Some(home) => landlock.clone().writing(home),
            None => landlock.clone(),
        };
        let proof = Proof::create(&private, &run_dir, &landlock, network.netns.as_ref())?;
        let home = private.home.clone().or_else(|| environment::home(user, &landlock)).unwrap_or_default();
        Ok(Self { proof, private, streams, tls, network, sockets, made, run_dir, landlock, home })
    }
}

/// Folders that the workload gets instead of the host's.
pub(super) struct PrivateFolders {
    /// True if the host's /run is replaced.
    pub(super) run: bool,
    /// A home, if the user has none that the workload can use.
    pub(super) home: Option<PathBuf>,
}

impl PrivateFolders {
    fn create(user: &User, landlock: &Request, run_dir: &RunDir) -> anyhow::Result<Self> {
        let run = landlock.replaces_run();
        if environment::home(user, landlock).is_some() {
            return Ok(Self { run, home: None });
        }
        let home = match run {
            true => PathBuf::from(private_run::HOME),
            false => run_dir.path().join("home"),
        };
        if !run {
            std::fs::create_dir(&home).with_context(|| format!("cannot make {}", home.display()))?;
        }
        Ok(Self { run, home: Some(home) })
    }
}

/// The Landlock self-test, and the socket it needs.
pub(super) struct Proof {
    pub(super) proof: LandlockProof,
    _socket: Option<UnixListener>,
}

impl Proof {
    fn create(
        private: &PrivateFolders,
        run_dir: &RunDir,
        landlock: &Request,
        netns: Option<&Netns>,
    ) -> anyhow::Result<Self> {
        if private.run {
            return Ok(Self { proof: LandlockProof::File(private_run::PROOF.into()), _socket: None });
        }
        let path = run_dir.path().join("proof");
        std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        if !landlock.grants_writing(&path) {
            return Ok(Self { proof: LandlockProof::File(path), _socket: None });
        }
        // Abstract sockets are a network namespace's, so this one must be in the sandbox's to be in reach at all.
        let name = path.into_os_string().into_encoded_bytes();
        let bind = || UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name)?);
        let bound = match netns {
            Some(netns) => netns::run_in(netns.as_fd(), bind),
            None => bind(),
        };
        let socket = bound.context("cannot open the abstract socket that proves Landlock")?;
        Ok(Self { proof: LandlockProof::AbstractSocket(name), _socket: Some(socket) })
    }
}

/// Warns of files that the sandbox relies on and the workload can change.
fn warn_of_writable_inputs(config: &Config, run_dir: &Path, user: &User, landlock: &Request) {
    let folders = [("log folder", config.log_dir.as_path()), ("run folder", run_dir)];
    for line in lints::files::writable(config.inputs().chain(folders), &user.identity, landlock) {
        logging::config_event(ConfigState::Validated, Severity::Medium, &format!("policy warning: {line}"));
    }
}

/// Logs properties of the host that weaken the sandbox.
pub(super) fn log_limits(init: &Init) {
    log_shared_pids(init);
    log_core_socket();
}

fn log_shared_pids(init: &Init) {
    if let Some(why) = init.shared_pids() {
        let message = format!("the sandbox shares the supervisor's process numbers: cannot {why}");
        logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
    }
}

/// Logs a handler of core dumps behind a socket, which the limit of core dumps does not keep from running; one behind a pipe
/// it does.
fn log_core_socket() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('@') {
        let message = "a crash inside is handed to the host's socket for core dumps (kernel.core_pattern)";
        logging::config_event(ConfigState::Degraded, Severity::High, message);
    }
}
