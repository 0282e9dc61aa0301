//! Starts the proxy, its reporters, and the tasks that keep it up to date.

pub(crate) mod file_log;
pub(crate) mod names;
pub(crate) mod witness;

use std::future::pending;
use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use openshell_events::event::Audit;
use openshell_events::words::{ConfigState, Severity};
use openshell_proxy::decide::identify::{Identifier, Processes, Witness};
use openshell_proxy::decide::store::Generation;
use openshell_proxy::doors::bypass::BypassReports;
use openshell_proxy::doors::dns::names::Names;
use openshell_proxy::doors::dns::pool::NameAddresses;
use openshell_proxy::doors::dns::server::NameServer;
use openshell_proxy::doors::dns::unknown::UnknownNames;
use openshell_proxy::doors::listener::{Listener, NamedDoors, Slots};
use openshell_proxy::doors::proxy::Proxy;
use openshell_proxy::doors::publish::PublishedPort;
use openshell_proxy::ground::limits::Limits;
use openshell_proxy::ground::workers::Workers;
use openshell_proxy::reach::authorize::authorizer::{Authorizer, Mode};
use openshell_proxy::reach::dial::Egress;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_proxy::relay::services::Services;
use openshell_proxy::wire::tls::interceptor::Interceptor;
use openshell_sources::tasks::Tasks;
use openshell_sources::update::Request;
use openshell_supervisor::calls::waiting_calls::{Handler, Handlers, WaitingCalls};
use openshell_supervisor::calls::witness::{IsDoor, WitnessError};
use openshell_supervisor::files::landlock;
use openshell_supervisor::init::Init;
use openshell_supervisor::network::netlink::Socket;
use openshell_supervisor::network::netns::{Doors, NameServerSockets, firewall};
use openshell_supervisor::network::refused_packets::RefusedPackets;
use openshell_telemetry::health::Respond;
use openshell_telemetry::logging;
use openshell_telemetry::metrics::{Read, Readings};
use tokio::sync::{mpsc, watch};
use tracing::Level;

use crate::activation::InForce;
use crate::cli::Published;
use crate::config::Config;
use crate::reports::background_reporter::BackgroundReporter;
use crate::reports::refusals::Refusals;
use crate::reports::refused_packets::PacketReporter;
use crate::reports::run_reports::RunReports;
use crate::reports::servers::Servers;
use crate::startup::groundwork::network::{Network, ProxySockets};
use crate::startup::host::ca_files::CaFiles;
use crate::startup::host::resolver_files::LocalNames;
use crate::startup::services::file_log::FileLog;

/// The proxy before it serves, and everything that reports about the run.
pub(crate) struct RunServices {
    /// The parts of the proxy, if there is one.
    proxy: Option<ProxyParts>,
    published: Vec<(Listener, PublishedPort)>,
    resolver: Arc<Resolver>,
    /// The receivers of events.
    audit: Arc<dyn Audit>,
    pub(crate) run_reports: RunReports,
    pub(crate) reporters: Vec<BackgroundReporter>,
    /// The limit of simultaneous connections at the proxy.
    pub(crate) slots: Slots,
    /// The ports of this host at which the supervisor listens.
    own_ports: Vec<u16>,
    /// Servers inside.
    pub(crate) servers: Arc<Servers>,
    /// Addresses of names inside.
    name_addresses: NameAddresses,
    /// True once no more clients are let in from outside.
    pub(crate) closed: watch::Sender<bool>,
}

/// The sandbox's calls that the supervisor handles.
pub(crate) struct Calls {
    /// The calls that wait for an answer, if there are any.
    pub(crate) waiting: Option<WaitingCalls>,
    /// The log of calls about files, if they are logged.
    pub(crate) files: Option<FileLog>,
}

/// The parts of the proxy that exist before its witness.
struct ProxyParts {
    listener: Listener,
    workers: Arc<Workers>,
    name_server: Option<NameServerSockets>,
    doors: Arc<Doors>,
    identifier: Arc<Identifier>,
    /// A socket in the workload's namespace; it does not matter which.
    socket: OwnedFd,
    packet_log: io::Result<Socket>,
}

impl RunServices {
    /// Takes the proxy's sockets.
    ///
    /// # Errors
    /// Fails if a port cannot be published, or the sandbox's processes cannot be examined.
    pub(crate) fn prepare(
        config: &Config,
        run_reports: RunReports,
        audit: Arc<dyn Audit>,
        sockets: Option<ProxySockets>,
        network: &Network,
        init: &Init,
        landlock: &landlock::Request,
    ) -> anyhow::Result<Self> {
        let resolver = run_reports.resolver();
        let published = Vec::new();
        let reporters = Vec::new();
        let slots = Slots::new(Limits::CONNECTIONS);
        let mut services = Self {
            proxy: None,
            published,
            resolver,
            audit,
            run_reports,
            reporters,
            slots,
            closed: watch::Sender::new(false),
            own_ports: config.health.port.into_iter().collect(),
            servers: Arc::default(),
            name_addresses: config.network.name_addresses,
        };
        if let Some(ProxySockets {
            listener,
            name_server,
            doors,
            socket,
            packet_log,
        }) = sockets
        {
            let workers: Arc<Workers> = Arc::default();
            let listener = Listener::of_workload(listener, Arc::clone(&workers))?;
            for published in &config.network.publish {
                let (listener, port) = publish(published, network, &services.audit, &workers)?;
                if published.address.port() == 0 && config.log.level >= Level::WARN {
                    let address = port.address();
                    let inside = published.port;
                    logging::print_stderr(&format!(
                        "openshell-sandbox: port {inside} inside is published at {address}"
                    ));
                }
                services.own_ports.push(port.address().port());
                services
                    .published
                    .push((listener.closing_with(services.closed.subscribe()), port));
            }
            let identifier = Arc::new(identifier(init, landlock)?);
            services.proxy = Some(ProxyParts {
                listener,
                workers,
                name_server,
                doors,
                identifier,
                socket,
                packet_log,
            });
        }
        Ok(services)
    }

    /// Returns the reader of the numbers that the parts of the sandbox keep.
    pub(crate) fn reader(&self, in_force: &InForce, refusals: &Arc<Refusals>) -> Read {
        let policy = Arc::clone(&in_force.policy);
        let reloads = Arc::clone(&in_force.reloads);
        let slots = self.slots.clone();
        let refusals = Arc::clone(refusals);
        let approvals = in_force.approvals.clone();
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Box::new(move || Readings {
            approvals_held: approvals.as_ref().map_or(0, |desk| count(desk.held())),
            approvals_limited: approvals.as_ref().map_or(0, |desk| desk.limited()),
            connections_open: u64::try_from(slots.taken()).unwrap_or(u64::MAX),
            policy_generation: policy.load().generation(),
            reloads_applied: reloads.applied.load(Ordering::Relaxed),
            reloads_failed: reloads.failed.load(Ordering::Relaxed),
            denials_dropped: refusals.beyond_kept(),
            log_lines_dropped: logging::lines_left_out(),
        })
    }

    /// Adds the port at which the SSH server listens, if it does, to the supervisor's own ports.
    pub(crate) fn add_ssh_port(&mut self, port: Option<u16>) {
        self.own_ports.extend(port);
    }

    /// Returns the resolver of names outside.
    pub(crate) fn resolver(&self) -> &Arc<Resolver> {
        &self.resolver
    }

    /// Returns the test of whether the threads of connections respond, if there is a proxy.
    pub(crate) fn test(&self) -> Option<Respond> {
        let workers = Arc::clone(&self.proxy.as_ref()?.workers);
        Some(Box::new(move || {
            let workers = Arc::clone(&workers);
            Box::pin(async move { workers.respond().await })
        }))
    }

    /// Answers the sandbox's `calls`. If there is a proxy, also serves connections, answers
    /// questions for names, and starts to report refused packets. `local` are names that depend on
    /// the host.
    ///
    /// # Errors
    /// Fails if callers cannot be identified.
    pub(crate) fn serve(
        &mut self,
        in_force: InForce,
        tls: CaFiles,
        local: LocalNames,
        calls: Calls,
        network: &Network,
        tasks: &mut Tasks,
    ) -> anyhow::Result<()> {
        let Calls { waiting, files } = calls;
        let files = waiting.as_ref().zip(files);
        let files = files.map(|(calls, files)| files.handler(calls));
        let Some(parts) = self.proxy.take() else {
            if let Some(calls) = waiting {
                calls.serve(Handlers {
                    connects: None,
                    files,
                })?;
            }
            return Ok(());
        };
        let calls = waiting.context("the sandbox's init did not send the listener of its calls")?;
        let mode = self
            .run_reports
            .observations()
            .map_or(Mode::Enforce, Mode::Observe);
        let approvals = in_force.approvals.filter(|desk| desk.asks_of_refusals());
        let unknown = match &mode {
            Mode::Observe(_) => UnknownNames::Observed,
            Mode::Enforce if approvals.is_some() => UnknownNames::Asked,
            Mode::Enforce => UnknownNames::Refused,
        };
        let generations = in_force.policy.subscribe();
        let (names, new_listeners) = names::create(
            &in_force.policy,
            &parts.doors,
            local.search,
            unknown,
            self.name_addresses,
        );
        let is_door = names::is_door(parts.doors, &names, unknown);
        let identifier = Arc::clone(&parts.identifier);
        let (witness, of_connects) =
            self.witness(&calls, is_door, parts.socket, identifier, tasks)?;
        calls.serve(Handlers {
            connects: Some(of_connects),
            files,
        })?;
        let probe = network.probe_address();
        let packets = monitor(
            parts.packet_log,
            probe,
            &names,
            &witness,
            &self.audit,
            tasks,
        );
        self.reporters.extend(packets);
        let own_ports = self.own_ports.clone();
        let egress = Egress::new(Arc::clone(&self.resolver), tls.roots).without_own(own_ports);
        let services = Arc::new(Services {
            authorizer: Authorizer::new(in_force.policy, parts.identifier, mode),
            egress,
            vault: in_force.vault,
            leaks: in_force.leaks,
            sessions: Default::default(),
            memory: Default::default(),
            approvals,
            guidance: Arc::clone(in_force.policy_local.guidance()),
            audit: Arc::clone(&self.audit),
        });
        tasks.spawn("policy engine", warm_up(Arc::clone(&services)));
        let proxy = Arc::new(Proxy {
            services,
            witness: Arc::clone(&witness),
            admission: Default::default(),
            interceptor: Interceptor::new(tls.authority),
            names: Some(Arc::clone(&names)),
            inference: in_force.inference,
            policy_local: in_force.policy_local,
        });
        self.listen(proxy, parts.listener, parts.workers, new_listeners, tasks);
        let resolver = Arc::clone(&self.resolver);
        let audit = Arc::clone(&self.audit);
        let server = NameServer::new(Arc::clone(&names), local.own, resolver, witness, audit);
        names::serve(server, parts.name_server, tasks)?;
        self.follow_names(names, generations, tasks);
        Ok(())
    }

    /// Serves the proxy's own door, the doors of names, and the ports that are published.
    fn listen(
        &mut self,
        proxy: Arc<Proxy>,
        listener: Listener,
        workers: Arc<Workers>,
        new_listeners: mpsc::Receiver<TcpListener>,
        tasks: &mut Tasks,
    ) {
        let slots = self.slots.clone();
        let doors = proxy.names.clone().map(|names| {
            Arc::new(NamedDoors {
                proxy: Arc::clone(&proxy),
                names,
            })
        });
        let run = |stopped| listener.run(proxy, slots.clone(), stopped);
        let served = BackgroundReporter::start(tasks, "proxy", run);
        self.reporters.push(served);
        if let Some(doors) = doors {
            let run = |stopped| doors.run(new_listeners, workers, slots, stopped);
            let served = BackgroundReporter::start(tasks, "doors of names", run);
            self.reporters.push(served);
        }
        for (listener, port) in self.published.drain(..) {
            let slots = Slots::new(Limits::PUBLISHED_CONNECTIONS);
            let run = |stopped| listener.run(Arc::new(port), slots, stopped);
            self.reporters
                .push(BackgroundReporter::start(tasks, "published port", run));
        }
    }

    /// Keeps the doors in line with the names of the policy in force, and reports where names lead.
    fn follow_names(
        &self,
        names: Arc<Names>,
        generations: watch::Receiver<Generation>,
        tasks: &mut Tasks,
    ) {
        names::refresh(&names);
        let following = names::follow(Arc::clone(&names), generations.clone());
        tasks.spawn("doors of the policy", following);
        let resolver = Arc::clone(&self.resolver);
        let audit = Arc::clone(&self.audit);
        let announced = names::announce(names, generations, resolver, audit);
        tasks.spawn("names of the policy", announced);
    }
}

impl RunServices {
    /// Returns the witness of `calls`, and the handler of these calls.
    fn witness(
        &self,
        calls: &WaitingCalls,
        is_door: IsDoor,
        socket: OwnedFd,
        identifier: Arc<Identifier>,
        tasks: &mut Tasks,
    ) -> Result<(Arc<dyn Witness>, Handler), WitnessError> {
        let servers = Arc::clone(&self.servers);
        let audit = Arc::clone(&self.audit);
        witness::create(calls, is_door, socket, identifier, servers, audit, tasks)
    }
}

/// Time after which the policy engine is made even if no connection has needed it. It is longer
/// than many commands run.
const WARM_UP: Duration = Duration::from_millis(50);

/// Makes the policy engine of the first generation, and the search for secrets, so that no
/// connection has to wait for them.
async fn warm_up(services: Arc<Services>) {
    tokio::time::sleep(WARM_UP).await;
    // If no thread can be started, the first decision makes the engine.
    let _ = std::thread::Builder::new()
        .name("policy".to_owned())
        .spawn(move || {
            services.authorizer.policy.load().prepare();
            services.leaks.prepare(&services.vault.load());
            // What the start and the compiler of the rules needed would otherwise stay for the run.
            openshell_supervisor::trim_heap();
        });
    pending().await
}

/// Starts the task that puts updates in force, and returns its requests.
pub(crate) fn activate(in_force: &InForce, tasks: &mut Tasks) -> mpsc::Sender<Request> {
    // Room for one request, because a source waits for its answer.
    let (requests, updates) = mpsc::channel(1);
    tasks.spawn("policy reload", in_force.clone().run(updates));
    requests
}

/// Listens outside of the sandbox for a server inside.
fn publish(
    &Published { address, port }: &Published,
    network: &Network,
    audit: &Arc<dyn Audit>,
    workers: &Arc<Workers>,
) -> anyhow::Result<(Listener, PublishedPort)> {
    let netns = network
        .netns
        .as_ref()
        .context("there is no network to publish from")?
        .try_clone()?;
    let listen = || {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        io::Result::Ok((
            socket.local_addr()?,
            Listener::new(socket, Arc::clone(workers))?,
        ))
    };
    let (address, listener) = listen().with_context(|| {
        format!("cannot publish at {address}; name another port or address in --publish")
    })?;
    let message = format!("Published at {address}: 127.0.0.1:{port} inside");
    logging::config_event(ConfigState::Enabled, Severity::Info, &message);
    let open = Arc::new(move |address| netns.tcp_socket(address));
    Ok((
        listener,
        PublishedPort::new(address, port, open, Arc::clone(audit)),
    ))
}

/// Returns what identifies callers.
fn identifier(init: &Init, landlock: &landlock::Request) -> anyhow::Result<Identifier> {
    let (root, init) = init.processes().context(
        "cannot read the sandbox's processes, which the proxy needs to identify callers",
    )?;
    let landlock = landlock.clone();
    let is_writable = Box::new(move |path: &Path| landlock.grants_writing(path));
    Ok(Identifier::new(Processes::new(root, init), is_writable))
}

/// Starts the reporter of packets that the firewall refuses. The firewall works without it, so a
/// failure is logged and does not end the start.
fn monitor(
    packet_log: io::Result<Socket>,
    probe: Option<SocketAddrV4>,
    names: &Arc<Names>,
    witness: &Arc<dyn Witness>,
    audit: &Arc<dyn Audit>,
    tasks: &mut Tasks,
) -> Option<BackgroundReporter> {
    let reports = BypassReports {
        probe,
        names: Arc::clone(names),
        witness: Arc::clone(witness),
        audit: Arc::clone(audit),
    };
    let reporter = packet_log
        .and_then(|socket| RefusedPackets::listen(socket, firewall::LOG_GROUP))
        .and_then(|packets| PacketReporter::new(packets, reports));
    match reporter {
        Ok(reporter) => Some(BackgroundReporter::start(
            tasks,
            "bypass monitor",
            |stopped| reporter.run(stopped),
        )),
        Err(error) => {
            let message =
                format!("attempts to go past the proxy are refused, but not reported: {error:#}");
            logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
            None
        }
    }
}
