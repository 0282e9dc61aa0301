//! Starts the name server, and keeps the doors of names those of the policy in force.

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
use openshell_proxy::ground::limits::Limits;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_supervisor::calls::witness::IsDoor;
use openshell_supervisor::network::netns::{Doors, NameServerSockets};
use tokio::sync::{mpsc, watch};

use openshell_sources::tasks::Tasks;

/// The doors as names open them.
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

/// Creates the names of `policy`, whose doors are among `doors`; also returns their listeners, as
/// they come.
pub(crate) fn create(
    policy: &Arc<PolicyStore>,
    doors: &Arc<Doors>,
    search: Vec<HostName>,
    is_observed: bool,
    addresses: NameAddresses,
) -> (Arc<Names>, mpsc::Receiver<TcpListener>) {
    let (listeners, new) = mpsc::channel(Limits::DOOR_PORTS);
    let doors = Box::new(Opened(Arc::clone(doors)));
    (
        Arc::new(Names::new(
            Arc::clone(policy),
            doors,
            search,
            is_observed,
            addresses,
            listeners,
        )),
        new,
    )
}

/// Returns the witness's view of the doors. In an observed run those of names open when they are
/// first needed.
pub(crate) fn is_door(doors: Arc<Doors>, names: &Arc<Names>, is_observed: bool) -> IsDoor {
    if !is_observed {
        return Arc::new(move |address| doors.contains(address));
    }
    let names = Arc::clone(names);
    Arc::new(move |address| doors.contains(address) || names.open_observed(address))
}

/// Starts `server` at its sockets.
///
/// # Errors
/// They are none that can be waited for.
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

/// Opens the doors of the policy in force, and closes others.
pub(crate) fn refresh(names: &Names) {
    if let Err(error) = names.refresh() {
        tracing::error!("connections without the proxy are refused: {error}");
    }
}

/// Follows `generations` of the policy by changing doors.
pub(crate) async fn follow(names: Arc<Names>, mut generations: watch::Receiver<Generation>) {
    while generations.changed().await.is_ok() {
        let names = Arc::clone(&names);
        // An error is one of the thread alone.
        let _ = tokio::task::spawn_blocking(move || refresh(&names)).await;
    }
    pending().await
}

/// Follows `generations` of the policy by looking up names whose bytes are never looked into, so
/// that the log tells where they lead.
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
            // Another generation may know other names.
            Ok(()) = generations.changed() => {}
        }
    }
}

/// A name and its answer.
type Known = (HostName, Result<Vec<IpAddr>, String>);

/// Looks up every name whose bytes are never looked into, and reports answers that are not the
/// `known` ones.
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
