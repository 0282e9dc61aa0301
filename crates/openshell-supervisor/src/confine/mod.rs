//! Confines a workload: the ordered steps that init and each of its children take.

mod child;
mod step;

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use openshell_policy::filesystem::BASELINE;
use rustix::fs::OFlags;
use rustix::process::Uid;
use rustix::thread::LinkNameSpaceType;
use serde::{Deserialize, Serialize};

use crate::files::carve_outs::{self, CarveOut, CarveOutError, Restriction};
use crate::files::landlock::domain::{CompensatingMechanisms, Granted, LandlockError};
use crate::files::landlock::{Request, Resolved};
use crate::files::learning_home;
use crate::files::masked_paths::{Masked, mask_all_but};
use crate::files::private_run;
use crate::files::private_tmp;
use crate::files::protected::{Covers, OpenCovers, ProtectError, ProtectedPath, protect};
use crate::identity::run_as::ProcessIdentity;
use crate::paths::mounts::{Shown, bind_at, cover, merge, open_in};
use crate::paths::pins::{Kept, KeptPath, Places};
use crate::paths::trusted_symlinks::{open, resolve};
use crate::runs::sandbox_files;
use crate::seccomp::filter::{CompileError, Filter};
use crate::seccomp::ioctls::Family;
use crate::seccomp::notify::{self, FileCalls, Notified};
use crate::seccomp::rules::{Sockets, rows, rows_for_shared_pids, rows_with_debugging};
pub(crate) use step::AtStep;
pub use step::{Step, StepFailed};

/// The confinement of all commands of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Confinement {
    /// The requested file rights.
    pub landlock: Request,
    /// The mount point of the file system that init made, if the supervisor has put the sandbox's
    /// files there.
    pub files: Option<PathBuf>,
    /// Bind mounts that are made before any path is resolved.
    pub mounts: Vec<Mount>,
    /// True if a private tmpfs replaces /run.
    pub private_run: bool,
    /// The size limit of each private folder for temporary files, in bytes.
    pub tmp_bytes: u64,
    /// The mount point of a private home, if the sandbox needs one.
    pub home: Option<PathBuf>,
    /// Files and folders to protect from the workload.
    pub protected: Vec<ProtectedPath>,
    /// Parts of granted folders that the workload must not reach, write to or execute.
    pub carve_outs: Vec<CarveOut>,
    /// Kinds of carve-outs whose loss ends the sandbox.
    pub ends_when_lost: Vec<Restriction>,
    /// The file and folder that are mounted on protected paths that hold secrets, and on hidden
    /// paths.
    pub covers: Option<Covers>,
    /// Homes on the host, of which the sandbox sees only what is granted.
    pub homes: Vec<Home>,
    /// A path that stays visible although it is not granted.
    pub keep_visible: Option<PathBuf>,
    /// The user and groups of commands.
    pub identity: ProcessIdentity,
    /// The socket families that commands may use.
    pub sockets: Sockets,
    /// The device families whose ioctls commands may use.
    pub devices: Vec<Family>,
    /// True if commands may trace each other.
    pub debug: bool,
    /// True if commands see the processes outside, by their process numbers.
    pub shares_pids: bool,
    /// The calls about files that wait for the supervisor.
    pub file_calls: FileCalls,
    /// The self-test of Landlock.
    pub landlock_proof: LandlockProof,
    /// True if commands could signal init, because they have its user and see its PID. Init sets
    /// this.
    pub is_init_exposed: bool,
    /// The device number of the folders that replace masked ones. No command starts in them. Init
    /// sets this.
    pub masks: Option<u64>,
}

/// A home of the host, without symlinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// The folder.
    pub path: PathBuf,
    /// True if the workload's user may enter it.
    pub is_entered: bool,
}

/// The network of a sandbox, which init receives when it has been made.
#[derive(Debug)]
pub(crate) struct Network {
    /// The workload's namespace; `None` if the workload uses the host's.
    pub(crate) namespace: Option<OwnedFd>,
    /// A listener of the supervisor that the egress firewall must refuse, for the firewall's
    /// self-test; `None` without a firewall.
    pub(crate) firewall_probe: Option<SocketAddrV4>,
    /// The files that the command gets as its outputs.
    pub(crate) outputs: Vec<OwnedFd>,
}

/// A read-only bind mount of a file or folder of the supervisor over another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The file or folder that is mounted.
    pub source: PathBuf,
    /// The mount point, which must exist.
    pub target: PathBuf,
    /// The purpose of the mount.
    pub purpose: Purpose,
}

/// The purpose of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Trust in the proxy's certificates. A failure is reported.
    Trust,
    /// The same trust, for some programs only. No failure is reported.
    FurtherTrust,
    /// The same trust, by adding files to those of a folder. A failure is reported.
    AmongTrusted,
    /// Names of hosts for programs inside. A failure is reported. A symlink at the target is
    /// covered itself, and a missing file is made.
    Names,
    /// A list of what git must not add. No failure is reported.
    GitExclude,
    /// A text for agents. No failure is reported.
    Skill,
    /// Settings of SSH clients that the clients would not read otherwise. No failure is reported.
    SshSettings,
}

/// An act that succeeds unless Landlock refuses it. Init attempts it as root, so that file modes do
/// not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LandlockProof {
    /// Open this file of the supervisor for writing.
    File(PathBuf),
    /// Connect to this abstract socket of the supervisor, if the policy grants write access to its
    /// file.
    AbstractSocket(Vec<u8>),
}

/// What init reports after the steps that apply to all commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// The file rights in force.
    pub landlock: Granted,
    /// A description of a mechanism that could not be proved.
    pub not_proved: Option<String>,
    /// Descriptions of paths that are not granted and could not be masked.
    pub not_masked: Vec<String>,
    /// A description of a failed mount of [`Purpose::Trust`].
    pub no_trust: Option<String>,
    /// A description of a failed mount of [`Purpose::AmongTrusted`].
    pub not_among_trusted: Option<String>,
    /// A description of a failed mount of [`Purpose::Names`].
    pub no_names: Option<String>,
    /// A description of a failed mount of the home of an observed run.
    pub no_learning_home: Option<String>,
    /// The mounts that protect files of the supervisor.
    pub protected: Places,
    /// The mounts that keep each carve-out.
    pub carve_outs: Vec<Places>,
    /// The devices of the file systems whose folders replace folders of the host and hide their
    /// content.
    pub stand_ins: Vec<u64>,
}

/// The result of the steps that apply to all commands.
#[derive(Debug)]
pub(crate) struct AppliedToInit {
    pub(crate) enforced: Enforced,
    /// The filter of commands.
    pub(crate) filter: Filter,
    /// The listener for calls of all commands that wait for the supervisor; `None` if none do.
    pub(crate) waiting_calls: Option<OwnedFd>,
}

/// A failure of a step that applies to all commands.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum ApplyError {
    #[error("init cannot get the sandbox's network from the supervisor")]
    NoNetwork { source: io::Error },
    #[error("cannot enter the sandbox's network namespace")]
    Network { source: io::Error },
    #[error(
        "cannot show the sandbox its files: move_mount(2) of a tmpfs to {path} failed; let the \
         container's profile permit that, or refuse fsopen(2) too"
    )]
    Files { path: PathBuf, source: io::Error },
    #[error("cannot replace the host's /run in the sandbox, where services have their sockets")]
    Run { source: io::Error },
    #[error(
        "cannot replace the host's {path} in the sandbox; list it in filesystem_policy.read_write \
         to use the host's"
    )]
    Tmp { path: PathBuf, source: io::Error },
    #[error("cannot mount a home of the sandbox's own at {path}")]
    Home { path: PathBuf, source: io::Error },
    #[error("cannot limit the home {path} to what the policy grants")]
    PeoplesHome { path: PathBuf, source: io::Error },
    #[error(
        "cannot cover everything that the policy does not grant, and `landlock.compatibility` is \
         hard_requirement (best_effort starts anyway): {0}"
    )]
    NotMasked(String),
    #[error(transparent)]
    CarveOut(CarveOutError),
    #[error(transparent)]
    Protected(ProtectError),
    #[error(transparent)]
    Landlock(LandlockError),
    #[error(
        "the workload could kill its supervisor: it shares the supervisor's PID namespace and \
         user, and this kernel's Landlock cannot restrict signals (ABI 6, Linux 6.12); use a newer \
         kernel, or run as root, or where a new /proc can be mounted"
    )]
    Signals,
    #[error("Landlock is not in force: {0} succeeded although no rule grants it")]
    LandlockNotProved(String),
    #[error("cannot test whether Landlock is in force: {0}")]
    LandlockProof(String, #[source] io::Error),
    #[error(transparent)]
    Filter(CompileError),
    #[error("cannot prove the fence: a connection past the proxy was not refused at once")]
    FirewallNotProved { source: io::Error },
    #[error(
        "cannot install the seccomp user notification that identifies callers; use Linux 5.14 or \
         newer with CONFIG_SECCOMP_FILTER (EBUSY: the container's profile has such a filter \
         already), or give up the network with --network block"
    )]
    Connects { source: io::Error },
    #[error(
        "cannot install the seccomp user notification that reports file calls; use Linux 5.14 or \
         newer with CONFIG_SECCOMP_FILTER (EBUSY: the container's profile has such a filter \
         already), or leave out --log-files and --observe-files"
    )]
    FileCalls { source: io::Error },
}

impl Confinement {
    /// Confines init, once for all commands. In this order: the sandbox's `files`, mounts and
    /// masks, the network namespace, the Landlock domain, and the domain's proof. Inside the domain
    /// no further mounts are possible.
    ///
    /// `network` waits for the network, which is made meanwhile. If there is a firewall, connects
    /// wait from then on for whoever holds the returned listener; so do calls about files if they
    /// are asked for.
    pub(crate) fn apply_to_init(
        &mut self,
        files: Option<OwnedFd>,
        network: impl FnOnce() -> io::Result<Network>,
    ) -> Result<AppliedToInit, ApplyError> {
        // A filter that cannot be compiled must fail the start, not the first command.
        let filter = self.filter()?;
        let files = OwnFiles::attach(files, self.files.as_deref())?;
        // The covers are opened before the private /run hides them.
        let covers = self
            .covers
            .as_ref()
            .map(|covers| covers.open(|path| files.open(path)))
            .unwrap_or_default();
        // Mounts come before paths are resolved, because grants apply to the files behind the
        // mounts.
        let [no_trust, not_among_trusted, no_names] = self.mount(&files);
        let further = if self.landlock.is_learning() {
            self.further_names().map_err(ApplyError::CarveOut)?
        } else {
            Vec::new()
        };
        let no_learning_home = self.mount_learning_home();
        let mut granted = self.landlock.resolve();
        self.mount_private_dirs(&files, &granted)?;
        let mut stand_ins = self.replace_homes(&granted)?;
        for grant in &mut granted {
            grant.retry_missing();
        }
        // Masking lists the host's sockets, so it happens in the host's network namespace.
        let Masked {
            unmasked: not_masked,
            folder,
        } = self.mask(&granted)?;
        self.masks = folder.as_ref().and_then(device);
        stand_ins.extend(folder);
        let (carve_outs, protected) = self.cover(&further, &granted, &covers)?;
        let network = network().map_err(|source| ApplyError::NoNetwork { source })?;
        let firewall_probe = network.firewall_probe;
        let masked_sockets = not_masked.is_empty();
        let landlock = self.enter_domain(granted, &stand_ins, network, masked_sockets)?;
        self.is_init_exposed =
            self.identity.is_supervisors() && !rustix::process::getpid().is_init();
        if self.is_init_exposed && !landlock.scopes {
            return Err(ApplyError::Signals);
        }
        let not_proved = self.prove_landlock(&landlock)?;
        firewall_probe.map_or(Ok(()), prove_firewall)?;
        let enforced = Enforced {
            landlock,
            not_proved,
            not_masked,
            no_trust,
            not_among_trusted,
            no_names,
            no_learning_home,
            protected,
            carve_outs,
            stand_ins: stand_ins.iter().filter_map(device).collect(),
        };
        // From here on, init itself connects to nothing. It opens nothing before somebody answers
        // the calls.
        let waiting_calls = self.have_calls_wait(firewall_probe.is_some())?;
        Ok(AppliedToInit {
            enforced,
            filter,
            waiting_calls,
        })
    }

    /// Enters the namespace of `network` and a Landlock domain with the rights of `granted`.
    fn enter_domain(
        &self,
        granted: Vec<Resolved<'_>>,
        stand_ins: &[OwnedFd],
        network: Network,
        masked_sockets: bool,
    ) -> Result<Granted, ApplyError> {
        if let Some(namespace) = &network.namespace {
            enter(namespace).map_err(|source| ApplyError::Network { source })?;
        }
        let compensating = CompensatingMechanisms {
            masked_sockets,
            // A process that is PID 1 is in a PID namespace of its own.
            scopes: network.namespace.is_some() && rustix::process::getpid().is_init(),
        };
        self.landlock
            .enforce(granted, stand_ins, &network.outputs, compensating)
            .map_err(ApplyError::Landlock)
    }

    /// Takes the carve-outs, and what is `further` hidden, out of what is `granted`, and protects
    /// the supervisor's files.
    fn cover(
        &self,
        further: &[PathBuf],
        granted: &[Resolved<'_>],
        covers: &OpenCovers,
    ) -> Result<(Vec<Places>, Places), ApplyError> {
        carve_outs::show_read_only(self.landlock.shown_folders(), granted)
            .map_err(ApplyError::CarveOut)?;
        let private = self.landlock.private();
        let carve_outs = carve_outs::apply(&self.carve_outs, further, granted, private, covers)
            .map_err(ApplyError::CarveOut)?;
        let protected = protect(&self.protected, granted, self.identity.uid, covers)
            .map_err(ApplyError::Protected)?;
        Ok((carve_outs, protected))
    }

    /// Compiles the filter of commands.
    fn filter(&self) -> Result<Filter, ApplyError> {
        let others = rows_for_shared_pids(self.shares_pids);
        let filter = if self.debug {
            Filter::compile(rows_with_debugging(self.sockets, &self.devices).chain(others))
        } else {
            Filter::compile(rows(self.sockets, &self.devices).chain(others))
        };
        filter.map_err(ApplyError::Filter)
    }

    /// Masks everything that is not `granted`.
    fn mask(&self, granted: &[Resolved<'_>]) -> Result<Masked, ApplyError> {
        let masked = mask_all_but(
            self.visible(granted),
            &self.landlock.without_services(),
            self.identity.uid,
        );
        if self.landlock.is_hard() && !masked.unmasked.is_empty() {
            return Err(ApplyError::NotMasked(masked.unmasked.join("; ")));
        }
        Ok(masked)
    }

    /// Makes connects wait if there is a firewall, and calls about files if they are asked for.
    fn have_calls_wait(&self, connects: bool) -> Result<Option<OwnedFd>, ApplyError> {
        let notified = Notified {
            connects,
            files: self.file_calls,
        };
        if notified.is_empty() {
            return Ok(None);
        }
        let listener = notify::install(notified).map_err(|source| {
            if connects {
                ApplyError::Connects { source }
            } else {
                ApplyError::FileCalls { source }
            }
        })?;
        Ok(Some(listener))
    }

    /// Makes the mounts. Returns descriptions of those that failed, in this order: of
    /// [`Purpose::Trust`], of [`Purpose::AmongTrusted`], of [`Purpose::Names`].
    fn mount(&self, files: &OwnFiles) -> [Option<String>; 3] {
        let [mut no_trust, mut not_among_trusted, mut no_names] = [None, None, None];
        for Mount {
            source,
            target,
            purpose,
        } in &self.mounts
        {
            let mounted = files.open(source).and_then(|from| match purpose {
                Purpose::Trust
                | Purpose::FurtherTrust
                | Purpose::GitExclude
                | Purpose::Skill
                | Purpose::SshSettings => bind_at(&from, target, Shown::ReadOnly),
                Purpose::AmongTrusted => merge(&from, target),
                Purpose::Names => cover(&from, target),
            });
            let Err(error) = mounted else { continue };
            let failed = Some(format!(
                "cannot show {} in the sandbox: {error}",
                target.display()
            ));
            match purpose {
                Purpose::Trust => no_trust = failed,
                Purpose::Names => no_names = failed,
                Purpose::AmongTrusted => not_among_trusted = failed,
                Purpose::FurtherTrust
                | Purpose::GitExclude
                | Purpose::Skill
                | Purpose::SshSettings => {}
            }
        }
        [no_trust, not_among_trusted, no_names]
    }

    /// Mounts the private /run, the private folders for temporary files, and the private home.
    fn mount_private_dirs(
        &self,
        files: &OwnFiles,
        granted: &[Resolved<'_>],
    ) -> Result<(), ApplyError> {
        let visible = self.visible(granted).collect();
        if self.private_run {
            private_run::replace(&visible).map_err(|source| ApplyError::Run { source })?;
        }
        for folder in self.landlock.private() {
            private_tmp::replace(folder, &visible, self.tmp_bytes).map_err(|source| {
                ApplyError::Tmp {
                    path: folder.clone(),
                    source,
                }
            })?;
        }
        let Some(home) = &self.home else {
            return Ok(());
        };
        let mounted = files
            .open(home)
            .and_then(|place| private_run::mount_home(&place, &self.identity));
        mounted.map_err(|source| ApplyError::Home {
            path: home.clone(),
            source,
        })
    }

    /// Replaces each home that is not granted as a whole by a folder that shows what is granted in
    /// it. Returns the folders. A home without any grant is masked like other folders. A folder of
    /// the system stays as it is (`/dev` is the home of `sys`).
    fn replace_homes(&self, granted: &[Resolved<'_>]) -> Result<Vec<OwnedFd>, ApplyError> {
        let visible: BTreeSet<_> = self.visible(granted).collect();
        let is_within = |row: &Path, home: &Path| row.starts_with(home) && row != home;
        let is_systems = |home: &Path| {
            BASELINE
                .iter()
                .any(|row| is_within(Path::new(row.path), home))
        };
        let is_whole = |home: &Path| visible.iter().any(|path| home.starts_with(path));
        let is_used = |home: &Path| visible.iter().any(|path| path.starts_with(home));
        let mut folders = Vec::new();
        for Home { path, .. } in &self.homes {
            if is_systems(path) || is_whole(path) || !is_used(path) {
                continue;
            }
            let replaced = private_run::replace_home(path, &visible);
            folders.extend(replaced.map_err(|source| ApplyError::PeoplesHome {
                path: path.clone(),
                source,
            })?);
        }
        Ok(folders)
    }

    /// Returns further names (bind mounts) of the paths that are hidden from an observed run, and
    /// of the run's secrets.
    fn further_names(&self) -> Result<Vec<PathBuf>, CarveOutError> {
        let hidden = self
            .carve_outs
            .iter()
            .filter(|out| out.restriction == Restriction::Hidden)
            .map(|out| &out.path);
        let secrets = self
            .protected
            .iter()
            .filter(|path| path.holds_secret)
            .map(|path| &path.path);
        carve_outs::further_names(hidden.chain(secrets))
    }

    /// Mounts the home of an observed run. If that fails, returns the description; the run may then
    /// only read its home.
    fn mount_learning_home(&mut self) -> Option<String> {
        let home = self.landlock.learning_home()?.to_owned();
        let listed = self.landlock.listed().map(Path::to_owned);
        let error = learning_home::mount(&home, listed, self.tmp_bytes).err()?;
        self.landlock.close_learning_home();
        Some(format!(
            "the observed command cannot write to {}: the sandbox cannot mount an overlay there \
             ({error}); a user namespace, for example, permits none over the mounts of others",
            home.display()
        ))
    }

    /// Returns the paths to keep visible: those that are granted, the file of the Landlock proof,
    /// which must exist to be refused, and [`Self::keep_visible`].
    fn visible(&self, granted: &[Resolved<'_>]) -> impl Iterator<Item = PathBuf> {
        // A home that the user may not enter is masked unless something in it is granted.
        let is_closed = |path: &Path| {
            self.homes
                .iter()
                .any(|home| !home.is_entered && path.starts_with(&home.path))
        };
        let exception = self
            .keep_visible
            .as_deref()
            .and_then(|path| resolve(path).ok());
        let proof = match &self.landlock_proof {
            LandlockProof::File(path) => Some(path.clone()),
            LandlockProof::AbstractSocket(_) => None,
        };
        granted
            .iter()
            .flat_map(Resolved::visible)
            .chain(proof)
            .chain(exception.filter(move |path| !is_closed(path)))
    }

    fn prove_landlock(&self, granted: &Granted) -> Result<Option<String>, ApplyError> {
        let (act, result) = match &self.landlock_proof {
            LandlockProof::File(path) => {
                let opened = std::fs::OpenOptions::new().write(true).open(path);
                (
                    format!("opening {} for writing", path.display()),
                    opened.map(drop),
                )
            }
            LandlockProof::AbstractSocket(_) if !granted.scopes => {
                return Ok(Some(
                    "Landlock: the policy grants the run directory, and the kernel cannot scope \
                     abstract sockets"
                        .to_owned(),
                ));
            }
            LandlockProof::AbstractSocket(name) => {
                let connected =
                    UnixAddr::from_abstract_name(name).and_then(|to| UnixStream::connect_addr(&to));
                (
                    "connecting to an abstract socket of the supervisor".to_owned(),
                    connected.map(drop),
                )
            }
        };
        match result {
            Ok(()) => Err(ApplyError::LandlockNotProved(act)),
            // A file gives EACCES, a scope EPERM.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
            Err(error) => Err(ApplyError::LandlockProof(act, error)),
        }
    }

    /// Returns the paths that mounts keep from the workload, as they are `enforced`.
    pub(crate) fn kept(&self, enforced: &Enforced) -> Vec<Kept> {
        let numbered = self.carve_outs.iter().zip(&enforced.carve_outs).enumerate();
        let carve_outs = numbered.map(|(number, (carve_out, places))| Kept {
            path: KeptPath::CarveOut(number),
            places: places.clone(),
            is_end: self.ends_when_lost.contains(&carve_out.restriction),
        });
        let secrets = self
            .protected
            .iter()
            .filter(|protected| protected.holds_secret);
        let secrets = secrets.filter_map(|secret| {
            let points: Vec<_> = enforced
                .protected
                .0
                .iter()
                .filter(|point| secret.path.starts_with(&point.path))
                .cloned()
                .collect();
            let is_covered = points.iter().any(|point| point.path == secret.path);
            is_covered.then(|| Kept {
                path: KeptPath::Secret(secret.path.clone()),
                places: Places(points),
                is_end: true,
            })
        });
        carve_outs.chain(secrets).collect()
    }

    /// Returns the user that commands run as.
    pub(crate) fn user(&self) -> Uid {
        Uid::from_raw(self.identity.uid)
    }
}

/// Gives init access to the sandbox's files. If init has made their file system, it opens them
/// below its root, because the folders above the mount point might be exchanged.
#[derive(Debug, Default)]
struct OwnFiles {
    root: Option<(OwnedFd, PathBuf)>,
}

impl OwnFiles {
    /// Mounts the file system `files` at `place`.
    fn attach(files: Option<OwnedFd>, place: Option<&Path>) -> Result<Self, ApplyError> {
        let (Some(files), Some(place)) = (files, place) else {
            return Ok(Self::default());
        };
        let failed = |source| ApplyError::Files {
            path: place.to_owned(),
            source,
        };
        sandbox_files::attach(&files, place).map_err(failed)?;
        Ok(Self {
            root: Some((files, place.to_owned())),
        })
    }

    /// Opens `path`, whether it is one of the sandbox's files or not.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let own = self
            .root
            .as_ref()
            .and_then(|(root, place)| Some((root, path.strip_prefix(place).ok()?)));
        Ok(match own {
            Some((root, rest)) => open_in(root, rest)?,
            None => open(path, OFlags::PATH)?,
        })
    }
}

/// Moves init into a network namespace, and verifies that it is there.
fn enter(namespace: &OwnedFd) -> io::Result<()> {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let wanted = rustix::fs::fstat(namespace)?;
    let current = rustix::fs::stat("/proc/self/ns/net")?;
    let is_there = (wanted.st_dev, wanted.st_ino) == (current.st_dev, current.st_ino);
    if is_there {
        Ok(())
    } else {
        Err(io::Error::other("init is in another network namespace"))
    }
}

/// Proves the egress firewall by a connection to `probe`. The firewall is that of the calling
/// process's namespace, which every command shares.
fn prove_firewall(probe: SocketAddrV4) -> Result<(), ApplyError> {
    match TcpStream::connect_timeout(&probe.into(), PROBE_TIMEOUT) {
        Ok(_) => Err(ApplyError::FirewallNotProved {
            source: io::ErrorKind::AlreadyExists.into(),
        }),
        // The firewall refuses at once, with a reset. Any other outcome is not the firewall's.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(source) => Err(ApplyError::FirewallNotProved { source }),
    }
}

/// The longest wait for the refusal of the probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the device number of the file system of `folder`.
fn device(folder: &OwnedFd) -> Option<u64> {
    rustix::fs::fstat(folder).ok().map(|data| data.st_dev)
}

#[cfg(test)]
mod tests;
