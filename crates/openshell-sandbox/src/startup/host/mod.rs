//! Makes everything that a sandbox has on the host, except its processes.

pub(crate) mod ca_files;
pub(crate) mod hosted;
pub(crate) mod resolver_files;
mod skill;
mod ssh_settings;

use std::fs::{DirBuilder, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_events::words::{ConfigState, Severity};
use openshell_supervisor::command::environment;
use openshell_supervisor::confine::{LandlockProof, Mount, Purpose};
use openshell_supervisor::files::carve_outs::CarveOut;
use openshell_supervisor::files::filesystem;
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::files::private_run;
use openshell_supervisor::files::protected::Covers;
use openshell_supervisor::host::privilege::{NOBODY, Privilege};
use openshell_supervisor::identity::run_as::User;
use openshell_supervisor::init::Init;
use openshell_supervisor::runs::run_dir::RunDir;
use openshell_supervisor::runs::run_dir::created_dirs::CreatedDirs;
use openshell_supervisor::runs::sandbox_files::SandboxFile;
use openshell_telemetry::logging;

use crate::config::Config;
use crate::startup::host::ca_files::{CaFiles, write_file};
use crate::startup::host::resolver_files::ResolverFiles;
use crate::startup::plan::Plan;

/// Everything that a start made on the host, in the order in which it is removed if the start
/// fails.
pub(crate) struct Host {
    pub(crate) private: PrivateFolders,
    pub(crate) tls: CaFiles,
    pub(crate) resolver_files: ResolverFiles,
    /// Mounts that keep git inside from adding placeholders, and show ssh inside the host's
    /// settings.
    pub(crate) tool_mounts: Vec<Mount>,
    /// The path inside of the text that tells agents how to ask for a line of policy.
    pub(crate) skill: Option<String>,
    pub(crate) made: CreatedDirs,
    pub(crate) run_dir: RunDir,
    /// The file system of the sandbox's files, if they have one.
    pub(crate) file_system: Option<OwnedFd>,
    /// The file rules of the plan and of the private home.
    pub(crate) landlock: Request,
    /// Home directory of the workload.
    pub(crate) home: PathBuf,
    /// The Landlock self-test.
    pub(crate) proof: LandlockProof,
    /// What is mounted over files and folders with secrets, and over hidden ones.
    pub(crate) covers: Covers,
    /// Paths to take out of what the policy grants.
    pub(crate) carve_outs: Vec<CarveOut>,
}

impl Host {
    /// Makes the run directory, missing folders, the trust files, and the Landlock self-test, in
    /// this order; with a text for agents if these may propose lines of policy. The process must
    /// receive signals already, because one that ended it could leave something behind.
    ///
    /// # Errors
    /// Fails if one of them cannot be made; those made before are removed.
    pub(crate) fn create(
        config: &Config,
        plan: &mut Plan,
        file_system: Option<OwnedFd>,
        is_proposing: bool,
    ) -> anyhow::Result<Self> {
        let Plan {
            user,
            landlock,
            writable,
            authority,
            ..
        } = plan;
        let authority = authority.take();
        let writable = || writable.iter().map(PathBuf::as_path);
        let mut run_dir = RunDir::create(
            config.files.run_dir.as_deref(),
            config.files.runtime_dir.as_deref(),
        )?;
        if config.is_named {
            run_dir.claim(&config.sandbox)?;
        }
        let uses = writable()
            .chain([config.tls.dir(), Path::new(skill::PLACE)])
            .chain(plan.carve_outs.paths());
        let mut made = CreatedDirs::new(&run_dir, uses)
            .context("cannot write to the run directory; see --run-dir")?;
        filesystem::prepare(writable(), &user.identity, &mut made)?;
        let mut lost = Vec::new();
        let found = plan.carve_outs.find(landlock, &mut made, &mut lost);
        for line in &lost {
            logging::config_event(ConfigState::Degraded, Severity::Medium, line);
        }
        let carve_outs = found?;
        let files = SandboxFile::root(file_system.as_ref(), &run_dir);
        let mut tool_mounts = git_excludes(plan.carve_outs.excludes(&mut made), &files)?;
        tool_mounts.extend(ssh_settings::create(
            &plan.privilege,
            landlock,
            &carve_outs,
            &files,
        )?);
        let skill = if is_proposing {
            skill::create(&files, &mut made)?
        } else {
            None
        };
        let shows_skill = skill.is_some();
        tool_mounts.extend(skill);
        let tls = CaFiles::create(config, landlock, authority, &files, &mut made)?;
        let resolver_files = ResolverFiles::create(config, &files)?;
        let private = PrivateFolders::create(user, landlock, &files)?;
        let landlock = match &private.home {
            Some(home) => landlock.clone().writing(home),
            None => landlock.clone(),
        };
        let proof = landlock_proof(&private, &files, &landlock)?;
        let covers = make_covers(&files)?;
        let home = private
            .home
            .clone()
            .or_else(|| environment::home(user, &landlock))
            .unwrap_or_default();
        Ok(Self {
            private,
            tls,
            resolver_files,
            tool_mounts,
            skill: shows_skill.then(|| skill::PLACE.to_owned()),
            made,
            run_dir,
            file_system,
            landlock,
            home,
            proof,
            covers,
            carve_outs,
        })
    }
}

/// Makes what is mounted over what the workload must not read.
fn make_covers(files: &SandboxFile) -> anyhow::Result<Covers> {
    let [file, folder] = ["cover", "covers"].map(|name| files.join(name));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o000);
    let made = options
        .open(file.outside())
        .and_then(|_| DirBuilder::new().mode(0o000).create(folder.outside()));
    made.with_context(|| format!("cannot write {file}"))?;
    Ok(Covers {
        file: file.inside().to_owned(),
        folder: folder.inside().to_owned(),
    })
}

/// Writes, among the sandbox's files, the lists of what git must not add. Returns the mounts that
/// put them in their places.
fn git_excludes(lists: Vec<(PathBuf, Vec<u8>)>, files: &SandboxFile) -> anyhow::Result<Vec<Mount>> {
    let mut mounts = Vec::with_capacity(lists.len());
    for (number, (target, content)) in lists.into_iter().enumerate() {
        let file = files.join(&format!("exclude{number}"));
        write_file(&file, [content.as_slice()])?;
        mounts.push(Mount {
            source: file.inside().to_owned(),
            target,
            purpose: Purpose::GitExclude,
        });
    }
    Ok(mounts)
}

/// Makes the file of the Landlock self-test.
fn landlock_proof(
    private: &PrivateFolders,
    files: &SandboxFile,
    landlock: &Request,
) -> anyhow::Result<LandlockProof> {
    if private.run {
        return Ok(LandlockProof::File(private_run::PROOF.into()));
    }
    let proof = files.join("proof");
    std::fs::write(proof.outside(), "").with_context(|| format!("cannot write {proof}"))?;
    let path = proof.inside().to_owned();
    // If the policy grants the path, mounts protect it, and it proves nothing about Landlock.
    Ok(if landlock.grants_reading(&path) {
        LandlockProof::AbstractSocket(path.into_os_string().into_encoded_bytes())
    } else {
        LandlockProof::File(path)
    })
}

/// Folders that the workload gets instead of the host's.
pub(crate) struct PrivateFolders {
    /// True if the host's /run is replaced.
    pub(crate) run: bool,
    /// A private home, if the user has none that the workload can use.
    pub(crate) home: Option<PathBuf>,
}

impl PrivateFolders {
    fn create(user: &User, landlock: &Request, files: &SandboxFile) -> anyhow::Result<Self> {
        let run = landlock.replaces_run();
        if environment::home(user, landlock).is_some() {
            return Ok(Self { run, home: None });
        }
        if run {
            return Ok(Self {
                run,
                home: Some(private_run::HOME.into()),
            });
        }
        let home = files.join("home");
        std::fs::create_dir(home.outside()).with_context(|| format!("cannot make {home}"))?;
        Ok(Self {
            run,
            home: Some(home.inside().to_owned()),
        })
    }
}

/// Logs properties of the host that weaken the sandbox.
pub(crate) fn log_limits(init: &Init, privilege: &Privilege) {
    log_root(privilege);
    log_shared_pids(init);
    log_core_socket();
}

fn log_root(privilege: &Privilege) {
    if privilege.caller().is_some_and(|caller| caller.uid == 0) {
        let message = format!(
            "the command is root outside, and {NOBODY} inside, so Unix permissions give it root's \
             files; only the file rules protect those that the policy does not grant; start as \
             another user, or with the capabilities of root"
        );
        logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
    }
}

fn log_shared_pids(init: &Init) {
    if let Some(why) = init.shared_pids() {
        let message = format!("the sandbox shares the supervisor's PID namespace: cannot {why}");
        logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
    }
}

/// Warns if core dumps are handed to a socket. The limit of core dumps does not stop such a
/// handler, but it does stop a handler behind a pipe.
fn log_core_socket() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('@') {
        let message = "the kernel hands a crash inside to the host's socket for core dumps \
                       (kernel.core_pattern)";
        logging::config_event(ConfigState::Degraded, Severity::High, message);
    }
}
