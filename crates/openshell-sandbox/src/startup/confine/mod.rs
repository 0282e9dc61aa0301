//! Confines init, and makes the environment of the commands inside.

pub(crate) mod confined;
pub(crate) mod main_output;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_sources::secrets::credential_file::CredentialSet;
use openshell_supervisor::calls::file_calls::FileRights;
use openshell_supervisor::calls::waiting_calls::WaitingCalls;
use openshell_supervisor::command::environment::{self, Environment, Inputs};
use openshell_supervisor::command::signals::{self, Received, SignalAction};
use openshell_supervisor::command::streams::Streams;
use openshell_supervisor::confine::{Confinement, Enforced, Mount, Purpose};
use openshell_supervisor::files::carve_outs::{CarveOut, Restriction};
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::files::private_tmp;
use openshell_supervisor::files::protected::{PROGRAM, ProtectedPath, Protection};
use openshell_supervisor::identity::run_as::{self, User};
use openshell_supervisor::init::Init;
use openshell_supervisor::init::launch::{Confining, Launcher};
use openshell_supervisor::paths::missing::is_missing;
use openshell_supervisor::seccomp::ioctls::Family;
use openshell_supervisor::seccomp::notify::FileCalls;
use openshell_telemetry::logging;
use rustix::fs::Access;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

use crate::cli::NetworkMode;
use crate::config::Config;
use crate::reports::run_reports::RunReports;
use crate::startup::groundwork::network::{self, Network};
use crate::startup::host::Host;
use crate::startup::host::ca_files;
use crate::startup::plan::Plan;
use crate::startup::plan::carve_out_loss::ends_when_lost;

/// A confined init.
pub(crate) struct ConfinedInit {
    pub(crate) launcher: Arc<Launcher>,
    /// The file rules in force.
    pub(crate) granted: Request,
    /// Calls of the sandbox that wait for the supervisor's answer, if there are any.
    pub(crate) waiting_calls: Option<WaitingCalls>,
    enforced: Enforced,
    /// Files with secrets that the workload must not read.
    secrets: Vec<PathBuf>,
    /// Paths that are taken out of what the policy grants.
    carve_outs: Vec<CarveOut>,
}

impl ConfinedInit {
    /// Makes init confine itself, while other parts of the start go on.
    ///
    /// # Errors
    /// Fails if init is gone.
    pub(crate) fn start(
        config: &Config,
        plan: &Plan,
        host: &mut Host,
        protected: Vec<ProtectedPath>,
        init: Init,
    ) -> anyhow::Result<PendingConfinement> {
        let mounts = take_mounts(host, &protected);
        let landlock = host.landlock.clone();
        let mut granted = if host.tls.authority.is_none() {
            landlock
        } else {
            landlock.reading(&host.tls.folder)
        };
        for mount in host.resolver_files.mounts() {
            granted = granted.reading(&mount.target);
        }
        let secrets = protected
            .iter()
            .filter(|path| path.holds_secret)
            .map(|path| path.path.clone())
            .collect();
        let carve_outs = std::mem::take(&mut host.carve_outs);
        let is_hidden = |carve_out: &CarveOut| carve_out.restriction == Restriction::Hidden;
        let has_hidden =
            protected.iter().any(|path| path.holds_secret) || carve_outs.iter().any(is_hidden);
        let confinement = Confinement {
            files: host
                .file_system
                .as_ref()
                .map(|_| host.run_dir.path().to_owned()),
            private_run: host.private.run,
            tmp_bytes: config
                .files
                .tmp_size
                .unwrap_or_else(private_tmp::default_size),
            home: host.private.home.clone(),
            homes: plan.homes.clone(),
            landlock: granted.clone(),
            mounts,
            covers: has_hidden.then(|| host.covers.clone()),
            protected,
            carve_outs: carve_outs.clone(),
            ends_when_lost: ends_when_lost(config.files.carve_outs.carve_out_lost),
            keep_visible: config.command.workdir.clone(),
            identity: plan.user.identity.clone(),
            sockets: network::sockets(config),
            landlock_proof: host.proof.clone(),
            is_init_exposed: false,
            masks: None,
            devices: Family::of(host.landlock.listed()),
            debug: plan.debug,
            shares_pids: init.shared_pids().is_some(),
            file_calls: match (config.reports.observe_files, config.log.files) {
                (true, _) => FileCalls::AccessesAndLookups,
                (false, true) => FileCalls::Accesses,
                (false, false) => FileCalls::None,
            },
        };
        Ok(PendingConfinement {
            confining: Confining::start(init, confinement)?,
            granted,
            secrets,
            carve_outs,
        })
    }

    /// Returns the protection of the files that are read again while the sandbox runs.
    pub(crate) fn protection(&self) -> Protection {
        self.launcher
            .protection(&self.enforced, &self.secrets, self.granted.clone())
    }

    /// Returns the file rights in force, and those of the policy only: without carve-outs, and
    /// without what is shown to learn from.
    pub(crate) fn file_rights(&self) -> (FileRights, FileRights) {
        let rights = FileRights::new(&self.granted, &self.carve_outs)
            .with_stand_ins(&self.enforced.stand_ins);
        (
            rights,
            FileRights::new(&self.granted.without_learning(), &[]),
        )
    }

    /// Returns the carve-outs, in the order in which init numbers them.
    pub(crate) fn carve_outs(&self) -> &[CarveOut] {
        &self.carve_outs
    }

    /// Logs which restrictions are in force, and which are not.
    ///
    /// # Errors
    /// Fails if the groups of the command cannot be named.
    pub(crate) fn log(
        &self,
        config: &Config,
        plan: &Plan,
        network: &Network,
    ) -> anyhow::Result<()> {
        let Self {
            launcher, enforced, ..
        } = self;
        let granted = &enforced.landlock;
        if !enforced.not_masked.is_empty() {
            let message = format!(
                "the command can reach what the policy does not grant: {}",
                enforced.not_masked.join("; ")
            );
            logging::config_event(ConfigState::Degraded, Severity::High, &message);
        }
        let lacking = lacking(enforced);
        if !lacking.is_empty() {
            logging::config_event(
                ConfigState::Degraded,
                Severity::Medium,
                &format!("not enforced (best effort): {}", lacking.join("; ")),
            );
        }
        let how = match (config.network.mode, network.proxy()) {
            (NetworkMode::Allow, _) => "network open".to_owned(),
            (_, Some(proxy)) => format!("network through {proxy}"),
            (_, None) => "no network".to_owned(),
        };
        let abi = granted.abi;
        let who = identity(plan)?;
        let devices: Vec<_> = Family::of(self.granted.listed())
            .into_iter()
            .map(Family::as_str)
            .collect();
        let devices = match devices.as_slice() {
            [] => String::new(),
            families => format!(" with commands of devices ({})", families.join(", ")),
        };
        let message = format!(
            "confined: Landlock ABI {abi}, system-call filter{devices}, {how}, {who}; init is \
             process {}",
            launcher.init_pid()
        );
        logging::config_event(ConfigState::Enforced, Severity::Info, &message);
        Ok(())
    }
}

/// Takes the mounts of what the start made.
fn take_mounts(host: &mut Host, protected: &[ProtectedPath]) -> Vec<Mount> {
    let mut mounts = std::mem::take(&mut host.tls.mounts);
    // In the merged folder a protected file would be a different file, so the folder is not
    // merged.
    let is_within = |mount: &Mount| {
        protected
            .iter()
            .any(|file| file.path.starts_with(&mount.target))
    };
    mounts.retain(|mount| mount.purpose != Purpose::AmongTrusted || !is_within(mount));
    mounts.append(&mut host.tool_mounts);
    mounts.extend(host.resolver_files.mounts());
    mounts
}

/// Describes the file rules that are not in force.
fn lacking(enforced: &Enforced) -> Vec<String> {
    let mut lacking = Vec::new();
    for path in &enforced.landlock.missing_paths {
        lacking.push(format!("path {path}"));
    }
    for right in &enforced.landlock.missing_rights {
        lacking.push(format!("not restricted by this kernel: {right}"));
    }
    if let Some(what) = &enforced.not_proved {
        lacking.push(format!("not proved: {what}"));
    }
    lacking
}

/// Files of the host with passwords, which root and members of the group shadow may read.
const PASSWORD_FILES: &[&str] = &[
    "/etc/shadow",
    "/etc/gshadow",
    "/etc/shadow-",
    "/etc/gshadow-",
];

/// Returns the files and folders of the run that the workload must not change, or must not read,
/// whatever the policy grants.
///
/// # Errors
/// Fails if the workload could make one of their paths lead elsewhere, or if the policy grants one
/// of the folders itself.
pub(crate) fn protected(
    config: &Config,
    plan: &Plan,
    host: &Host,
    reports: &RunReports,
) -> anyhow::Result<Vec<ProtectedPath>> {
    let program = std::env::current_exe().ok();
    let others = run_folders_of_others(config, plan, host);
    let mut kept: Vec<(&str, &Path)> = config.inputs.policy.paths().collect();
    if let Some(file) = &config.tls.upstream_ca_file {
        kept.push(("--upstream-ca-file", file));
    }
    kept.extend(reports.paths());
    let is_supervisors = plan.user.identity.is_supervisors();
    kept.push((
        "run folder (--run-dir)",
        host.run_dir.protected(is_supervisors),
    ));
    if host.file_system.is_some() {
        // A mount of its own in that folder, which holds the sandbox's files.
        kept.push((
            "folder of the sandbox's files (--run-dir)",
            host.run_dir.path(),
        ));
    }
    if let Some(program) = &program {
        kept.push((PROGRAM, program));
    }
    if let Some(others) = &others {
        kept.push(("run folder of other sandboxes", others));
    }
    // Root's files are safe in a folder that the policy grants and Unix permissions close.
    if let Some(folder) = &config.log.dir
        && (!host.landlock.grants_itself(folder, true) || plan.may_change_in(folder))
    {
        kept.push(("log folder (--log-dir)", folder));
    }
    let mut secrets: Vec<(&str, &Path)> = Vec::new();
    for (what, path) in &config.inputs.secrets {
        secrets.push((what, path));
    }
    let hosts = hosts_secrets(plan, host)?;
    for path in &hosts {
        secrets.push(("host's file with secrets", path));
    }
    let mut protected = Vec::new();
    for (paths, holds_secret) in [(kept, false), (secrets, true)] {
        for (what, path) in paths {
            let Some(found) = ProtectedPath::find(what, path, holds_secret, &host.landlock)? else {
                continue;
            };
            let is_made = host.file_system.is_some() && path.starts_with(host.run_dir.path());
            protected.push(if is_made { found.made_inside() } else { found });
        }
    }
    let certificates = &host.tls.folder;
    if certificates.starts_with(host.run_dir.path()) {
        // Outside there may be none.
        let what = "folder of the sandbox's certificates";
        protected.push(ProtectedPath::new(what, certificates));
    }
    Ok(protected)
}

/// Returns the folder of other starts of the same user, if the workload has that user.
fn run_folders_of_others(config: &Config, plan: &Plan, host: &Host) -> Option<PathBuf> {
    if !plan.user.identity.is_supervisors() {
        return None;
    }
    let place = config.files.runtime_dir.as_deref()?.join("openshell");
    Some(place).filter(|place| !host.run_dir.path().starts_with(place))
}

/// Returns the files of the host with secrets that the workload could read and the policy does not
/// name. Root without capabilities, and members of the group shadow, may read some in /etc, which
/// the baseline grants.
fn hosts_secrets(plan: &Plan, host: &Host) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = match plan.privilege.caller() {
        Some(caller) if caller.uid == 0 => closed_files(Path::new("/etc"))?,
        Some(_) => PASSWORD_FILES.iter().map(PathBuf::from).collect(),
        None => Vec::new(),
    };
    files.retain(|path| {
        rustix::fs::access(path, Access::READ_OK).is_ok()
            && !host.landlock.grants_itself(path, false)
    });
    Ok(files)
}

/// The most entries of /etc that are examined.
const CLOSED_ENTRIES: usize = 20_000;

/// Returns the files in `folder` that not everybody may read, or that lie in a folder that not
/// everybody may enter.
///
/// # Errors
/// Fails if there are more than [`CLOSED_ENTRIES`] entries, because some could be missed.
fn closed_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![(folder.to_owned(), false)];
    let mut seen = 0;
    while let Some((folder, is_closed)) = left.pop() {
        if seen > CLOSED_ENTRIES {
            bail!(
                "cannot find all of root's files: the search stopped at {} after {CLOSED_ENTRIES} \
                 entries; this run is root outside, so the command could read the other files; \
                 start as another user",
                folder.display()
            );
        }
        let failed = || format!("cannot search {} for root's files", folder.display());
        let entries = match std::fs::read_dir(&folder) {
            // The command cannot enter it either, nor change its mode: /etc is read-only inside.
            Err(error) if is_missing(&error) || error.kind() == io::ErrorKind::PermissionDenied => {
                continue;
            }
            entries => entries.with_context(failed)?,
        };
        for entry in entries {
            let entry = entry.with_context(failed)?;
            seen += 1;
            let data = match entry.metadata() {
                Err(error)
                    if is_missing(&error) || error.kind() == io::ErrorKind::PermissionDenied =>
                {
                    continue;
                }
                data => data.with_context(failed)?,
            };
            if data.is_dir() {
                left.push((entry.path(), is_closed || data.mode() & 0o001 == 0));
            } else if data.is_file() && (is_closed || data.mode() & 0o004 == 0) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Describes the identity of commands: the user, how commands came to run as that user, and the
/// groups that they keep.
fn identity(plan: &Plan) -> anyhow::Result<String> {
    let user = &plan.user.name;
    let Some(caller) = plan.privilege.caller() else {
        return Ok(format!("user {user}"));
    };
    Ok(
        match run_as::group_names(&caller.groups)?.join(", ").as_str() {
            "" => format!("the caller {user} in a user namespace"),
            groups => {
                format!("the caller {user} in a user namespace, who stays in the groups {groups}")
            }
        },
    )
}

/// A confinement that init is making. It may have to wait for a slow file system.
pub(crate) struct PendingConfinement {
    confining: Confining,
    granted: Request,
    secrets: Vec<PathBuf>,
    carve_outs: Vec<CarveOut>,
}

impl PendingConfinement {
    /// Lets init go on, in `network`, for a command with these `streams`.
    ///
    /// # Errors
    /// Fails if a stream cannot be examined.
    pub(crate) fn enter(&self, network: &Network, streams: &Streams) -> io::Result<()> {
        let outputs = streams.output_files()?;
        self.confining.enter(
            network.netns.as_ref().map(AsFd::as_fd),
            network.probe_address(),
            &outputs,
        );
        Ok(())
    }

    /// Returns the init that is confining itself.
    pub(crate) fn init(&self) -> &Init {
        self.confining.init()
    }

    /// Waits until init is confined, or a signal ends the sandbox. If the trust files are missing
    /// inside, connections whose TLS needs interception will be denied.
    ///
    /// # Errors
    /// Fails if a restriction cannot be enforced or proved, or a signal ended the start.
    pub(crate) async fn finish(
        self,
        host: &mut Host,
        signals: &mut mpsc::Receiver<Received>,
    ) -> anyhow::Result<ConfinedInit> {
        let Self {
            confining,
            mut granted,
            secrets,
            carve_outs,
        } = self;
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does \
                      not"
        )]
        let reply = AsyncFd::new(confining.as_fd().try_clone_to_owned()?)?;
        loop {
            tokio::select! {
                is_there = reply.readable() => { let _ = is_there?; break }
                Some(signal) = signals.recv() => {
                    if signals::action(signal, false) == SignalAction::Terminate {
                        bail!("signal {} ended the start", signal.number);
                    }
                }
            }
        }
        drop(reply);
        let (launcher, enforced, waiting_calls) = confining.finish()?;
        if let Some(why) = &enforced.no_trust {
            ca_files::log_unavailable(why);
            host.tls.authority = None;
        }
        if let Some(why) = &enforced.no_learning_home {
            granted.close_learning_home();
            logging::config_event(ConfigState::Degraded, Severity::Medium, why);
        }
        if let Some(why) = &enforced.not_among_trusted {
            let message = format!(
                "programs that look certificates up by their hashes do not find the sandbox's: \
                 {why}"
            );
            logging::config_event(ConfigState::Degraded, Severity::Low, &message);
        }
        if let Some(why) = &enforced.no_names {
            network::log_no_names(why);
        }
        Ok(ConfinedInit {
            launcher: Arc::new(launcher),
            granted,
            waiting_calls,
            enforced,
            secrets,
            carve_outs,
        })
    }
}

/// Makes the environment of every command.
pub(crate) fn environment(
    config: &Config,
    user: &User,
    host: &Host,
    network: &Network,
    credentials: Option<&CredentialSet>,
) -> Environment {
    let placeholders: Vec<_> = credentials
        .iter()
        .flat_map(|credentials| &credentials.variables)
        .cloned()
        .collect();
    let is_private = |folder: &Path| {
        host.landlock
            .private()
            .iter()
            .any(|private| private == folder)
    };
    let is_shown = |folder: &Path| host.landlock.shows(folder) && user.identity.may_write(folder);
    let is_scratch = |folder: &Path| {
        host.landlock.grants_writing(folder) && (is_private(folder) || is_shown(folder))
    };
    environment::workload(&Inputs {
        placeholders: &placeholders,
        caller: &config.command.environment,
        user,
        home: &host.home,
        is_scratch: &is_scratch,
        host_name: rustix::system::uname()
            .nodename()
            .to_str()
            .unwrap_or_default(),
        proxy: network.proxy().map(SocketAddr::V4),
        trust: host
            .tls
            .authority
            .as_ref()
            .map(|_| host.tls.folder.as_path()),
        has_java: host.tls.has_java,
    })
}
