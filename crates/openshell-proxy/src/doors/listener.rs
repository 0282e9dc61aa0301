//! A listener: accepts the connections to a service, and owns each until it ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};
use rustix::process::Resource;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tracing::{Instrument as _, debug_span};

use crate::decide::admission::Admitted;
use crate::denial::refusal::Refusal;
use crate::doors::dns::names::Names;
use crate::doors::ingress;
use crate::doors::pipeline::{self, Entry};
use crate::doors::proxy::Proxy;
use crate::ground::limits::Limits;
use crate::ground::socket::prepare;
use crate::ground::workers::{WorkerId, Workers};
use crate::report::record::{Outcome, Record};

/// A service that serves the connections of a listener.
pub trait Service: Send + Sync + 'static {
    /// Serves a client at `peer`.
    fn serve(
        self: Arc<Self>,
        client: TcpStream,
        peer: SocketAddr,
    ) -> impl Future<Output = ()> + Send;

    /// Turns away a client that exceeds the bound of [`Slots`].
    fn refuse_excess(
        self: Arc<Self>,
        client: TcpStream,
        peer: SocketAddr,
    ) -> impl Future<Output = ()> + Send;
}

/// The bounds on the connections of one or several listeners.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Maximum number of connections that are served at once.
    most: usize,
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

impl Slots {
    /// Permits `served` connections at once, and [`Limits::REFUSED_CONNECTIONS`] more that are
    /// refused.
    #[must_use]
    pub fn new(served: usize) -> Self {
        let semaphore = |count| Arc::new(Semaphore::new(count));
        Self {
            most: served,
            served: semaphore(served),
            refused: semaphore(Limits::REFUSED_CONNECTIONS),
        }
    }
}

impl Slots {
    /// Returns the number of connections that are being served.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.most.saturating_sub(self.served.available_permits())
    }
}

impl Service for Proxy {
    async fn serve(self: Arc<Self>, client: TcpStream, peer: SocketAddr) {
        let identity = self
            .witness
            .caller(client.as_fd())
            .unwrap_or_else(|| Err(Refusal::unwitnessed()));
        let admitted = self
            .admission
            .admit(&identity, &self.services.authorizer.policy.load());
        match admitted {
            Admitted::Served(_place) => {
                let served = pipeline::serve(self, client, identity, Entry::Proxy);
                served
                    .instrument(debug_span!("connection", client = %peer))
                    .await;
            }
            Admitted::Refused(_place) => ingress::refuse_excess(self, client).await,
            Admitted::Closed => drop(client),
        }
    }

    async fn refuse_excess(self: Arc<Self>, client: TcpStream, _: SocketAddr) {
        ingress::refuse_excess(self, client).await;
    }
}

/// The service at the doors of names.
#[derive(Debug)]
pub struct NamedDoors {
    /// The proxy that serves their connections.
    pub proxy: Arc<Proxy>,
    /// Gives the target of a door.
    pub names: Arc<Names>,
}

impl Service for NamedDoors {
    async fn serve(self: Arc<Self>, client: TcpStream, peer: SocketAddr) {
        // Doors are opened only for addresses that have a target.
        let Some(target) = client
            .local_addr()
            .ok()
            .and_then(|door| self.names.target(door))
        else {
            return ingress::named::reset(&client);
        };
        let identity = self
            .proxy
            .witness
            .caller(client.as_fd())
            .unwrap_or_else(|| Err(Refusal::unwitnessed()));
        let proxy = Arc::clone(&self.proxy);
        let admitted = proxy
            .admission
            .admit(&identity, &proxy.services.authorizer.policy.load());
        match admitted {
            Admitted::Served(_place) => {
                let served =
                    pipeline::serve(Arc::clone(&proxy), client, identity, Entry::Name(target));
                served
                    .instrument(debug_span!("connection", client = %peer))
                    .await;
            }
            Admitted::Refused(_place) => self.refuse_excess(client, peer).await,
            Admitted::Closed => ingress::named::reset(&client),
        }
    }

    async fn refuse_excess(self: Arc<Self>, client: TcpStream, _: SocketAddr) {
        let target = client
            .local_addr()
            .ok()
            .and_then(|door| self.names.target(door));
        let request = target.as_ref().map_or_else(
            || "CONNECT".to_owned(),
            |target| format!("CONNECT {target}"),
        );
        let record = Record::new(&self.proxy.services.audit, request, target);
        record.finish(Outcome::Refused(&Refusal::limit_reached(
            "too many connections at once",
        )));
        ingress::named::reset(&client);
    }
}

impl NamedDoors {
    /// Serves the connections of all `listeners`, which it takes as they come, by `workers` within
    /// `slots`, until it is `stopped`.
    pub async fn run(
        self: Arc<Self>,
        mut listeners: mpsc::Receiver<std::net::TcpListener>,
        workers: Arc<Workers>,
        slots: Slots,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let mut running = JoinSet::new();
        let mut stops = Vec::new();
        loop {
            let socket = tokio::select! {
                biased;
                Some(socket) = listeners.recv() => socket,
                _ = &mut stopped => break,
            };
            match Listener::of_workload(socket, Arc::clone(&workers)) {
                Ok(listener) => {
                    let (stop, stopped) = oneshot::channel();
                    stops.push(stop);
                    running.spawn(listener.run(Arc::clone(&self), slots.clone(), stopped));
                }
                Err(error) => {
                    tracing::error!("cannot accept connections by name at a port: {error}")
                }
            }
        }
        drop(stops);
        while running.join_next().await.is_some() {}
    }
}

/// Waits until `value` is true; waits forever if it can no longer become true.
async fn is_true(value: &mut watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Makes the kernel refuse further connections at a listening socket (shutdown(2) undoes
/// listen(2)).
fn refuse_more(listener: impl AsFd) {
    // An error means that the socket is closed, so that it refuses them already.
    let _ = rustix::net::shutdown(listener, Shutdown::Read);
}

/// Number of descriptors that a supervisor opens after its listener: eight, and three for each
/// worker.
const OTHER_DESCRIPTORS: u32 = 8 + 3 * Limits::WORKERS as u32;

/// A bound listening socket. Its connections end when it, or the future of [`Self::run`], is
/// dropped.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    workers: Arc<Workers>,
    /// The worker that accepts connections.
    accepting: (Handle, WorkerId),
    /// Number of descriptors at which no more connections are accepted; `None` without a limit.
    descriptors: Option<u32>,
    /// Number of descriptors that are in use without any connection.
    begin: u32,
    /// Becomes true once no more connections are accepted.
    closed: watch::Receiver<bool>,
}

impl Listener {
    /// Accepts connections at `socket` on the first of `workers`, which serve them.
    ///
    /// # Errors
    /// Threads or descriptors are exhausted, or the socket cannot be polled.
    pub fn new(socket: std::net::TcpListener, workers: Arc<Workers>) -> io::Result<Self> {
        // The start raises the current limit to the maximum later.
        let limit = rustix::process::getrlimit(Resource::Nofile).maximum;
        let descriptors = limit.map(|limit| {
            limit
                .saturating_sub(Limits::SPARE_DESCRIPTORS.max(limit / 32))
                .try_into()
                .unwrap_or(u32::MAX)
        });
        // Accepted sockets inherit these options.
        prepare(&socket)?;
        let accepting = workers.first()?;
        let socket = {
            let _runtime = accepting.0.enter();
            TcpListener::from_std(socket)?
        };
        let begin = socket
            .as_raw_fd()
            .cast_unsigned()
            .saturating_add(OTHER_DESCRIPTORS);
        Ok(Self {
            socket,
            workers,
            accepting,
            descriptors,
            begin,
            closed: watch::channel(false).1,
        })
    }

    /// Refuses further connections once `closed` is true; open connections continue.
    #[must_use]
    pub fn closing_with(self, closed: watch::Receiver<bool>) -> Self {
        Self { closed, ..self }
    }

    /// Does the same as [`Self::new`], for connections of the workload.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn of_workload(socket: std::net::TcpListener, workers: Arc<Workers>) -> io::Result<Self> {
        // A link within one kernel loses nothing, so congestion controls that probe or pace only
        // add delays. Every kernel has Reno. If it is refused, the host's default is used.
        let _ = sockopt::set_tcp_congestion(&socket, "reno");
        Self::new(socket, workers)
    }

    /// Accepts connections within `slots` until it is `stopped`, then drains the open ones so that
    /// each reports its outcome. An error of accept(2) is logged, and accept is tried again,
    /// because the causes pass.
    ///
    /// # Panics
    /// Panics if the accepting task panics.
    pub async fn run<S: Service>(
        self,
        service: Arc<S>,
        slots: Slots,
        stopped: oneshot::Receiver<()>,
    ) {
        let runtime = self.accepting.0.clone();
        // Dropping the set ends the task.
        let mut task = JoinSet::new();
        task.spawn_on(self.accept_all(service, slots, stopped), &runtime);
        if let Some(Err(error)) = task.join_next().await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }

    async fn accept_all<S: Service>(
        self,
        service: Arc<S>,
        slots: Slots,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let mut connections = JoinSet::new();
        let mut pause = Limits::ACCEPT_BACKOFF;
        let mut unanswered = 0;
        let mut last = u32::MAX;
        let mut closed = self.closed.clone();
        let mut is_open = true;
        loop {
            while let Some(ended) = connections.try_join_next() {
                note_failure(ended);
            }
            if is_open && *closed.borrow() {
                is_open = false;
                refuse_more(&self.socket);
            }
            let accepted = tokio::select! {
                // Connections that arrived before the stop are still accepted.
                biased;
                accepted = self.accept(last, connections.len().max(slots.taken())), if is_open => accepted,
                () = is_true(&mut closed), if is_open => continue,
                _ = &mut stopped => break,
            };
            let (client, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!("Proxy accept error: {error}");
                    // A connection that ends may free the descriptors that accept lacks.
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        Some(ended) = connections.join_next() => note_failure(ended),
                        _ = &mut stopped => break,
                    }
                    pause = (pause * 2).min(Limits::ACCEPT_BACKOFF_MAX);
                    continue;
                }
            };
            pause = Limits::ACCEPT_BACKOFF;
            last = client.as_raw_fd().cast_unsigned();
            let service = Arc::clone(&service);
            if let Ok(slot) = Arc::clone(&slots.served).try_acquire_owned() {
                self.spawn_on_worker(&mut connections, client, slot, move |client| {
                    service.serve(client, peer)
                });
            } else if let Ok(slot) = Arc::clone(&slots.refused).try_acquire_owned() {
                self.spawn_on_worker(&mut connections, client, slot, move |client| {
                    service.refuse_excess(client, peer)
                });
            } else {
                unanswered += 1;
                note_unanswered(unanswered);
            }
        }
        drain(connections).await;
    }

    /// Accepts a connection, unless connections have used up their descriptors. `last` is the
    /// descriptor of the connection that was accepted last; each of the `open` ones has two, or
    /// soon takes its second.
    async fn accept(&self, last: u32, open: usize) -> io::Result<(TcpStream, SocketAddr)> {
        let taken = self
            .begin
            .saturating_add(u32::try_from(2 * open).unwrap_or(u32::MAX));
        let is_near = |most: u32| last >= most / 2 || taken >= most;
        while self.descriptors.is_some_and(is_near) && self.has_few_descriptors(taken)? {
            let mut waiting = [PollFd::new(&self.socket, PollFlags::IN)];
            if rustix::event::poll(
                &mut waiting,
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            )? > 0
            {
                return Err(Errno::MFILE.into());
            }
            tokio::time::sleep(Limits::ACCEPT_BACKOFF).await;
        }
        self.socket.accept().await
    }

    fn has_few_descriptors(&self, taken: u32) -> io::Result<bool> {
        // The kernel gives out the lowest free number.
        let next = rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)?;
        Ok(self
            .descriptors
            .is_some_and(|most| taken.max(next.as_raw_fd().cast_unsigned()) >= most))
    }

    /// Spawns `serve` for `client` on a worker; `slot` is released when that ends.
    fn spawn_on_worker<F>(
        &self,
        connections: &mut JoinSet<()>,
        client: TcpStream,
        slot: OwnedSemaphorePermit,
        serve: impl FnOnce(TcpStream) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send,
    {
        let (worker, worker_slot) = match self.workers.freest() {
            Ok(worker) => worker,
            Err(error) => {
                let remedy = "raise the limit of processes (pids.max, ulimit -u) or of open files";
                tracing::error!(
                    "cannot serve a connection: no thread could be started ({error}); the \
                     connection is closed; {remedy}"
                );
                return;
            }
        };
        if worker_slot.is_of(&self.accepting.1) {
            let served = async move {
                serve(client).await;
                drop((slot, worker_slot));
            };
            connections.spawn(served);
            return;
        }
        // An error means that the socket is closed already.
        let Ok(client) = client.into_std() else {
            return;
        };
        let served = async move {
            match TcpStream::from_std(client) {
                Ok(client) => serve(client).await,
                Err(error) => tracing::warn!("Proxy accept error: {error}"),
            }
            drop((slot, worker_slot));
        };
        connections.spawn_on(served, &worker);
    }
}

/// Waits for connections to end, for a while, and aborts the others.
async fn drain(mut connections: JoinSet<()>) {
    let all = async {
        while let Some(ended) = connections.join_next().await {
            note_failure(ended);
        }
    };
    let _ = tokio::time::timeout(Limits::DRAIN, all).await;
    // Connections that are aborted report that when they are dropped.
    connections.shutdown().await;
}

/// Logs that the task of a connection panicked or that its thread ended; others are not affected.
fn note_failure(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!("a connection ended because of an error in the proxy: {error}");
    }
}

/// Logs the count if it is a power of two, so that a flood of connections does not flood the log.
fn note_unanswered(count: u64) {
    if count.is_power_of_two() {
        tracing::warn!(
            "connections closed without an answer since the start, because too many were open at \
             once: {count}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use openshell_events::event::{Audit, Event};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::Listener;
    use crate::testing::{self, Remembered};

    /// An audit that panics at the first event.
    #[derive(Debug, Default)]
    struct FailingOnce(AtomicBool);

    impl Audit for FailingOnce {
        fn event(&self, _: &Event<'_>) {
            assert!(
                self.0.swap(true, Ordering::Relaxed),
                "the first event fails"
            );
        }
    }

    /// Runs a listener with `audit` while `client` runs; `client` gets the listener's address.
    async fn with_listener(audit: Arc<dyn Audit>, client: impl AsyncFnOnce(SocketAddr)) {
        let services = testing::services_with(testing::snapshot(1, ""), audit);
        let proxy = testing::proxy(&services);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let listener = Listener::new(socket, Arc::default()).unwrap();
        let address = listener.socket.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let client = async {
            client(address).await;
            drop(stop);
        };
        tokio::join!(listener.run(proxy, super::Slots::new(16), stopped), client);
    }

    /// Returns everything that the proxy at `address` answers to a request that names no host.
    async fn heard(address: SocketAddr) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        // Writing fails if the proxy has closed the connection without an answer.
        let _ = client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let _ = client.shutdown().await;
        let mut heard = Vec::new();
        let _ = client.read_to_end(&mut heard).await;
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn the_workload_is_answered_until_the_end() {
        let audit = Arc::new(Remembered::default());
        with_listener(Arc::clone(&audit) as _, async |address| {
            assert!(heard(address).await.starts_with("HTTP/1.1 400 bad_request"));
        })
        .await;
        assert_eq!(audit.decisions(), ["bad_request"]);
    }

    #[tokio::test]
    async fn a_connection_that_fails_ends_no_other() {
        with_listener(Arc::new(FailingOnce::default()), async |address| {
            assert_eq!(heard(address).await, "");
            assert!(heard(address).await.starts_with("HTTP/1.1 400 bad_request"));
        })
        .await;
    }

    #[tokio::test]
    async fn connections_that_are_open_at_the_end_are_ended() {
        let mut open = None;
        with_listener(Arc::new(Remembered::default()), async |address| {
            open = Some(TcpStream::connect(address).await.unwrap());
            assert!(
                heard(address).await.starts_with("HTTP/1.1 400"),
                "the one before is accepted"
            );
        })
        .await;
        assert_eq!(open.unwrap().read(&mut [0]).await.unwrap_or(0), 0);
    }
}
