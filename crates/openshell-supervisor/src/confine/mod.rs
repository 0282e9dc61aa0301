//! Everything that confines a workload, prepared, as the ordered steps that init and each of its children walk.

use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets, LinkNameSpaceType};
use serde::{Deserialize, Serialize};

use crate::landlock::{CompensatingMechanisms, Granted, LandlockError, Request, Resolved};
use crate::masked_paths::mask_all_but;
use crate::private_run;
use crate::run_as::ProcessIdentity;
use crate::seccomp::filter::{CompileError, Filter};
use crate::seccomp::rules::{Sockets, rows};
use crate::trusted_symlinks::resolve;

/// What a sandbox's commands are confined by.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Confinement {
    /// Files.
    pub landlock: Request,
    /// What is shown inside elsewhere than it lies.
    pub mounts: Vec<Mount>,
    /// True if the sandbox has a /run of its own.
    pub private_run: bool,
    /// Where it has a home of its own, if it has one.
    pub home: Option<PathBuf>,
    /// A path that stays in sight although it is not granted; the rest that is not granted is covered.
    pub keep_visible: Option<PathBuf>,
    /// Identity.
    pub identity: ProcessIdentity,
    /// Sockets.
    pub sockets: Sockets,
    /// What proves that Landlock is in force.
    pub landlock_proof: LandlockProof,
    /// A listener of the supervisor that the fence must refuse; `None` where there is no fence.
    pub firewall_probe: Option<SocketAddrV4>,
}

/// A file or folder of the supervisor's that is shown in place of another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What is shown.
    pub source: PathBuf,
    /// Where; it must exist.
    pub target: PathBuf,
    /// Whether something else fails without it.
    pub is_needed: bool,
}

/// An act that succeeds unless Landlock refuses it. Init tries it as root, so that file modes decide nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LandlockProof {
    /// Opening this file of the supervisor for writing.
    File(PathBuf),
    /// Connecting to this abstract socket of the supervisor, where the policy grants the place of the file.
    AbstractSocket(Vec<u8>),
}

/// What init reports when the steps that it takes for all commands have been taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// What the kernel granted of the file rules.
    pub landlock: Granted,
    /// What could not be proved, in words.
    pub not_proved: Option<String>,
    /// What is not granted and could not be covered, in words.
    pub not_masked: Vec<String>,
    /// What is needed and could not be shown, in words.
    pub not_mounted: Option<String>,
}

/// Why the confinement of all commands failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum ApplyError {
    #[error("cannot enter the sandbox's network namespace")]
    Network { source: io::Error },
    #[error("cannot replace the host's /run in the sandbox, where services have their sockets")]
    Run { source: io::Error },
    #[error("cannot mount a home of the sandbox's own at {path}")]
    Home { path: PathBuf, source: io::Error },
    #[error(
        "not everything that the policy does not grant can be covered, and `landlock.compatibility` is hard_requirement: {0}"
    )]
    NotMasked(String),
    #[error(transparent)]
    Landlock(LandlockError),
    #[error("Landlock is not in force: {0} succeeded although no rule grants it")]
    LandlockNotProved(String),
    #[error("cannot try whether Landlock is in force: {0}")]
    LandlockProof(String, #[source] io::Error),
    #[error(transparent)]
    Filter(CompileError),
}

/// A step that a command's process takes before it becomes the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the steps in `Confinement::apply_to_child`")]
pub enum Step {
    Session,
    Terminal,
    StandardStreams,
    Descriptors,
    CoreLimit,
    BoundingSet,
    AmbientSet,
    Groups,
    Group,
    User,
    Capabilities,
    IdentityVerified,
    WorkingDirectory,
    NoNewPrivileges,
    Signals,
    SystemCallFilter,
    SystemCallFilterProved,
    IdentityProved,
    FirewallProved,
}

impl Step {
    /// What the step does, after "cannot".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "start a session",
            Self::Terminal => "take the terminal",
            Self::StandardStreams => "take the standard streams",
            Self::Descriptors => "close inherited descriptors",
            Self::CoreLimit => "switch core dumps off",
            Self::BoundingSet => "empty the capability bounding set (it needs CAP_SETPCAP)",
            Self::AmbientSet => "empty the ambient capabilities",
            Self::Groups => "drop supplementary groups (it needs CAP_SETGID)",
            Self::Group => "change the group (it needs CAP_SETGID)",
            Self::User => "change the user (it needs CAP_SETUID)",
            Self::Capabilities => "give up capabilities",
            Self::IdentityVerified => "verify the identity that was taken",
            Self::WorkingDirectory => "enter the working directory",
            Self::NoNewPrivileges => "set no_new_privs",
            Self::Signals => "reset signals",
            Self::SystemCallFilter => "install the system-call filter (the kernel must have CONFIG_SECCOMP_FILTER)",
            Self::SystemCallFilterProved => "prove the system-call filter: memfd_create was not refused",
            Self::IdentityProved => "prove the identity: becoming root again was not refused",
            Self::FirewallProved => "prove the fence: a connection past the proxy was not refused at once",
        }
    }
}

/// A step that failed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailed {
    /// Which.
    pub step: Step,
    /// The system's error number.
    pub errno: i32,
}

impl Confinement {
    /// Init's part, once, for all commands: the covers, the network namespace, then the Landlock domain, under which there
    /// are no mounts any more, then its proof.
    pub(crate) fn apply_to_init(&self, network: Option<BorrowedFd<'_>>) -> Result<(Enforced, Filter), ApplyError> {
        // A filter that cannot be compiled must stop the start, not the first command.
        let filter = Filter::compile(rows(self.sockets)).map_err(ApplyError::Filter)?;
        // Before paths are resolved, as what lies there by then is what is granted.
        let not_mounted = self.mount();
        let mut granted = self.landlock.resolve();
        self.mount_private_dirs(&granted)?;
        granted.iter_mut().for_each(Resolved::retry_missing);
        // The host's sockets are listed where the host's network is.
        let not_masked = mask_all_but(self.visible(&granted), self.identity.uid);
        if self.landlock.is_hard() && !not_masked.is_empty() {
            return Err(ApplyError::NotMasked(not_masked.join("; ")));
        }
        if let Some(network) = network {
            rustix::thread::move_into_link_name_space(network, Some(LinkNameSpaceType::Network))
                .map_err(|errno| ApplyError::Network { source: errno.into() })?;
        }
        // Whoever has PIDs of its own is the first of them.
        let scopes = network.is_some() && rustix::process::getpid().is_init();
        let compensating = CompensatingMechanisms { masked_sockets: not_masked.is_empty(), scopes };
        let landlock = self.landlock.enforce(granted, compensating).map_err(ApplyError::Landlock)?;
        let not_proved = self.prove_landlock(&landlock)?;
        Ok((Enforced { landlock, not_proved, not_masked, not_mounted }, filter))
    }

    fn mount(&self) -> Option<String> {
        let mut failed = None;
        for Mount { source, target, is_needed } in &self.mounts {
            let mounted = rustix::mount::mount_bind(source, target);
            if let Err(errno) = mounted
                && *is_needed
            {
                failed = Some(format!("cannot show {} in the sandbox: {errno}", target.display()));
            }
        }
        failed
    }

    /// The folders that this sandbox alone has.
    fn mount_private_dirs(&self, granted: &[Resolved<'_>]) -> Result<(), ApplyError> {
        if self.private_run {
            let visible = self.visible(granted).collect();
            private_run::replace(&visible).map_err(|source| ApplyError::Run { source })?;
        }
        let Some(home) = &self.home else { return Ok(()) };
        private_run::mount_home(home, &self.identity).map_err(|source| ApplyError::Home { path: home.clone(), source })
    }

    /// What is granted, and the file that must be there for its refusal to prove something.
    fn visible(&self, granted: &[Resolved<'_>]) -> impl Iterator<Item = PathBuf> {
        let proof = match &self.landlock_proof {
            LandlockProof::File(path) => Some(path.clone()),
            LandlockProof::AbstractSocket(_) => None,
        };
        granted
            .iter()
            .flat_map(Resolved::visible)
            .chain(proof)
            .chain(self.keep_visible.as_deref().and_then(|path| resolve(path).ok()))
    }

    fn prove_landlock(&self, granted: &Granted) -> Result<Option<String>, ApplyError> {
        let (act, result) = match &self.landlock_proof {
            LandlockProof::File(path) => {
                let opened = std::fs::OpenOptions::new().write(true).open(path);
                (format!("opening {} for writing", path.display()), opened.map(drop))
            }
            LandlockProof::AbstractSocket(_) if !granted.scopes => {
                return Ok(Some(
                    "Landlock: the policy grants the run directory, and the kernel cannot scope abstract sockets"
                        .to_owned(),
                ));
            }
            LandlockProof::AbstractSocket(name) => {
                let connected = UnixAddr::from_abstract_name(name).and_then(|to| UnixStream::connect_addr(&to));
                ("connecting to an abstract socket of the supervisor".to_owned(), connected.map(drop))
            }
        };
        match result {
            Ok(()) => Err(ApplyError::LandlockNotProved(act)),
            // EACCES from a file, EPERM from a scope.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
            Err(error) => Err(ApplyError::LandlockProof(act, error)),
        }
    }

    /// Each command's part: from init's root to a process that may only become the command.
    pub(crate) fn apply_to_child(&self, filter: &Filter, directories: &[PathBuf]) -> Result<(), StepFailed> {
        use Step as S;
        // The workload's memory stays in it. No file is as small as 1 byte, and 1 is the value at which
        // the kernel does not run the program of a piped `kernel.core_pattern` either, which 0 does not keep it from. The
        // filter keeps the workload from changing it.
        let no_core = Rlimit { current: Some(1), maximum: Some(1) };
        rustix::process::setrlimit(Resource::Core, no_core).at(S::CoreLimit)?;
        // The bounding set needs a capability to be emptied, so it goes first; what is left after the change of user
        // could come back through a file's capabilities.
        capabilities().try_for_each(remove_from_bounding_set).at(S::BoundingSet)?;
        rustix::thread::clear_ambient_capability_set().at(S::AmbientSet)?;
        // Groups before the user, who may not change them any more.
        let groups: Vec<Gid> = self.identity.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        rustix::thread::set_thread_groups(&groups).at(S::Groups)?;
        let (uid, gid) = (Uid::from_raw(self.identity.uid), Gid::from_raw(self.identity.gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid).at(S::Group)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).at(S::User)?;
        let none = CapabilitySet::empty();
        let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, nothing).at(S::Capabilities)?;
        self.verify_identity(&groups).at(S::IdentityVerified)?;
        // As the workload, so that it enters no directory that it may not.
        enter_first(directories).at(S::WorkingDirectory)?;
        rustix::thread::set_no_new_privs(true).at(S::NoNewPrivileges)?;
        crate::sys::reset_signals().at(S::Signals)?;
        // Last of the restrictions: it refuses what the others need.
        filter.install().at(S::SystemCallFilter)?;
        self.prove()
    }

    fn verify_identity(&self, groups: &[Gid]) -> rustix::io::Result<()> {
        let mut actual: Vec<u32> = rustix::process::getgroups()?.iter().map(|gid| gid.as_raw()).collect();
        let mut wanted: Vec<u32> = groups.iter().map(|gid| gid.as_raw()).collect();
        actual.sort_unstable();
        wanted.sort_unstable();
        let sets = rustix::thread::capabilities(None)?;
        let numbers = [
            (rustix::process::getuid().as_raw(), self.identity.uid),
            (rustix::process::geteuid().as_raw(), self.identity.uid),
            (rustix::process::getgid().as_raw(), self.identity.gid),
            (rustix::process::getegid().as_raw(), self.identity.gid),
        ];
        let same = numbers.iter().all(|(actual, wanted)| actual == wanted) && actual == wanted;
        let powerless = (sets.effective | sets.permitted | sets.inheritable).is_empty();
        let unbounded = capabilities()
            .try_fold(false, |any, capability| Ok::<_, rustix::io::Errno>(any || is_in_bounding_set(capability)?))?;
        if same && powerless && !unbounded { Ok(()) } else { Err(rustix::io::Errno::PERM) }
    }

    /// One attempt a mechanism that would succeed were it off.
    fn prove(&self) -> Result<(), StepFailed> {
        use rustix::io::Errno;
        match rustix::fs::memfd_create("proof", rustix::fs::MemfdFlags::CLOEXEC) {
            Err(Errno::PERM) => {}
            Err(errno) => return Err(errno).at(Step::SystemCallFilterProved),
            Ok(_) => return Err(Errno::EXIST).at(Step::SystemCallFilterProved),
        }
        match rustix::thread::set_thread_uid(Uid::ROOT) {
            Err(Errno::PERM) => {}
            Err(errno) => return Err(errno).at(Step::IdentityProved),
            Ok(()) => return Err(Errno::EXIST).at(Step::IdentityProved),
        }
        let Some(probe) = self.firewall_probe else { return Ok(()) };
        match TcpStream::connect_timeout(&probe.into(), PROBE_TIMEOUT) {
            Ok(_) => Err(Errno::EXIST).at(Step::FirewallProved),
            // The fence answers with a reset, at once. Anything else is no answer of the fence's.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error).at(Step::FirewallProved),
        }
    }
}

/// How long a connection to the probe may stay unanswered.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

trait AtStep<T> {
    fn at(self, step: Step) -> Result<T, StepFailed>;
}

impl<T, E: Into<io::Error>> AtStep<T> for Result<T, E> {
    fn at(self, step: Step) -> Result<T, StepFailed> {
        self.map_err(|error| StepFailed { step, errno: error.into().raw_os_error().unwrap_or(libc::EINVAL) })
    }
}

/// Enters the first of `directories` that may be entered; the error is the first one's.
fn enter_first(directories: &[PathBuf]) -> rustix::io::Result<()> {
    let mut first_error = None;
    for directory in directories {
        match rustix::process::chdir(directory) {
            Ok(()) => return Ok(()),
            Err(errno) => first_error = first_error.or(Some(errno)),
        }
    }
    Err(first_error.unwrap_or(rustix::io::Errno::NOENT))
}

/// Every capability that the kernel may know.
fn capabilities() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

fn is_in_bounding_set(capability: CapabilitySet) -> rustix::io::Result<bool> {
    match rustix::thread::capability_is_in_bounding_set(capability) {
        // Beyond the last capability that this kernel knows.
        Err(rustix::io::Errno::INVAL) => Ok(false),
        result => result,
    }
}

fn remove_from_bounding_set(capability: CapabilitySet) -> rustix::io::Result<()> {
    if is_in_bounding_set(capability)? {
        rustix::thread::remove_capability_from_bounding_set(capability)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
