//! Starts the name server, and keeps the doors in line with the names of the policy in force.

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddrV4, TcpListener};
use std::sync::Arc;

use openshell_events::event::Audit;
use openshell_policy::network::host::HostName;
use openshell_proxy::decide::store::{Generation, PolicyStore};
use openshell_proxy::doors::dns;
use openshell_proxy::doors::dns::names::Names;
use openshell_proxy::doors::dns::pool::NameAddresses;
use openshell_proxy::doors::dns::report::NameReport;
use openshell_proxy::doors::dns::server::NameServer;
use openshell_proxy::doors::dns::unknown::UnknownNames;
use openshell_proxy::ground::limits::Limits;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_supervisor::calls::witness::IsDoor;
use openshell_supervisor::network::netns::{Doors, NameServerSockets};
use tokio::sync::{mpsc, watch};

use openshell_sources::tasks::Tasks;

/// The sandbox's doors, which names open and close.
#[derive(Debug)]
struct Opened(Arc<Doors>);

impl dns::Doors for Opened {
    fn change(&self, opened: &[SocketAddrV4], closed: &[SocketAddrV4]) -> io::Result<()> {
        self.0.change(opened, closed)
    }

    fn listen(&self, ports: &[u16]) -> io::Result<Vec<io::Result<TcpListener>>> {
        self.0.listen(ports)
    }
}

/// Creates the names of `policy`, whose doors are among `doors`. Also returns a channel with the
/// listeners of these doors.
pub(crate) fn create(
    policy: &Arc<PolicyStore>,
    doors: &Arc<Doors>,
    search: Vec<HostName>,
    unknown: UnknownNames,
    addresses: NameAddresses,
) -> (Arc<Names>, mpsc::Receiver<TcpListener>) {
    let (listeners, new) = mpsc::channel(Limits::DOOR_PORTS);
    let doors = Box::new(Opened(Arc::clone(doors)));
    (
        Arc::new(Names::new(
            Arc::clone(policy),
            doors,
            search,
            unknown,
            addresses,
            listeners,
        )),
        new,
    )
}

/// Returns the witness's view of the doors. If `unknown` names have doors, these open when they are
/// first needed.
pub(crate) fn is_door(doors: Arc<Doors>, names: &Arc<Names>, unknown: UnknownNames) -> IsDoor {
    if !unknown.have_doors() {
        return Arc::new(move |address| doors.contains(address));
    }
    let names = Arc::clone(names);
    Arc::new(move |address| doors.contains(address) || names.open_on_demand(address))
}

/// Starts `server` at its sockets.
///
/// # Errors
/// Fails if the runtime cannot wait for the sockets.
pub(crate) fn serve(
    server: NameServer,
    sockets: Option<NameServerSockets>,
    tasks: &mut Tasks,
) -> anyhow::Result<()> {
    let Some(NameServerSockets {
        datagrams,
        listener,
    }) = sockets
    else {
        return Ok(());
    };
    let datagrams = tokio::net::UdpSocket::from_std(datagrams)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    tasks.spawn("name server", server.run(datagrams, listener));
    Ok(())
}

/// Opens the doors of the policy in force, and closes the others.
pub(crate) fn refresh(names: &Names) {
    if let Err(error) = names.refresh() {
        tracing::error!("connections without the proxy are refused: {error}");
    }
}

/// Changes the doors with each of the `generations` of the policy.
pub(crate) async fn follow(names: Arc<Names>, mut generations: watch::Receiver<Generation>) {
    while generations.changed().await.is_ok() {
        let names = Arc::clone(&names);
        // An error would mean only that the thread failed.
        let _ = tokio::task::spawn_blocking(move || refresh(&names)).await;
    }
    pending().await
}

/// Looks up, for each of the `generations` of the policy, the names whose connections are never
/// inspected, so that the log shows where they lead.
pub(crate) async fn announce(
    names: Arc<Names>,
    mut generations: watch::Receiver<Generation>,
    resolver: Arc<Resolver>,
    audit: Arc<dyn Audit>,
) {
    let report = NameReport::new(audit);
    let mut known = Vec::new();
    loop {
        generations.mark_unchanged();
        tokio::select! {
            () = look_up(&names, &resolver, &report, &mut known) => {
                if generations.changed().await.is_err() {
                    return pending().await;
                }
            }
            // Another generation may have other names.
            Ok(()) = generations.changed() => {}
        }
    }
}

/// A name and its answer.
type Known = (HostName, Result<Vec<IpAddr>, String>);

/// Looks up every name whose connections are never inspected, and reports answers that differ from
/// the `known` ones.
async fn look_up(names: &Names, resolver: &Resolver, report: &NameReport, known: &mut Vec<Known>) {
    let wanted = names.tcp_names();
    known.retain(|(name, _)| wanted.contains(name));
    for name in wanted {
        let (answer, ttl) = match resolver.lookup_with_ttl(&name).await {
            Ok((mut addresses, ttl)) => {
                addresses.sort_unstable();
                (Ok(addresses), ttl)
            }
            Err(reason) => (Err(reason), 0),
        };
        let answered = (name, answer);
        if !known.contains(&answered) {
            report.outside(&answered.0, &answered.1, ttl);
            known.retain(|(name, _)| *name != answered.0);
            known.push(answered);
        }
    }
}
