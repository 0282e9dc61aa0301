//! Makes everything that a sandbox has on the host, beside its processes.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::confine::LandlockProof;
use openshell_supervisor::init::Init;
use openshell_supervisor::landlock::Request;
use openshell_supervisor::run_as::User;
use openshell_supervisor::run_dir::RunDir;
use openshell_supervisor::run_dir::created_dirs::CreatedDirs;
use openshell_supervisor::{environment, filesystem, private_run};

use crate::config::Config;
use crate::lints;
use crate::logging;
use crate::startup::ca_files::CaFiles;
use crate::startup::plan::Plan;

/// Everything that a start made on the host, in the order in which it is removed if the start fails.
pub(super) struct Host {
    pub(super) private: PrivateFolders,
    pub(super) tls: CaFiles,
    pub(super) made: CreatedDirs,
    pub(super) run_dir: RunDir,
    /// File rules of the plan, and the private home.
    pub(super) landlock: Request,
    /// Home directory of the workload.
    pub(super) home: PathBuf,
    /// The Landlock self-test.
    pub(super) proof: LandlockProof,
}

impl Host {
    /// Makes the run directory, missing folders, the trust files, and the Landlock self-test, in this order. Signals must be
    /// received already, or one could leave something behind.
    ///
    /// # Errors
    /// One of them cannot be made; those made before are removed.
    pub(super) fn create(config: &Config, plan: &Plan) -> anyhow::Result<Self> {
        let Plan { user, landlock, writable, .. } = plan;
        let writable = || writable.iter().map(PathBuf::as_path);
        let run_dir = RunDir::create(config.run_dir.as_deref(), config.runtime_dir.as_deref())?;
        let uses = writable().chain([config.tls_dir()]);
        let mut made = CreatedDirs::new(&run_dir, uses).context("cannot write to the run directory; see --run-dir")?;
        filesystem::prepare(writable(), &user.identity, &mut made)?;
        warn_of_writable_inputs(config, run_dir.path(), user, landlock);
        let tls = CaFiles::create(config, &run_dir, &mut made)?;
        let private = PrivateFolders::create(user, landlock, &run_dir)?;
        let landlock = match &private.home {
            Some(home) => landlock.clone().writing(home),
            None => landlock.clone(),
        };
        let proof = landlock_proof(&private, &run_dir, &landlock)?;
        let home = private.home.clone().or_else(|| environment::home(user, &landlock)).unwrap_or_default();
        Ok(Self { private, tls, made, run_dir, landlock, home, proof })
    }
}

/// Makes the file of the Landlock self-test.
fn landlock_proof(private: &PrivateFolders, run_dir: &RunDir, landlock: &Request) -> anyhow::Result<LandlockProof> {
    if private.run {
        return Ok(LandlockProof::File(private_run::PROOF.into()));
    }
    let path = run_dir.path().join("proof");
    std::fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
    Ok(match landlock.grants_writing(&path) {
        false => LandlockProof::File(path),
        true => LandlockProof::AbstractSocket(path.into_os_string().into_encoded_bytes()),
    })
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

/// Warns of files that the sandbox relies on and the workload can change.
fn warn_of_writable_inputs(config: &Config, run_dir: &Path, user: &User, landlock: &Request) {
    let log = config.log_dir.as_deref().map(|folder| ("log folder", folder));
    let folders = log.into_iter().chain([("run folder", run_dir)]);
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
