//! Look-up of a socket's inode by its addresses: one exact query to the kernel (sock_diag(7)).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags};

use crate::peer::Flow;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const NETLINK_HEADER: usize = 16;
const REQUEST: usize = NETLINK_HEADER + 56;
/// Offsets of `idiag_state`, `id.idiag_dport` and `idiag_inode` in `struct inet_diag_msg`.
const STATE_OFFSET: usize = NETLINK_HEADER + 1;
const REMOTE_PORT_OFFSET: usize = NETLINK_HEADER + 6;
const INODE_OFFSET: usize = NETLINK_HEADER + 68;

/// States of a client's socket after its handshake: ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT (`enum` of
/// linux/tcp_states.h). A socket in SYN_SENT may have the addresses of another process's connection.
const CONNECTED: &[u8] = &[1, 4, 5, 8];

/// A NETLINK_SOCK_DIAG socket, opened inside the sandbox's network namespace.
#[derive(Debug)]
pub(super) struct SockDiag {
    /// Index of the interface by which connections reach the proxy. As for a packet, sockets bound to it or to none are
    /// found.
    interface: u32,
    /// The socket, and the sequence number of the last query.
    socket: Mutex<(OwnedFd, u32)>,
}

impl SockDiag {
    /// Wraps `socket`, with a receive timeout.
    ///
    /// # Errors
    /// The timeout cannot be set.
    pub(super) fn new(socket: OwnedFd, interface: u32) -> io::Result<Self> {
        // The kernel replies at once. A lost reply must not block later queries.
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
        Ok(Self { interface, socket: Mutex::new((socket, 0)) })
    }

    /// Inode of the client's socket; takes some 2 us.
    pub(super) fn inode(&self, flow: Flow) -> io::Result<u32> {
        self.query(Query { protocol: IPPROTO_TCP, from: flow.client, to: flow.server })
    }

    /// Inode of the UDP socket that receives from `remote` at `local`, and thus the one that sends there.
    pub(super) fn udp_inode(&self, local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<u32> {
        // For UDP the kernel looks up the receiver, by the source and destination of a packet to it.
        self.query(Query { protocol: IPPROTO_UDP, from: remote, to: local })
    }

    fn query(&self, query: Query) -> io::Result<u32> {
        let mut guard = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, sequence) = &mut *guard;
        *sequence = sequence.wrapping_add(1);
        rustix::net::send(&*socket, &request(query, self.interface, *sequence), SendFlags::empty())?;
        loop {
            let mut answer = [0; 1024];
            let (filled, _) = rustix::net::recv(&*socket, answer.as_mut_slice(), RecvFlags::empty())?;
            if let Some(result) = parse(answer.get(..filled).unwrap_or_default(), query, *sequence) {
                return result;
            }
        }
    }
}

/// Key of a socket.
#[derive(Clone, Copy)]
struct Query {
    protocol: u8,
    from: SocketAddrV4,
    to: SocketAddrV4,
}

/// Builds a `struct inet_diag_req_v2` with its header: the exact socket, as a packet that arrives at `interface` finds
/// it.
fn request(query: Query, interface: u32, sequence: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let address = |address: &Ipv4Addr| address.octets();
    put(0, &72_u32.to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(16, &[AF_INET, query.protocol, 0, 0]);
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &query.from.port().to_be_bytes());
    put(26, &query.to.port().to_be_bytes());
    put(28, &address(query.from.ip()));
    put(44, &address(query.to.ip()));
    put(60, &interface.to_ne_bytes());
    // No cookie.
    put(64, &[0xff; 8]);
    bytes
}

/// Parses the reply to `query` with number `sequence`; `None` if it is the reply to another one.
fn parse(bytes: &[u8], query: Query, sequence: u32) -> Option<io::Result<u32>> {
    let word = |at: usize| bytes.get(at..)?.first_chunk::<4>().map(|word| u32::from_ne_bytes(*word));
    let kind = bytes.get(4..)?.first_chunk::<2>().map(|kind| u16::from_ne_bytes(*kind))?;
    if word(8)? != sequence {
        return None;
    }
    if kind == NLMSG_ERROR {
        let code = word(NETLINK_HEADER)?.cast_signed();
        return Some(Err(io::Error::from_raw_os_error(code.checked_neg().unwrap_or(i32::MAX))));
    }
    // For a closed connection the kernel returns a listener on the same port, which has no remote end.
    let remote_port = bytes.get(REMOTE_PORT_OFFSET..)?.first_chunk::<2>().map(|port| u16::from_be_bytes(*port))?;
    let state = bytes.get(STATE_OFFSET)?;
    let is_match = query.protocol == IPPROTO_UDP || (remote_port == query.to.port() && CONNECTED.contains(state));
    match (kind, word(INODE_OFFSET)) {
        // A socket without an inode has no owner: it is closed, or not accepted yet.
        (SOCK_DIAG_BY_FAMILY, Some(inode)) if inode != 0 && is_match => Some(Ok(inode)),
        _ => Some(Err(io::ErrorKind::NotFound.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::{CONNECTED, IPPROTO_TCP, Query, REMOTE_PORT_OFFSET, REQUEST, STATE_OFFSET, parse};

    fn query() -> Query {
        let address = |text: &str| text.parse().unwrap();
        Query { protocol: IPPROTO_TCP, from: address("10.200.0.2:4000"), to: address("10.200.0.1:3128") }
    }

    /// An answer to question 7: a socket with the inode 0x01010101, in `state`.
    fn answer(state: u8) -> Vec<u8> {
        let mut answer = vec![1; 2 * REQUEST];
        answer[4..6].copy_from_slice(&20_u16.to_ne_bytes());
        answer[8..12].copy_from_slice(&7_u32.to_ne_bytes());
        answer[STATE_OFFSET] = state;
        answer[REMOTE_PORT_OFFSET..REMOTE_PORT_OFFSET + 2].copy_from_slice(&3128_u16.to_be_bytes());
        answer
    }

    #[test]
    fn a_socket_that_is_not_connected_is_no_callers() {
        for state in 0..=u8::MAX {
            let inode = parse(&answer(state), query(), 7).unwrap().ok();
            assert_eq!(inode, CONNECTED.contains(&state).then_some(0x0101_0101), "state {state}");
        }
    }

    #[test]
    fn fuzzed_answers_about_sockets_are_read_or_refused() {
        let words: [&[u8]; 3] = [&[0xff; 4], &[0; 4], &7_u32.to_ne_bytes()];
        fuzz::fuzz("answers about sockets", &[&answer(1)], &words, |input| {
            if let Some(Ok(inode)) = parse(input, query(), 7) {
                assert_ne!(inode, 0);
            }
        });
    }
}
