//! Decides what a start makes, from the configuration and the policy. It reads the host, but makes
//! nothing there.

pub(crate) mod carve_out_loss;
pub(crate) mod git_config;
pub(crate) mod planned;
pub(crate) mod ssh_sockets;

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::filesystem::{Compatibility, Filesystem, GrantedPath};
use openshell_policy::policy::Policy;
use openshell_proxy::wire::tls::authority::Authority;
use openshell_sources::lints;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::confine::Home;
use openshell_supervisor::covers::{CarveOuts, GitUse, Options, Writable, linked_repository};
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::identity::run_as::{self, User};
use openshell_supervisor::paths::missing::is_missing;
use openshell_telemetry::logging;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use rustix::process::Resource;
use tracing::Level;

use crate::cli::{GitConfig, NetworkMode};
use crate::config::Config;
use crate::reports::run_reports::learning;

/// Everything that is decided before a start makes anything.
pub(crate) struct Plan {
    /// The privilege with which the sandbox is made.
    pub(crate) privilege: Privilege,
    /// The user of the workload.
    pub(crate) user: User,
    /// File rules of the run: those of the policy, and those for what is shown to learn from.
    pub(crate) landlock: Request,
    /// Writable paths, which are made if they are missing. None may go through a symlink.
    pub(crate) writable: Vec<PathBuf>,
    /// Paths to take out of what the policy grants.
    pub(crate) carve_outs: CarveOuts,
    /// Homes of the workload's user and of the caller.
    pub(crate) homes: Vec<Home>,
    /// True if commands may trace each other.
    pub(crate) debug: bool,
    /// True if the workload's user may not enter the current directory.
    is_shut_out: bool,
    /// The sandbox's own certificate authority, until the host stage takes it; it is created early,
    /// because that takes as long as the look at the files.
    pub(crate) authority: Option<Authority>,
}

impl Plan {
    /// Plans a sandbox under `policy`. Warns if the policy lists the working directory as
    /// read-only.
    ///
    /// # Errors
    /// Fails if the user does not exist, or the working directory cannot be used.
    pub(crate) fn make(
        config: &Config,
        policy: &Policy,
        privilege: Privilege,
    ) -> anyhow::Result<Self> {
        let launcher = config
            .run_as
            .as_ref()
            .filter(|_| policy.run_as().user.is_none());
        let user = run_as::resolve(launcher.unwrap_or(policy.run_as()), &privilege, config.sudo)?;
        check_directory(config)?;
        check_descriptors()?;
        check_groups(&privilege, &user, policy)?;
        check_workdir(config, policy.filesystem())?;
        let mut files = Files::of(config, policy, &user)?;
        let (looked, authority) = files.look(config, &user)?;
        looked.say(config, policy, &user);
        check_hidden(config, &files.filesystem)?;
        let landlock = files.landlock(config)?;
        // If a file system is slow, the wait happens here, where a signal still ends the start.
        for path in &files.writable {
            let _ = path.symlink_metadata();
        }
        Ok(Self {
            privilege,
            user,
            landlock,
            writable: files.writable,
            carve_outs: looked.carve_outs,
            homes: looked.homes,
            debug: policy.permits_debugging(),
            is_shut_out: looked.is_shut_out,
            authority: authority?,
        })
    }
}

/// Creates the sandbox's certificate authority; `None` if it has none, or another run's.
///
/// # Errors
/// Fails if no key can be made.
fn new_authority(config: &Config) -> anyhow::Result<Option<Authority>> {
    if config.network.mode != NetworkMode::Proxy || config.tls.ca_dir.is_some() {
        return Ok(None);
    }
    Ok(Some(Authority::create()?))
}

/// The files that a policy grants, as they are on this host.
struct Files {
    writable: Vec<PathBuf>,
    filesystem: Filesystem,
    /// The home of the workload's user, without symlinks.
    real_home: Option<PathBuf>,
}

impl Files {
    /// Returns the files of `policy`, with the repository of a linked work tree.
    ///
    /// # Errors
    /// Fails if the repository cannot be granted.
    fn of(config: &Config, policy: &Policy, user: &User) -> anyhow::Result<Self> {
        let mut writable = writable(policy, config);
        let mut filesystem = policy.filesystem().clone();
        if let Some(repository) = repository_elsewhere(config, &filesystem, &writable, user)? {
            writable.push(repository.clone());
            filesystem.read_write.push(GrantedPath::found(repository));
        }
        if config.reports.observe_files {
            let homes = learning::homes(user, &config.command.environment);
            let mut private = learning::private_paths(&homes, &filesystem);
            private.retain(|path| {
                let data = path.as_path().symlink_metadata();
                !data.is_err_and(|error| is_missing(&error))
            });
            filesystem.hidden.extend(private);
        }
        let home = user.home.as_deref();
        Ok(Self {
            writable,
            filesystem,
            real_home: home.and_then(|home| std::fs::canonicalize(home).ok()),
        })
    }

    /// Looks at the files as `user`. An earlier command may have left links that lead elsewhere,
    /// and what the workload cannot see does not belong to it. Meanwhile, the authority is created.
    ///
    /// # Errors
    /// Fails if a file cannot be examined.
    fn look(
        &mut self,
        config: &Config,
        user: &User,
    ) -> anyhow::Result<(Looked, anyhow::Result<Option<Authority>>)> {
        let options = Options {
            has_placeholders: !config.files.carve_outs.no_placeholders,
            keeps_settings: !config.files.carve_outs.no_keep_settings,
        };
        let presets = &config.inputs.policy.folders.presets;
        let folders = Writable {
            folders: &self.writable,
            work: work_folders(config, self.real_home.as_deref()),
        };
        let git = git_use(config)?;
        let homes = real_homes(user, &config.command.environment)?;
        let filesystem = &mut self.filesystem;
        let look = || {
            let homes = homes.into_iter().map(home_as_seen);
            let homes = homes.collect::<anyhow::Result<_>>()?;
            let uid = user.identity.uid;
            let carve_outs = CarveOuts::plan(filesystem, &folders, &git, options, presets, uid)?;
            let current = config.command.current_dir.as_deref();
            let closed = lints::files::closed(folders.folders).into_iter();
            anyhow::Ok(Looked {
                tracked: carve_outs.tracked().collect(),
                carve_outs,
                homes,
                closed: closed.map(Path::to_owned).collect(),
                is_shut_out: current.is_some_and(is_closed_to_thread),
            })
        };
        let (looked, authority) = user
            .identity
            .look_beside(look, || new_authority(config))
            .context("cannot read files as the command's user")?;
        Ok((looked?, authority))
    }

    /// Returns the file rules.
    ///
    /// # Errors
    /// Fails if what is shown to learn from cannot be found.
    fn landlock(&mut self, config: &Config) -> anyhow::Result<Request> {
        // Needs no rule: the writable folder's grant includes the path, unless a symlink leads
        // elsewhere.
        let is_inside = |path: &Path| {
            self.writable
                .iter()
                .any(|folder| path.starts_with(folder) && path != folder)
        };
        let is_itself = |path: &Path| std::fs::canonicalize(path).map_or(true, |real| real == path);
        self.filesystem
            .read_only
            .retain(|path| !(is_inside(path.as_path()) && is_itself(path.as_path())));
        let mut landlock = Request::new(&self.filesystem, config.command.workdir.as_deref());
        if !is_alone(config) {
            landlock = landlock.without_shared_home();
        }
        if config.reports.observe_files {
            landlock = landlock.learning(learning::learning(self.real_home.as_deref())?);
        }
        Ok(landlock)
    }
}

/// What the command's user sees of the files.
struct Looked {
    carve_outs: CarveOuts,
    homes: Vec<Home>,
    /// Writable paths that the user may not write to.
    closed: Vec<PathBuf>,
    /// Lines about hidden files that git tracks.
    tracked: Vec<String>,
    is_shut_out: bool,
}

impl Looked {
    /// Logs what is probably not intended.
    fn say(&self, config: &Config, policy: &Policy, user: &User) {
        for line in self.carve_outs.notes() {
            logging::config_event(ConfigState::Validated, Severity::Medium, line);
        }
        // A path on the command line means this folder; a policy file may be for many folders.
        let severity = if config.inputs.policy.data.as_os_str().is_empty() {
            Severity::Medium
        } else {
            Severity::Info
        };
        for line in self.carve_outs.idle().chain(self.tracked.iter().cloned()) {
            logging::config_event(ConfigState::Validated, severity, &line);
        }
        let closed = self.closed.iter();
        let closed = closed.map(|path| lints::files::closed_line(path, user));
        for line in closed.chain(lints::files::single_files(policy.filesystem())) {
            let line = format!("policy warning: {line}");
            logging::config_event(ConfigState::Validated, Severity::Medium, &line);
        }
    }
}

impl Plan {
    /// Returns true if the workload's user can change files of the supervisor in `folder`: it is
    /// the supervisor's user, or it may write there and no sticky bit protects files of others.
    /// Also returns true if a folder above cannot be examined.
    pub(crate) fn may_change_in(&self, folder: &Path) -> bool {
        let is_sticky = std::fs::metadata(folder).is_ok_and(|data| data.mode() & 0o1000 != 0);
        let is_unknown =
            |above: &Path| std::fs::metadata(above).is_err_and(|error| !is_missing(&error));
        self.user.identity.is_supervisors()
            || (self.user.identity.may_write(folder) && !is_sticky)
            || folder.ancestors().any(is_unknown)
    }
}

/// Returns the homes of the workload's user and of the caller, without symlinks. Leaves out missing
/// ones, and the root.
///
/// # Errors
/// Fails if a home cannot be examined.
fn real_homes(user: &User, environment: &Environment) -> anyhow::Result<BTreeSet<PathBuf>> {
    let callers = environment.get("HOME").map(Path::new);
    let mut homes = BTreeSet::new();
    for home in user
        .home
        .as_deref()
        .into_iter()
        .chain(callers)
        .filter(|home| home.is_absolute())
    {
        match std::fs::canonicalize(home) {
            Ok(real) if real.is_dir() && real.parent().is_some() => drop(homes.insert(real)),
            Ok(_) => {}
            Err(error) if is_missing(&error) => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot read the home {}", home.display()));
            }
        }
    }
    Ok(homes)
}

/// Looks at a home with the rights of the calling thread's user.
fn home_as_seen(path: PathBuf) -> anyhow::Result<Home> {
    match path.join(".").symlink_metadata() {
        Ok(_) => Ok(Home {
            path,
            is_entered: true,
        }),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Home {
            path,
            is_entered: false,
        }),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the home {}", path.display()))
        }
    }
}

/// Returns true if the calling thread's user may not enter `folder`.
fn is_closed_to_thread(folder: &Path) -> bool {
    rustix::fs::accessat(CWD, folder, Access::EXEC_OK, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

/// Groups whose members can become root, or read what only root should.
const POWERFUL_GROUPS: &[&str] = &[
    "docker", "lxd", "libvirt", "kvm", "disk", "shadow", "adm", "sudo", "wheel",
];

/// Warns of groups that give the user more rights than the user should have. Under
/// `hard_requirement` they are an error.
fn check_groups(privilege: &Privilege, user: &User, policy: &Policy) -> anyhow::Result<()> {
    let (groups, remedy) = match privilege.caller() {
        Some(caller) => (
            [caller.groups.as_slice(), &[caller.gid]].concat(),
            "nobody without CAP_SETGID can leave a group: start as a user outside of it, or as \
             root with another user",
        ),
        None => (
            user.identity.groups.clone(),
            "name a user outside of it in `process`",
        ),
    };
    let names = run_as::group_names(&groups)?;
    for group in names
        .iter()
        .filter(|name| POWERFUL_GROUPS.contains(&name.as_str()))
    {
        let line = format!(
            "the command is in the group {group}, whose members have more rights than a user; \
             {remedy}"
        );
        if policy.filesystem().compatibility == Compatibility::HardRequirement {
            bail!("{line}; `landlock.compatibility` is hard_requirement");
        }
        logging::config_event(
            ConfigState::Validated,
            Severity::Medium,
            &format!("policy warning: {line}"),
        );
    }
    Ok(())
}

/// The fewest open files that a sandbox needs, for itself and a few connections.
const LEAST_DESCRIPTORS: u64 = 64;

/// Checks that the limit of open files lets the sandbox serve connections. With a lower one it
/// would start, but accept none.
fn check_descriptors() -> anyhow::Result<()> {
    match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < LEAST_DESCRIPTORS => bail!(
            "the hard limit of open files is {limit}, and a sandbox needs {LEAST_DESCRIPTORS}, and \
             two for each connection; raise it: `ulimit -Hn`, LimitNOFILE= of the service"
        ),
        _ => Ok(()),
    }
}

/// Checks that a named working directory exists. If a typo were made into one, it would be an empty
/// folder on the host.
fn check_directory(config: &Config) -> anyhow::Result<()> {
    let Some(workdir) = &config.command.workdir else {
        return Ok(());
    };
    match std::fs::metadata(workdir) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => bail!("--workdir {} is not a folder; name one", workdir.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!(
                "--workdir {} does not exist; make it, or name another folder",
                workdir.display()
            )
        }
        Err(error) => {
            Err(error).with_context(|| format!("--workdir {} cannot be read", workdir.display()))
        }
    }
}

/// Returns the writable paths, each once, including the working directory if the policy makes it
/// one.
fn writable(policy: &Policy, config: &Config) -> Vec<PathBuf> {
    let workdir = config
        .command
        .workdir
        .as_deref()
        .filter(|_| policy.filesystem().include_workdir);
    let listed = policy.filesystem().read_write.iter();
    let mut writable = Vec::new();
    for path in listed.map(GrantedPath::as_path).chain(workdir) {
        if !writable.iter().any(|listed| listed == path) {
            writable.push(path.to_owned());
        }
    }
    writable
}

/// Returns the repository of a working directory that is a linked work tree, if the policy says
/// nothing about it. Without the repository, git does not work there.
///
/// # Errors
/// Fails if the repository cannot be examined as the workload's user.
fn repository_elsewhere(
    config: &Config,
    filesystem: &Filesystem,
    writable: &[PathBuf],
    user: &User,
) -> anyhow::Result<Option<PathBuf>> {
    let tree = config
        .command
        .workdir
        .as_ref()
        .or(config.command.current_dir.as_ref());
    let Some(tree) = tree.filter(|tree| writable.contains(tree)) else {
        return Ok(None);
    };
    if !tree
        .join(".git")
        .symlink_metadata()
        .is_ok_and(|data| data.is_file())
    {
        return Ok(None);
    }
    let uid = user.identity.uid;
    let found = user
        .identity
        .look(|| linked_repository(tree, uid))
        .context("cannot read files as the command's user")?;
    let lists = [
        &filesystem.read_only,
        &filesystem.read_write,
        &filesystem.hidden,
    ];
    let is_listed = |repository: &Path| {
        lists
            .into_iter()
            .flatten()
            .any(|listed| covers(listed, repository))
    };
    let Some(repository) = found.filter(|repository| !is_listed(repository)) else {
        return Ok(None);
    };
    let message = format!(
        "{} is a linked work tree, so the command may write to its repository {} too, apart from \
         hooks, configuration and attributes",
        tree.display(),
        repository.display()
    );
    logging::config_event(ConfigState::Enabled, Severity::Info, &message);
    Ok(Some(repository))
}

/// Returns true if a line of the policy, other than the root, covers `path`, which has no symlinks.
fn covers(listed: &GrantedPath, path: &Path) -> bool {
    if listed.is_pattern() {
        let (base, is_match) = listed.matcher();
        return path
            .ancestors()
            .any(|above| above.strip_prefix(&base).is_ok_and(&is_match));
    }
    let real = match std::fs::canonicalize(listed.as_path()) {
        Ok(real) => Some(real),
        Err(error) if is_missing(&error) => None,
        // A path that cannot be resolved may lead there.
        Err(_) => return true,
    };
    let mut forms = real.as_deref().into_iter().chain([listed.as_path()]);
    forms.any(|listed| listed.parent().is_some() && path.starts_with(listed))
}

/// Returns how the caller uses git.
fn git_use(config: &Config) -> anyhow::Result<GitUse> {
    let has_config = config.files.carve_outs.git_config == GitConfig::Ro;
    GitUse::read(has_config, &config.command.environment).map_err(|why| {
        anyhow!(
            "cannot make the hooks of your git read-only: {why}; repair that file or variable, or \
             remove it"
        )
    })
}

/// Returns true if nothing but the command works in its folders: at a gateway, or in a container
/// whose first process is this one.
fn is_alone(config: &Config) -> bool {
    config.is_launched || rustix::process::getpid().is_init()
}

/// Returns the folders that people work in; none if nothing but the command does.
fn work_folders(config: &Config, home: Option<&Path>) -> Vec<PathBuf> {
    if is_alone(config) {
        return Vec::new();
    }
    let work = config
        .command
        .workdir
        .as_deref()
        .or(config.command.current_dir.as_deref());
    work.into_iter().chain(home).map(Path::to_owned).collect()
}

/// Checks that no hidden path, including those that patterns found, contains the working directory
/// or another grant.
fn check_hidden(config: &Config, filesystem: &Filesystem) -> anyhow::Result<()> {
    if let Some((hidden, granted)) = filesystem.hidden_grant() {
        bail!(
            "filesystem_policy: {} is hidden, and {} is granted; list only one of them",
            hidden.display(),
            granted.display()
        );
    }
    let Some(workdir) = &config.command.workdir else {
        return Ok(());
    };
    match filesystem
        .hidden
        .iter()
        .find(|hidden| workdir.starts_with(hidden.as_path()))
    {
        Some(hidden) => bail!(
            "filesystem_policy.hidden: {} holds the working directory; leave one of them out",
            hidden.as_path().display()
        ),
        None => Ok(()),
    }
}

/// Warns of read-only paths of the policy that `--workdir` makes writable. Under `hard_requirement`
/// they are an error.
fn check_workdir(config: &Config, filesystem: &Filesystem) -> anyhow::Result<()> {
    let Some(workdir) = config
        .command
        .workdir
        .as_deref()
        .filter(|_| filesystem.include_workdir)
    else {
        return Ok(());
    };
    for line in lints::files::read_only_in(workdir, filesystem) {
        if filesystem.compatibility == Compatibility::HardRequirement {
            bail!(line);
        }
        logging::config_event(
            ConfigState::Validated,
            Severity::Medium,
            &format!("policy warning: {line}"),
        );
    }
    Ok(())
}

/// Returns the directories where the command may start, in order of preference: only the explicit
/// working directory if there is one; otherwise the current one if the policy grants it, home, and
/// the root. Warns if the command does not start in the caller's directory.
pub(crate) fn start_directories(
    config: &Config,
    plan: &Plan,
    landlock: &Request,
    home: &Path,
) -> Vec<PathBuf> {
    if let Some(workdir) = &config.command.workdir {
        return vec![workdir.clone()];
    }
    let is_private = |path: &PathBuf| landlock.private().contains(path);
    let is_usable =
        |path: &&PathBuf| is_private(path) || landlock.grants_reading(path) && landlock.shows(path);
    let current = config.command.current_dir.iter().filter(is_usable).cloned();
    let directories: Vec<_> = current
        .chain([home.to_owned(), PathBuf::from("/")])
        .collect();
    warn_of_directory(config, plan, landlock, &directories);
    directories
}

/// Warns if the command's name means another program inside than outside, because the first of that
/// name in PATH is not granted and a later one is.
pub(crate) fn warn_of_program(config: &Config, landlock: &Request) {
    let Some(name) = config
        .command
        .words
        .first()
        .map(Path::new)
        .filter(|name| name.components().count() == 1)
    else {
        return;
    };
    let path = config.command.environment.get("PATH").unwrap_or_default();
    let programs = std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .filter(|program| program.is_file());
    let mut known =
        programs.filter_map(|program| Some((std::fs::canonicalize(&program).ok()?, program)));
    let Some((first, shown)) = known.next() else {
        return;
    };
    if landlock.reaches(&first) || config.log.level < Level::WARN {
        return;
    }
    if let Some((_, other)) = known.find(|(real, _)| landlock.reaches(real)) {
        let shown = shown.display();
        let other = other.display();
        logging::print_stderr(&format!(
            "openshell-sandbox: the policy does not grant {shown}, so the sandbox runs {other}; \
             --read {shown} grants it"
        ));
    }
}

fn warn_of_directory(config: &Config, plan: &Plan, landlock: &Request, directories: &[PathBuf]) {
    let (Some(current), Some(start)) = (&config.command.current_dir, directories.first()) else {
        return;
    };
    let shown = current.display();
    let start_shown = start.display();
    if start == current {
        let is_shown = plan.is_shut_out
            && !landlock.private().contains(current)
            && config.log.level >= Level::WARN;
        if let Some(next) = directories
            .get(1)
            .filter(|next| is_shown && *next != current)
        {
            logging::print_stderr(&format!(
                "openshell-sandbox: the workload's user {} may not enter the current directory \
                 {shown}, so the command starts in {}; let that user in (chmod, setfacl), or go to \
                 a folder that it owns",
                plan.user.name,
                next.display()
            ));
        }
        if landlock.private().contains(current) {
            let message = format!(
                "the command starts in the sandbox's own {shown}; --workdir {shown} grants the \
                 host's"
            );
            logging::config_event(ConfigState::Enabled, Severity::Info, &message);
        }
        return;
    }
    if config.log.level >= Level::WARN {
        logging::print_stderr(&format!(
            "openshell-sandbox: the policy does not grant the current directory {shown}, so the \
             command starts in {start_shown}; --workdir {shown} grants it"
        ));
    }
}
