//! The sandbox's network, as connections from outside enter it.

use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::Arc;

use openshell_access::workload::{Inside, Opening};
use openshell_proxy::doors::publish::{self, OpenInside};
use openshell_supervisor::network::netns::{self, Netns};
use tokio::net::{TcpListener, TcpStream};

/// The network of the sandbox: its own, or the host's.
pub(crate) struct InsideNetwork {
    netns: Option<Arc<Netns>>,
    open: OpenInside,
}

impl InsideNetwork {
    pub(crate) fn new(netns: Option<Netns>) -> Self {
        let netns = netns.map(Arc::new);
        let of_socket = netns.clone();
        let open = move |address: IpAddr| match &of_socket {
            Some(netns) => netns.tcp_socket(address),
            None => netns::open_tcp_socket(address),
        };
        Self {
            netns,
            open: Arc::new(open),
        }
    }
}

impl Inside for InsideNetwork {
    fn dial(&self, port: u16) -> Opening<TcpStream> {
        let open = Arc::clone(&self.open);
        Box::pin(async move { publish::dial(&open, port).await })
    }

    fn listen(&self, port: u16) -> Opening<TcpListener> {
        let netns = self.netns.clone();
        let listen = move || -> std::io::Result<StdListener> {
            match netns {
                Some(netns) => netns.listen(port),
                None => netns::loopback_listener(port),
            }
        };
        Box::pin(async move {
            let listener = tokio::task::spawn_blocking(listen)
                .await
                .map_err(std::io::Error::other)??;
            TcpListener::from_std(listener)
        })
    }
}
