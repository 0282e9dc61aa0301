//! Doors: where clients come from, and who of them is let in.

use std::future::pending;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use openshell_events::words::{Severity, SshActivity, SshDoor};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::ssh::limits::Limits;
use crate::ssh::preface::{Prefaces, Refusal};
use crate::ssh::report::{Client, Facts};
use crate::ssh::server::Server;
use crate::ssh::session::breathe;

/// Returns the name of the process at the other end of a connection, or why it is not let in.
pub type Peer = Arc<dyn Fn(BorrowedFd<'_>) -> Result<String, String> + Send + Sync>;

/// Becomes true once no more clients are let in.
pub type Closed = watch::Receiver<bool>;

/// Clients that are at the door of TCP at once.
const AT_DOOR: usize = 256;

/// Lets clients in that send a preface, for as long as it is polled; once `closed` is true, no more
/// of them.
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
        let Ok((mut stream, address)) = accepted else {
            breathe().await;
            continue;
        };
        if clients.len() >= Limits::CONNECTIONS + AT_DOOR {
            continue;
        }
        // Keystrokes are not delayed.
        let _ = stream.set_nodelay(true);
        let addresses = stream.local_addr().ok().map(|local| (address, local));
        let client = Client {
            door: SshDoor::Tcp,
            name: address.to_string(),
            addresses,
        };
        let server = Arc::clone(&server);
        let prefaces = Arc::clone(&prefaces);
        clients.spawn(async move {
            let Ok(verdict) = prefaces.admit(&mut stream).await else {
                return;
            };
            let reporter = server.reporter(client.clone());
            let authentication = Some("NSSH1");
            match verdict {
                Ok(()) => {
                    reporter.report(
                        SshActivity::Auth,
                        Facts {
                            authentication,
                            ..Facts::default()
                        },
                    );
                    server.serve(stream, client).await;
                }
                Err(refusal) => {
                    let reason = refusal.to_string();
                    let facts = Facts {
                        authentication,
                        reason: &reason,
                        is_refused: true,
                        ..Facts::default()
                    };
                    reporter.report(SshActivity::Auth, facts);
                    let who = format!("from {}: {reason}", client.name);
                    match refusal {
                        Refusal::Replayed => {
                            reporter.finding(Severity::High, "NSSH1 Nonce Replay Attack", &who)
                        }
                        Refusal::WrongMac => {
                            reporter.finding(Severity::Medium, "NSSH1 Wrong MAC", &who)
                        }
                        Refusal::Skewed => {
                            reporter.finding(Severity::Low, "NSSH1 Clock Skew", &who)
                        }
                        Refusal::Malformed | Refusal::Full => {}
                    }
                }
            }
        });
    }
    refuse_more(&listener);
    serve_on(clients).await;
}

/// Lets the processes in that can open the socket of `listener` and that `peer` admits, for as long
/// as it is polled; once `closed` is true, no more of them.
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

/// Waits until `closed` is true, for good if it never is.
pub async fn until(closed: &mut Closed) {
    if closed.wait_for(|closed| *closed).await.is_err() {
        pending::<()>().await;
    }
}

/// Has the kernel refuse further connections (listen(2) is undone by shutdown(2)).
fn refuse_more(listener: impl AsFd) {
    // A socket that is closed already refuses them too.
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Read);
}

/// Serves the clients that are in, for as long as it is polled.
async fn serve_on(mut clients: JoinSet<()>) {
    while clients.join_next().await.is_some() {}
    pending().await
}
