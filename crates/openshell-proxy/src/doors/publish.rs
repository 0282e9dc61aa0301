//! Published ports: connections from outside of the sandbox to servers inside.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use openshell_events::event::{Audit, Event, PublishedConnection};
use openshell_events::words::{Action, Severity};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::doors::listener::Service;
use crate::ground::limits::Limits;
use crate::ground::socket::prepare;
use crate::relay::opaque::{self, OpaqueSearch};
use crate::wire::io::metered::Meter;

/// Opens an unconnected, non-blocking TCP socket in the workload's network, of the address family
/// of the given address. May block.
pub type OpenInside = Arc<dyn Fn(IpAddr) -> io::Result<std::net::TcpStream> + Send + Sync>;

/// The slots for sockets that are being opened inside.
static OPENING: Semaphore = Semaphore::const_new(Limits::OPENING_INSIDE);

/// A port of a server inside, published at an address outside. Everyone who can reach that address
/// is relayed to the server, and to nothing else.
pub struct PublishedPort {
    address: SocketAddr,
    port: u16,
    open: OpenInside,
    audit: Arc<dyn Audit>,
}

impl fmt::Debug for PublishedPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedPort")
            .field("address", &self.address)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl PublishedPort {
    /// Returns the address at which clients outside connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Publishes the server at `port` of the loopback address inside at `address` outside. Sockets
    /// of `open` reach the server.
    #[must_use]
    pub fn new(address: SocketAddr, port: u16, open: OpenInside, audit: Arc<dyn Audit>) -> Self {
        Self {
            address,
            port,
            open,
            audit,
        }
    }

    fn report(&self, client: SocketAddr, severity: Severity, action: Action, reason: &str) {
        let address = self.address;
        let port = self.port;
        let connection = PublishedConnection {
            severity,
            action,
            client,
            address,
            port,
            reason,
        };
        self.audit.event(&Event::Published(connection));
    }
}

/// Connects to `port` of the loopback address inside, with a socket of `open`. Tries IPv4 first,
/// and IPv6 if nothing listens there.
///
/// # Errors
/// No socket can be opened inside, or no server answers in time.
pub async fn dial(open: &OpenInside, port: u16) -> io::Result<TcpStream> {
    match dial_at(open, Ipv4Addr::LOCALHOST.into(), port).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            dial_at(open, Ipv6Addr::LOCALHOST.into(), port)
                .await
                .map_err(|_| error)
        }
        dialed => dialed,
    }
}

async fn dial_at(open: &OpenInside, address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let socket = {
        let _slot = OPENING.acquire().await.map_err(io::Error::other)?;
        let open = Arc::clone(open);
        tokio::task::spawn_blocking(move || open(address))
            .await
            .map_err(io::Error::other)??
    };
    let connected = TcpSocket::from_std_stream(socket).connect((address, port).into());
    let server = timeout(Limits::CONNECT_DEADLINE, connected).await??;
    // If nothing listens at the port, the kernel may choose that port for this end too, and connect
    // the socket to itself.
    let is_itself =
        matches!((server.local_addr(), server.peer_addr()), (Ok(own), Ok(peer)) if own == peer);
    if is_itself {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    prepare(&server)?;
    Ok(server)
}

impl Service for PublishedPort {
    async fn serve(self: Arc<Self>, client: TcpStream, peer: SocketAddr) {
        match dial(&self.open, self.port).await {
            Ok(server) => {
                self.report(peer, Severity::Info, Action::Allowed, "");
                // No credential is sent inside, so there is nothing to search for.
                let first = OpaqueSearch::default();
                // If one side breaks off, nobody needs to be told.
                let _ = opaque::relay(
                    client,
                    Bytes::new(),
                    server.into(),
                    Bytes::new(),
                    first,
                    &Meter::default(),
                )
                .await;
            }
            Err(error) => {
                self.report(
                    peer,
                    Severity::Low,
                    Action::Other,
                    &format!("no server inside: {error}"),
                );
                // The client gets a reset, as from a port at which nothing listens.
                let _ = client.set_zero_linger();
            }
        }
    }

    async fn refuse_excess(self: Arc<Self>, client: TcpStream, peer: SocketAddr) {
        self.report(
            peer,
            Severity::Medium,
            Action::Denied,
            "too many connections to this port at once",
        );
        let _ = client.set_zero_linger();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::PublishedPort;
    use crate::doors::listener::Listener;
    use crate::testing::Remembered;

    /// Publishes `port` of this host at another port of it while `client` runs; `client` gets the
    /// address.
    async fn published(port: u16, audit: &Arc<Remembered>, client: impl AsyncFnOnce(SocketAddr)) {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let open = |address: std::net::IpAddr| {
            let flags = rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC;
            let family = if address.is_ipv4() {
                rustix::net::AddressFamily::INET
            } else {
                rustix::net::AddressFamily::INET6
            };
            let kind = rustix::net::SocketType::STREAM;
            Ok(rustix::net::socket_with(family, kind, flags, None)?.into())
        };
        let service = PublishedPort::new(address, port, Arc::new(open), Arc::clone(audit) as _);
        let listener = Listener::new(socket, Arc::default()).unwrap();
        let (stop, stopped) = oneshot::channel();
        let client = async {
            client(address).await;
            drop(stop);
        };
        tokio::join!(
            listener.run(
                Arc::new(service),
                crate::doors::listener::Slots::new(16),
                stopped
            ),
            client
        );
    }

    #[tokio::test]
    async fn a_published_port_relays_both_ways_and_keeps_half_open_connections() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let audit = Arc::new(Remembered::default());
        let serving = tokio::spawn(async move {
            let (mut accepted, _) = server.accept().await.unwrap();
            // The server sends first.
            accepted.write_all(b"hello").await.unwrap();
            let mut heard = String::new();
            accepted.read_to_string(&mut heard).await.unwrap();
            accepted
                .write_all(heard.to_uppercase().as_bytes())
                .await
                .unwrap();
        });
        published(port, &audit, async |address| {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "helloQUESTION");
        })
        .await;
        serving.await.unwrap();
        let events = audit.published();
        assert!(
            matches!(&events[..], [one] if one.starts_with("ALLOWED 127.0.0.1:")),
            "{events:?}"
        );
    }

    #[tokio::test]
    async fn without_a_server_inside_a_client_is_reset_and_the_line_says_why() {
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let audit = Arc::new(Remembered::default());
        published(port, &audit, async |address| {
            let mut client = TcpStream::connect(address).await.unwrap();
            let reset = client.read(&mut [0]).await.unwrap_err();
            assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
        })
        .await;
        let events = audit.published();
        assert!(
            events[0].starts_with("OTHER ") && events[0].contains("no server inside"),
            "{events:?}"
        );
    }
}
