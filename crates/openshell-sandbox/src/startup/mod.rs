//! From a configuration to a sandbox that is ready for its command: one line a step, nothing left of a start that fails.

mod ca_files;

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::filesystem::{Compatibility, GrantedPath};
use openshell_policy::policy::Policy;
use openshell_proxy::authorize::authorizer::{Authorizer, Mode};
use openshell_proxy::bypass::Monitor;
use openshell_proxy::credentials::vault::CurrentVault;
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::egress::Egress;
use openshell_proxy::identify::{Identifier, Processes};
use openshell_proxy::inference::route::{Inference, RouteTable};
use openshell_proxy::listener::Listener;
use openshell_proxy::proxy::Proxy;
use openshell_proxy::relay::services::Services;
use openshell_proxy::resolve::guard::OwnAddresses;
use openshell_proxy::resolve::lookup::Resolver;
use openshell_proxy::tls::interceptor::Interceptor;
use openshell_proxy::workers::Workers;
use openshell_supervisor::confine::{Confinement, Enforced, LandlockProof, Mount};
use openshell_supervisor::environment::{self, Environment, Inputs};
use openshell_supervisor::init::Init;
use openshell_supervisor::landlock::Request;
use openshell_supervisor::launch::Launcher;
use openshell_supervisor::made::Made;
use openshell_supervisor::netlink::Protocol;
use openshell_supervisor::netns::{Netns, firewall};
use openshell_supervisor::run_as::{self, User};
use openshell_supervisor::run_dir::RunDir;
use openshell_supervisor::seccomp::prelude;
use openshell_supervisor::seccomp::rules::Sockets;
use openshell_supervisor::signals::{self, Meaning, Received};
use openshell_supervisor::streams::{self, Streams};
use openshell_supervisor::{filesystem, netns, own_run};
use tokio::sync::{Notify, mpsc};
use tracing::Level;

use crate::background_reporter::BackgroundReporter;
use crate::cli::NetworkMode;
use crate::config::{Config, Secrets};
use crate::lints;
use crate::logging;
use crate::outputs::Results;
use crate::refusals::Refusals;
use crate::sources::activation::InForce;
use crate::sources::files::Files;
use crate::sources::policy_file::PolicyVersion;
use crate::sources::update::{self, Initial};
use crate::tasks::Tasks;

/// A sandbox without its command. Dropping it ends everything inside, waits for that, and removes what was made for it.
pub(crate) struct Sandbox {
    pub(crate) launcher: Launcher,
    /// Folders that the start made on the host.
    pub(crate) made: Made,
    /// What the supervisor is told meanwhile.
    pub(crate) signals: mpsc::Receiver<Received>,
    pub(crate) environment: Environment,
    /// The command's standard streams; taken at its end.
    pub(crate) streams: Option<Streams>,
    /// The file rules, for messages about a command that cannot run.
    pub(crate) granted: Request,
    /// Where the command may start, in the order of preference.
    pub(crate) directories: Vec<PathBuf>,
    /// Ends what reports on the workload, once the last report is written.
    pub(crate) reports: Vec<BackgroundReporter>,
    /// What is written at the end.
    pub(crate) results: Results,
    /// Has the policy read again.
    pub(crate) reload: Arc<Notify>,
    /// What was refused so far.
    pub(crate) refusals: Arc<Refusals>,
    /// What must not end before the sandbox does.
    pub(crate) tasks: Tasks,
    /// Held for as long as the sandbox lives.
    _owned: Owned,
}

/// What the sandbox stands on, in the order in which it is let go.
struct Owned {
    _network: Network,
    _proof: Proof,
    _run_dir: RunDir,
}

pub(crate) async fn start(config: &Config, secrets: Secrets, init: Init) -> anyhow::Result<Sandbox> {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    let streams = streams::inspect([input.as_fd(), output.as_fd(), errors.as_fd()])?;
    let (files, initial) = Files::open(config.policy.clone(), secrets.credentials, secrets.routes)?;
    let Initial { policy: PolicyVersion { snapshot, .. }, credentials, routes } = initial;
    let policy = snapshot.policy();
    let user = run_as::resolve(policy.run_as())?;
    check_directory(config)?;
    let landlock = Request::new(policy.filesystem(), config.workdir.as_deref());
    check_workdir(config, policy)?;
    // From here on things are made that a signal must not keep from being removed. What comes before may wait for a slow
    // file, and a signal ends it; so the folders are looked at here.
    writable(policy, config).for_each(|path| drop(path.symlink_metadata()));
    let mut tasks = Tasks::default();
    let mut signals = crate::signals::receive(&mut tasks)?;
    let run_dir = RunDir::create(config.run_dir.as_deref())?;
    let uses = writable(policy, config).chain([config.tls_dir.as_path()]);
    let mut made = Made::none(&run_dir, uses).context("cannot write to the run directory; see --run-dir")?;
    filesystem::prepare(writable(policy, config), &user.credentials, &mut made)?;
    note_writable(config, run_dir.path(), &user, &landlock);
    // Both take some milliseconds, of different parts of the machine.
    let (network, tls) = std::thread::scope(|scope| {
        let tls = scope.spawn(|| ca_files::Prepared::create(config, &run_dir, &mut made));
        (Network::create(config), tls.join())
    });
    let (network, mut tls) = (network?, tls.map_err(|_| anyhow!("making the trust files failed"))??);
    let streams = match &network.netns {
        Some(netns) => netns::run_in(netns.as_fd(), || Ok(streams.open()))??,
        None => streams.open()?,
    };
    let own = Own::create(&user, &landlock, &run_dir)?;
    let landlock = match &own.home {
        Some(home) => landlock.writing(home),
        None => landlock,
    };
    let proof = Proof::create(&own, &run_dir, &landlock, network.netns.as_ref())?;
    let home = own.home.clone().or_else(|| environment::home(&user, &landlock)).unwrap_or_default();
    let directories = directories(config, &landlock, &home);
    note_directory(config, &directories);
    let is_scratch = {
        let (landlock, credentials) = (landlock.clone(), user.credentials.clone());
        move |folder: &Path| landlock.grants_writing(folder) && credentials.may_write(folder)
    };
    note_isolation(&init);
    note_core_socket();
    let listener = match network.proxy {
        Some(address) => Some(bind_proxy(address).await?),
        None => None,
    };
    let identifier = network.identifier(&init)?.map(Arc::new);
    let refusals = Arc::new(Refusals::default());
    let resolver = Arc::new(Resolver::from_system()?);
    let results = Results::prepare(config, policy, Arc::clone(&resolver))?;
    let bypass = identifier.as_ref().and_then(|identifier| network.monitor(&mut tasks, identifier, &refusals));
    let mut reports = Vec::from_iter(bypass);
    let mounts = std::mem::take(&mut tls.mounts);
    let landlock = if mounts.is_empty() { landlock } else { landlock.reading(&config.tls_dir) };
    let granted = landlock.clone();
    let confinement = confinement(config, (landlock, mounts), &user, &network, (own, &proof));
    let (launcher, enforced) = confine(init, confinement, network.netns.as_ref(), &mut signals).await?;
    if let Some(why) = &enforced.not_mounted {
        ca_files::unavailable(why);
        tls.authority = None;
    }
    let placeholders = credentials.iter().flat_map(|loaded| &loaded.names);
    let placeholders: Vec<_> = placeholders.map(|name| (name.to_string(), name.placeholder())).collect();
    let environment = environment::workload(&Inputs {
        placeholders: &placeholders,
        caller: &config.environment,
        user: &user,
        home: &home,
        is_scratch: &is_scratch,
        host_name: rustix::system::uname().nodename().to_str().unwrap_or_default(),
        proxy: network.proxy.map(SocketAddr::V4),
        trust: tls.authority.as_ref().map(|_| config.tls_dir.as_path()),
        has_java: tls.has_java,
    });
    let vault = Arc::new(CurrentVault::default());
    if let Some(credentials) = credentials {
        vault.replace(credentials.vault);
        credentials.report.log("credentials loaded");
    }
    let (table, routes) = routes.map(|routes| (routes.table, routes.report)).unzip();
    let table = table.filter(|table: &RouteTable| !table.is_empty());
    let inference = table.map(|table| Arc::new(Inference::new(table)));
    let policy = Arc::new(PolicyStore::new(snapshot));
    let reload = files.reload();
    let in_force = InForce { policy: Arc::clone(&policy), vault: Arc::clone(&vault), inference: inference.clone() };
    let (requests, updates) = mpsc::channel(1);
    tasks.spawn("policy reload", in_force.run(updates));
    tasks.spawn("policy source", update::forward(files, requests));
    // Init is apart by now, and all that the environment says has been read.
    prelude::harden()?;
    note_enforced(config, &launcher, &enforced, &network);
    if let (Some(listener), Some(identifier), Some(subnet)) =
        (listener, identifier, network.netns.as_ref().and_then(Netns::subnet))
    {
        if let Some(routes) = routes {
            routes.log();
        }
        let own = Arc::new(OwnAddresses { listeners: network.listeners(), is_on_link: netns::is_on_link });
        let mode = results.observations().map_or(Mode::Enforce, Mode::Observe);
        let services = Arc::new(Services {
            authorizer: Authorizer::new(Arc::clone(&policy), identifier, Arc::clone(&own), mode),
            egress: Egress::new(resolver, own, tls.roots),
            vault,
            memory: Default::default(),
            audit: Arc::clone(&refusals) as _,
        });
        let proxy = Arc::new(Proxy {
            services: Arc::clone(&services),
            interceptor: Interceptor::new(tls.authority),
            inference,
            workload: subnet.workload(),
        });
        tasks.spawn("sweep", async move { services.authorizer.rescan().await });
        reports.push(BackgroundReporter::start(&mut tasks, "proxy", |stopped| listener.run(proxy, stopped)));
    }
    let owned = Owned { _network: network, _proof: proof, _run_dir: run_dir };
    Ok(Sandbox {
        launcher,
        made,
        signals,
        environment,
        streams: Some(streams),
        granted,
        directories,
        reports,
        results,
        reload,
        refusals,
        tasks,
        _owned: owned,
    })
}

/// A working directory that is named is one: made up from a typo, it would be an empty folder on the host.
fn check_directory(config: &Config) -> anyhow::Result<()> {
    let Some(workdir) = &config.workdir else { return Ok(()) };
    match std::fs::metadata(workdir) {
        Ok(data) if data.is_dir() => Ok(()),
        Ok(_) => bail!("--workdir {} is no folder; name one", workdir.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("--workdir {} is not there; make it, or name another folder", workdir.display())
        }
        Err(error) => Err(error).with_context(|| format!("--workdir {} cannot be looked at", workdir.display())),
    }
}

/// The paths that are made if they are missing; the working directory is there, and may not go through a symlink either.
fn writable<'c>(policy: &'c Policy, config: &'c Config) -> impl Iterator<Item = &'c Path> {
    let workdir = config.workdir.as_deref().filter(|_| policy.filesystem().include_workdir);
    policy.filesystem().read_write.iter().map(GrantedPath::as_path).chain(workdir)
}

/// The namespace, the fence, and where the proxy will listen. Held while the sandbox lives: each command tries the probe.
struct Network {
    netns: Option<Netns>,
    proxy: Option<SocketAddrV4>,
    sockets: Sockets,
    /// Beside the proxy, on the same address: what the fence must keep out of reach.
    probe: Option<TcpListener>,
}

impl Drop for Network {
    fn drop(&mut self) {
        let Some(netns) = self.netns.take() else { return };
        drop(netns);
        let what = if self.proxy.is_some() { "namespace, its link and its fence" } else { "namespace" };
        logging::config_event("DISABLED", "INFO", &format!("Network {what} removed"));
    }
}

impl Network {
    fn create(config: &Config) -> anyhow::Result<Self> {
        match config.network {
            NetworkMode::Allow => Ok(Self { netns: None, proxy: None, sockets: Sockets::Internet, probe: None }),
            NetworkMode::Block => {
                let netns = Some(Netns::isolated()?);
                logging::config_event("ENABLED", "INFO", "Network namespace created, without a link");
                Ok(Self { netns, proxy: None, sockets: Sockets::Local, probe: None })
            }
            NetworkMode::Proxy => {
                let (netns, subnet) = Netns::create()?;
                let ends = format!("{} to {}", subnet.workload(), subnet.supervisor());
                logging::config_event("ENABLED", "INFO", &format!("Network namespace created, with a link {ends}"));
                let proxy = SocketAddrV4::new(subnet.supervisor(), config.proxy_port);
                netns.fence(&firewall::ruleset((*proxy.ip(), proxy.port())))?;
                logging::config_event(
                    "ENABLED",
                    "INFO",
                    &format!("Fence installed: nothing but {proxy} is let through"),
                );
                let probe = TcpListener::bind((subnet.supervisor(), 0));
                let probe = probe.context("cannot open the listener that proves the fence")?;
                Ok(Self { netns: Some(netns), proxy: Some(proxy), sockets: Sockets::Internet, probe: Some(probe) })
            }
        }
    }

    fn identifier(&self, init: &Init) -> anyhow::Result<Option<Identifier>> {
        let Some(netns) = self.netns.as_ref().filter(|_| self.proxy.is_some()) else { return Ok(None) };
        let sockets = OwnedFd::from(netns.netlink(Protocol::SockDiag)?);
        let processes = match init.shared_pids() {
            None => Processes::of_namespace(init.pid()),
            Some(_) => Processes::shared(init.pid()),
        };
        let processes = processes
            .context("cannot look at the sandbox's processes, which tells who is calling; it needs CAP_SYS_PTRACE")?;
        let identifier = Identifier::new(sockets, netns::INTERFACE, processes);
        Ok(Some(identifier.context("cannot set up the look-up of callers")?))
    }

    /// Reports what the fence refuses. The fence holds without it, so its absence is said and no reason not to start.
    fn monitor(
        &self,
        tasks: &mut Tasks,
        identifier: &Arc<Identifier>,
        refusals: &Arc<Refusals>,
    ) -> Option<BackgroundReporter> {
        let netns = self.netns.as_ref()?;
        let socket = netns.netlink(Protocol::Netfilter).map_err(anyhow::Error::from);
        let monitor = socket.and_then(|socket| {
            let (identifier, denials) = (Arc::clone(identifier), Arc::clone(refusals) as _);
            let probe = self.probe_address();
            Ok(Monitor::start(OwnedFd::from(socket), firewall::LOG_GROUP, probe, identifier, denials)?)
        });
        match monitor {
            Ok(monitor) => Some(BackgroundReporter::start(tasks, "bypass monitor", |stopped| monitor.run(stopped))),
            Err(error) => {
                let message = format!("attempts to go past the proxy are refused, but not reported: {error:#}");
                logging::config_event("DEGRADED", "MED", &message);
                None
            }
        }
    }

    /// Where the supervisor listens for this sandbox.
    fn listeners(&self) -> Vec<SocketAddr> {
        self.proxy.into_iter().chain(self.probe_address()).map(SocketAddr::V4).collect()
    }

    fn probe_address(&self) -> Option<SocketAddrV4> {
        match self.probe.as_ref()?.local_addr().ok()? {
            SocketAddr::V4(address) => Some(address),
            SocketAddr::V6(_) => None,
        }
    }
}

async fn bind_proxy(address: SocketAddrV4) -> anyhow::Result<Listener> {
    let workers = Workers::start().context(
        "cannot start the threads that serve connections; raise the limit of processes (pids.max, ulimit -u) or of open files",
    )?;
    let listener = Listener::bind(address, workers).await;
    let listener = listener.with_context(|| format!("the proxy cannot listen on {address}; see --proxy-port"))?;
    logging::config_event("ENABLED", "INFO", &format!("Proxy listening on {address}"));
    Ok(listener)
}

/// Folders of this sandbox's own.
struct Own {
    /// True if the host's /run is replaced.
    run: bool,
    /// The home, where the user has none that can be used.
    home: Option<PathBuf>,
}

impl Own {
    fn create(user: &User, landlock: &Request, run_dir: &RunDir) -> anyhow::Result<Self> {
        let run = landlock.replaces_run();
        if environment::home(user, landlock).is_some() {
            return Ok(Self { run, home: None });
        }
        let home = match run {
            true => PathBuf::from(own_run::HOME),
            false => run_dir.path().join("home"),
        };
        if !run {
            std::fs::create_dir(&home).with_context(|| format!("cannot make {}", home.display()))?;
        }
        Ok(Self { run, home: Some(home) })
    }
}

/// What shows that Landlock is in force, and what it needs to be there meanwhile.
struct Proof {
    proof: LandlockProof,
    _socket: Option<UnixListener>,
}

impl Proof {
    fn create(own: &Own, run_dir: &RunDir, landlock: &Request, netns: Option<&Netns>) -> anyhow::Result<Self> {
        if own.run {
            return Ok(Self { proof: LandlockProof::File(own_run::PROOF.into()), _socket: None });
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

fn confinement(
    config: &Config,
    (landlock, mounts): (Request, Vec<Mount>),
    user: &User,
    network: &Network,
    (own, proof): (Own, &Proof),
) -> Confinement {
    Confinement {
        own_run: own.run,
        home: own.home,
        landlock,
        mounts,
        in_sight: config.workdir.clone(),
        credentials: user.credentials.clone(),
        sockets: network.sockets,
        landlock_proof: proof.proof.clone(),
        fence_probe: network.probe_address(),
    }
}

/// Has init confine itself, which may wait for a slow file system; a signal that ends the sandbox ends that too.
async fn confine(
    init: Init,
    confinement: Confinement,
    netns: Option<&Netns>,
    signals: &mut mpsc::Receiver<Received>,
) -> anyhow::Result<(Launcher, Enforced)> {
    let network = netns.map(|netns| netns.as_fd().try_clone_to_owned()).transpose()?;
    let confine = move || Launcher::confine(init, confinement, network.as_ref().map(AsFd::as_fd));
    let mut confined = tokio::task::spawn_blocking(confine);
    loop {
        tokio::select! {
            confined = &mut confined => return Ok(confined??),
            Some(signal) = signals.recv() => {
                if signals::meaning(signal, false) == Meaning::Terminate {
                    bail!("signal {} ended the start", signal.number);
                }
            }
        }
    }
}

/// An explicit working directory alone; else the current one if the policy grants it, else home, else the root.
fn directories(config: &Config, landlock: &Request, home: &Path) -> Vec<PathBuf> {
    if let Some(workdir) = &config.workdir {
        return vec![workdir.clone()];
    }
    let current = config.current_dir.iter().filter(|path| landlock.grants_reading(path)).cloned();
    current.chain([home.to_owned(), PathBuf::from("/")]).collect()
}

/// Says where the command starts, if that is not where its caller is.
fn note_directory(config: &Config, directories: &[PathBuf]) {
    let current = config.current_dir.as_ref().filter(|_| config.workdir.is_none());
    if let (Some(current), Some(start)) = (current, directories.first())
        && start != current
        && config.log_level >= Level::WARN
    {
        let (current, start) = (current.display(), start.display());
        logging::print_stderr(&format!(
            "openshell-sandbox: the policy does not grant the current directory {current}, so the command starts in {start}; \
             --workdir {current} grants it"
        ));
    }
}

/// Names what `--workdir` makes writable although the policy has it read-only; under `hard_requirement` that is an error.
fn check_workdir(config: &Config, policy: &Policy) -> anyhow::Result<()> {
    let filesystem = policy.filesystem();
    let Some(workdir) = config.workdir.as_deref().filter(|_| filesystem.include_workdir) else { return Ok(()) };
    for line in lints::files::read_only_in(workdir, filesystem) {
        if filesystem.compatibility == Compatibility::HardRequirement {
            bail!(line);
        }
        logging::config_event("VALIDATED", "MED", &format!("policy warning: {line}"));
    }
    Ok(())
}

/// Warns about what the sandbox relies on and its workload can change.
fn note_writable(config: &Config, run_dir: &Path, user: &User, landlock: &Request) {
    let folders = [("log folder", config.log_dir.as_path()), ("run folder", run_dir)];
    for line in lints::files::writable(config.inputs().chain(folders), &user.credentials, landlock) {
        logging::config_event("VALIDATED", "MED", &format!("policy warning: {line}"));
    }
}

fn note_isolation(init: &Init) {
    if let Some(why) = init.shared_pids() {
        let message = format!("the sandbox shares the supervisor's process numbers: cannot {why}");
        logging::config_event("DEGRADED", "MED", &message);
    }
}

/// A handler behind a pipe is kept from running by the limit of core dumps; one behind a socket is not.
fn note_core_socket() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.starts_with('@') {
        let message = "a crash inside is handed to the host's socket for core dumps (kernel.core_pattern)";
        logging::config_event("DEGRADED", "HIGH", message);
    }
}

fn note_enforced(config: &Config, launcher: &Launcher, enforced: &Enforced, network: &Network) {
    let granted = &enforced.landlock;
    let lacking = [("path", &granted.missing_paths), ("not restricted by this kernel:", &granted.missing_rights)];
    if !enforced.not_covered.is_empty() {
        let message = format!("in reach although the policy does not grant it: {}", enforced.not_covered.join("; "));
        logging::config_event("DEGRADED", "HIGH", &message);
    }
    let lacking = lacking.iter().flat_map(|(what, items)| items.iter().map(move |item| format!("{what} {item}")));
    let lacking: Vec<_> = lacking.chain(enforced.not_proved.iter().map(|what| format!("not proved: {what}"))).collect();
    if !lacking.is_empty() {
        logging::config_event("DEGRADED", "MED", &format!("not enforced (best effort): {}", lacking.join("; ")));
    }
    let how = match (config.network, &network.proxy) {
        (NetworkMode::Allow, _) => "network open".to_owned(),
        (_, Some(proxy)) => format!("network through {proxy}"),
        (_, None) => "no network".to_owned(),
    };
    let abi = granted.abi;
    let message =
        format!("confined: Landlock ABI {abi}, system-call filter, {how}; init is process {}", launcher.init_pid());
    logging::config_event("ENFORCED", "INFO", &message);
}
