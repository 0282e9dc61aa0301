//! From a connection to its socket's inode: one exact question to the kernel (sock_diag(7)).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::Timeout;
use rustix::net::{RecvFlags, SendFlags};

use crate::identify::Flow;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const NETLINK_HEADER: usize = 16;
const REQUEST: usize = NETLINK_HEADER + 56;
/// Where `id.idiag_dport` and `idiag_inode` lie in `struct inet_diag_msg`.
const REMOTE_PORT_OFFSET: usize = NETLINK_HEADER + 6;
const INODE_OFFSET: usize = NETLINK_HEADER + 68;

/// A socket of NETLINK_SOCK_DIAG, opened inside the sandbox's network namespace.
#[derive(Debug)]
pub(super) struct SockDiag {
    /// With the number of the last question.
    socket: Mutex<(OwnedFd, u32)>,
}

impl SockDiag {
    /// # Errors
    /// The socket takes no time limit.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        // The kernel answers while it is asked. An answer that is lost must not hold up every later question.
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
        Ok(Self { socket: Mutex::new((socket, 0)) })
    }

    /// The inode of the client's socket; some 2 us.
    pub(super) fn inode(&self, flow: Flow) -> io::Result<u32> {
        self.ask(Question { protocol: IPPROTO_TCP, from: flow.client, to: flow.server })
    }

    /// The inode of the UDP socket that receives what `remote` sends to `local`, so the one that sends there.
    pub(super) fn udp_inode(&self, local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<u32> {
        // Of UDP the kernel looks for the receiver, with source and destination as a packet to it has them.
        self.ask(Question { protocol: IPPROTO_UDP, from: remote, to: local })
    }

    fn ask(&self, question: Question) -> io::Result<u32> {
        let mut guard = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let (socket, last) = &mut *guard;
        *last = last.wrapping_add(1);
        rustix::net::send(&*socket, &request(question, *last), SendFlags::empty())?;
        loop {
            let mut answer = [0; 1024];
            let (filled, _) = rustix::net::recv(&*socket, answer.as_mut_slice(), RecvFlags::empty())?;
            if let Some(result) = parse(answer.get(..filled).unwrap_or_default(), question, *last) {
                return result;
            }
        }
    }
}

/// Which socket.
#[derive(Clone, Copy)]
struct Question {
    protocol: u8,
    from: SocketAddrV4,
    to: SocketAddrV4,
}

/// `struct inet_diag_req_v2` behind its header: the exact socket, in any state.
fn request(question: Question, sequence: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    let address = |address: &Ipv4Addr| address.octets();
    put(0, &72_u32.to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(8, &sequence.to_ne_bytes());
    put(16, &[AF_INET, question.protocol, 0, 0]);
    put(20, &u32::MAX.to_ne_bytes());
    put(24, &question.from.port().to_be_bytes());
    put(26, &question.to.port().to_be_bytes());
    put(28, &address(question.from.ip()));
    put(44, &address(question.to.ip()));
    // No interface, and no cookie.
    put(64, &[0xff; 8]);
    bytes
}

/// The answer to `question`, number `sequence`; `None` if it is to another one.
fn parse(bytes: &[u8], question: Question, sequence: u32) -> Option<io::Result<u32>> {
    let word = |at: usize| bytes.get(at..)?.first_chunk::<4>().map(|word| u32::from_ne_bytes(*word));
    let kind = bytes.get(4..)?.first_chunk::<2>().map(|kind| u16::from_ne_bytes(*kind))?;
    if word(8)? != sequence {
        return None;
    }
    if kind == NLMSG_ERROR {
        let code = word(NETLINK_HEADER)?.cast_signed();
        return Some(Err(io::Error::from_raw_os_error(code.checked_neg().unwrap_or(i32::MAX))));
    }
    // Where a connection is gone, the kernel answers with a listener on the same port, which has no remote end.
    let remote_port = bytes.get(REMOTE_PORT_OFFSET..)?.first_chunk::<2>().map(|port| u16::from_be_bytes(*port))?;
    let is_it = question.protocol == IPPROTO_UDP || remote_port == question.to.port();
    match (kind, word(INODE_OFFSET)) {
        // A socket without an inode has no owner: it is closed, or not accepted yet.
        (SOCK_DIAG_BY_FAMILY, Some(inode)) if inode != 0 && is_it => Some(Ok(inode)),
        _ => Some(Err(io::ErrorKind::NotFound.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::{IPPROTO_TCP, Question, REQUEST, parse};

    #[test]
    fn fuzzed_answers_about_sockets_are_read_or_refused() {
        let address = |text: &str| text.parse().unwrap();
        let question =
            Question { protocol: IPPROTO_TCP, from: address("10.200.0.2:4000"), to: address("10.200.0.1:3128") };
        let mut answer = vec![0; 2 * REQUEST];
        answer[4] = 20;
        answer[8] = 7;
        let words: [&[u8]; 3] = [&[0xff; 4], &[0; 4], &7_u32.to_ne_bytes()];
        fuzz::fuzz("answers about sockets", &[&answer], &words, |input| {
            if let Some(Ok(inode)) = parse(input, question, 7) {
                assert_ne!(inode, 0);
            }
        });
    }
}
