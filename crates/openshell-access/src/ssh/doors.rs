//! Doors: the ways by which clients come, and which clients each of them lets in.

use std::future::pending;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use openshell_events::words::{Severity, SshActivity, SshDoor};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::ssh::limits::Limits;
use crate::ssh::preface::{Prefaces, Refusal};
use crate::ssh::report::{Client, Facts};
use crate::ssh::server::Server;
use crate::ssh::session::breathe;

/// A function that returns the name of the process at the other end of a connection, or the reason
/// why it is not let in.
pub type Peer = Arc<dyn Fn(BorrowedFd<'_>) -> Result<String, String> + Send + Sync>;

/// A value that becomes true once no more clients are let in.
pub type Closed = watch::Receiver<bool>;

/// How many TCP clients may be sending their preface, in addition to the connections that are
/// served.
const AT_DOOR: usize = 256;

/// Lets clients in that send a valid preface, for as long as the future is polled. Lets no more of
/// them in once `closed` is true.
pub async fn tcp(
    listener: TcpListener,
    prefaces: Prefaces,
    server: Arc<Server>,
    mut closed: Closed,
) {
    let prefaces = Arc::new(prefaces);
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
            () = until(&mut closed) => break,
        };
        let Ok((stream, address)) = accepted else {
            breathe().await;
            continue;
        };
        if clients.len() >= Limits::CONNECTIONS + AT_DOOR {
            continue;
        }
        // Keystrokes must not be delayed.
        let _ = stream.set_nodelay(true);
        let addresses = stream.local_addr().ok().map(|local| (address, local));
        let client = Client {
            door: SshDoor::Tcp,
            name: address.to_string(),
            addresses,
        };
        let server = Arc::clone(&server);
        let prefaces = Arc::clone(&prefaces);
        clients.spawn(admit(stream, client, prefaces, server));
    }
    refuse_more(&listener);
    serve_on(clients).await;
}

/// Serves a client if its preface is in order.
async fn admit(
    mut stream: TcpStream,
    client: Client,
    prefaces: Arc<Prefaces>,
    server: Arc<Server>,
) {
    let Ok(verdict) = prefaces.admit(&mut stream).await else {
        return;
    };
    let reporter = server.reporter(client.clone());
    let accepted = Facts {
        authentication: Some("NSSH1"),
        ..Facts::default()
    };
    let Err(refusal) = verdict else {
        reporter.report(SshActivity::Auth, accepted);
        return server.serve(stream, client).await;
    };
    let reason = refusal.to_string();
    let refused = Facts {
        reason: &reason,
        is_refused: true,
        ..accepted
    };
    reporter.report(SshActivity::Auth, refused);
    let who = format!("from {}: {reason}", client.name);
    match refusal {
        Refusal::Replayed => {
            reporter.finding(Severity::High, "NSSH1 Nonce Replay Attack", &who);
        }
        Refusal::WrongMac => reporter.finding(Severity::Medium, "NSSH1 Wrong MAC", &who),
        Refusal::Skewed => reporter.finding(Severity::Low, "NSSH1 Clock Skew", &who),
        Refusal::Malformed | Refusal::Full => {}
    }
}

/// Lets processes in that can open the socket of `listener` and that `peer` admits, for as long as
/// the future is polled. Lets no more of them in once `closed` is true.
pub async fn socket(listener: UnixListener, peer: Peer, server: Arc<Server>, mut closed: Closed) {
    let mut clients = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
            () = until(&mut closed) => break,
        };
        let Ok((stream, _)) = accepted else {
            breathe().await;
            continue;
        };
        let door = SshDoor::Socket;
        match peer(stream.as_fd()) {
            Ok(name) => {
                clients.spawn(Arc::clone(&server).serve(
                    stream,
                    Client {
                        door,
                        name,
                        addresses: None,
                    },
                ));
            }
            Err(reason) => {
                let reporter = server.reporter(Client {
                    door,
                    name: "-".to_owned(),
                    addresses: None,
                });
                reporter.report(
                    SshActivity::Open,
                    Facts {
                        reason: &reason,
                        is_refused: true,
                        ..Facts::default()
                    },
                );
            }
        }
    }
    refuse_more(&listener);
    serve_on(clients).await;
}

/// Waits until `closed` is true; forever if it never becomes true.
pub async fn until(closed: &mut Closed) {
    if closed.wait_for(|closed| *closed).await.is_err() {
        pending::<()>().await;
    }
}

/// Makes the kernel refuse further connections (shutdown(2) undoes listen(2)).
fn refuse_more(listener: impl AsFd) {
    // A socket that is already closed refuses them too.
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Read);
}

/// Serves the clients that have been let in, for as long as the future is polled.
async fn serve_on(mut clients: JoinSet<()>) {
    while clients.join_next().await.is_some() {}
    pending().await
}
