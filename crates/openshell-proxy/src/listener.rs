//! Accepts the workload's connections, and owns every one of them.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinError, JoinSet};
use tracing::{Instrument as _, debug_span};

use crate::ingress;
use crate::limits::Limits;
use crate::peer::Flow;
use crate::pipeline;
use crate::proxy::Proxy;
use crate::socket::prepare;
use crate::workers::Workers;

/// A listener that is bound; dropping it, or the future of [`Self::run`], ends its connections.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    workers: Workers,
}

impl Listener {
    /// Binds to `address`, which only the sandbox reaches; `workers` are to serve its connections.
    ///
    /// # Errors
    /// The address is not this host's, or its port is taken.
    pub async fn bind(address: SocketAddrV4, workers: Workers) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        // Nothing is lost on a link inside of one kernel, and whoever probes or paces it waits for timers. Every kernel has this
        // one; without it the host's own serves.
        let _ = sockopt::set_tcp_congestion(&socket, "reno");
        Ok(Self { socket, workers })
    }

    /// Accepts until it is `stopped`, and then gives open connections a moment, so that what has become of each is reported. No
    /// error ends it: what keeps accept from working may pass.
    pub async fn run(self, proxy: Arc<Proxy>, mut stopped: oneshot::Receiver<()>) {
        let places = Arc::new(Semaphore::new(Limits::CONNECTIONS));
        let refusals = Arc::new(Semaphore::new(Limits::REFUSED_CONNECTIONS));
        let mut connections = JoinSet::new();
        let mut pause = Limits::ACCEPT_BACKOFF.0;
        let mut unanswered = 0;
        loop {
            while let Some(ended) = connections.try_join_next() {
                note_failure(ended);
            }
            let accepted = tokio::select! {
                // Who came before the end is still heard.
                biased;
                accepted = self.socket.accept() => accepted,
                _ = &mut stopped => break,
            };
            let (client, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("Proxy accept error: {error}");
                    // A connection that ends gives back what was missing.
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        Some(ended) = connections.join_next() => note_failure(ended),
                        _ = &mut stopped => break,
                    }
                    pause = (pause * 2).min(Limits::ACCEPT_BACKOFF.1);
                    continue;
                }
            };
            pause = Limits::ACCEPT_BACKOFF.0;
            // Any process of the host can reach a local address; only the sandbox has this one.
            let Some(flow) = flow(&client, peer).filter(|flow| *flow.client.ip() == proxy.workload) else { continue };
            // A socket that takes no options is closed already.
            let Ok(client) = prepare(&client).and_then(|()| client.into_std()) else { continue };
            if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                let proxy = Arc::clone(&proxy);
                self.hand_over(&mut connections, client, place, move |client| {
                    pipeline::serve(proxy, client, flow).instrument(debug_span!("connection", client = %flow.client))
                });
            } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                let proxy = Arc::clone(&proxy);
                self.hand_over(&mut connections, client, place, move |client| ingress::refuse_excess(proxy, client));
            } else {
                unanswered += 1;
                note_unanswered(unanswered);
            }
        }
        let all = async {
            while let Some(ended) = connections.join_next().await {
                note_failure(ended);
            }
        };
        let _ = tokio::time::timeout(Limits::DRAIN, all).await;
        // What goes on by itself is ended, and reports that.
        connections.shutdown().await;
    }

    /// Has a worker `serve` the `client`, which has its `place` for as long.
    fn hand_over<F>(
        &self,
        connections: &mut JoinSet<()>,
        client: std::net::TcpStream,
        place: OwnedSemaphorePermit,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let Some((worker, with_worker)) = self.workers.freest() else {
            tracing::error!("no thread is left that serves connections; start the sandbox again");
            return;
        };
        let served = async move {
            match TcpStream::from_std(client) {
                Ok(client) => serve(client).await,
                Err(error) => tracing::warn!("Proxy accept error: {error}"),
            }
            drop((place, with_worker));
        };
        connections.spawn_on(served, worker);
    }
}

/// A connection's own task failed, or its thread has ended; the others go on.
fn note_failure(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!("a connection ended by an error of the proxy's own: {error}");
    }
}

/// Said when their number has doubled, so that they cannot fill the log either.
fn note_unanswered(count: u64) {
    if count.is_power_of_two() {
        tracing::warn!("connections closed unanswered since the start, as there were too many at once: {count}");
    }
}

fn flow(client: &TcpStream, peer: SocketAddr) -> Option<Flow> {
    match (peer, client.local_addr().ok()?) {
        (SocketAddr::V4(client), SocketAddr::V4(server)) => Some(Flow { client, server }),
        _ => None,
    }
}
