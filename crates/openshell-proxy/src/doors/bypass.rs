//! Reports of packets that the egress firewall rejected: attempts to bypass the proxy.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;

use openshell_events::denial::Denial;
use openshell_events::event::{Audit, BypassAttempt, Decided, Ends, Event, Finding};
use openshell_events::reason::ReasonCode;
use openshell_events::words::{Confidence, Decision, FindingActivity, Severity};
use openshell_policy::network::host::HostName;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::decide::identify::Witness;
use crate::doors::dns::names::Names;
use crate::ground::peer::Caller;

/// A netlink socket in the sandbox's namespace that receives the packets of a log group
/// (nfnetlink_log).
#[derive(Debug)]
pub struct Monitor {
    socket: AsyncFd<OwnedFd>,
    probe: Option<SocketAddrV4>,
    names: Arc<Names>,
    witness: Arc<dyn Witness>,
    audit: Arc<dyn Audit>,
}

/// The reported facts of a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    to: IpAddr,
    /// Source and destination ports, for protocols that have them.
    ports: Option<[u16; 2]>,
    protocol: Protocol,
    /// Mark of its socket; 0 for a socket that was not connected.
    mark: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
    Other(u8),
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Udp => f.write_str("udp"),
            Self::Other(number) => write!(f, "{number}"),
        }
    }
}

const REASON: &str = "direct connection bypassed HTTP CONNECT proxy";

impl Attempt {
    /// Remedy for the author of the program, or of the policy; `is_named` for an address that is a
    /// name's.
    fn hint(&self, is_named: bool) -> &'static str {
        match (self.protocol, self.ports) {
            (Protocol::Tcp, _) if is_named => {
                "no endpoint of the policy names this port of the host"
            }
            (Protocol::Udp, Some([_, 53])) => {
                "DNS queries should route through the sandbox proxy; check resolver configuration"
            }
            (Protocol::Tcp, _) => {
                "ensure process honors HTTP_PROXY/HTTPS_PROXY; Node.js does from 22.21 and 24 on \
                 (NODE_USE_ENV_PROXY is set)"
            }
            (Protocol::Udp, _) => "UDP traffic must route through the sandbox proxy",
            (Protocol::Other(_), _) => "only TCP through the sandbox proxy leaves the sandbox",
        }
    }
}

impl Monitor {
    /// Listens to `group` on `socket`, a NETLINK_NETFILTER socket opened inside the sandbox's
    /// network namespace. Packets to `probe` are the supervisor's own proof of the firewall and are
    /// not reported. `names` tells the name of an address, `witness` the sending program, and
    /// `audit` takes the reports. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The kernel lacks nfnetlink_log.
    pub fn start(
        socket: OwnedFd,
        group: u16,
        probe: Option<SocketAddrV4>,
        names: Arc<Names>,
        witness: Arc<dyn Witness>,
        audit: Arc<dyn Audit>,
    ) -> io::Result<Self> {
        rustix::net::send(&socket, &bind_request(group), SendFlags::empty())?;
        let mut answer = [0; 1024];
        let (filled, _) = rustix::net::recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
        // `struct nlmsgerr` begins with the code; 0 is the acknowledgement.
        let code = answer
            .get(NETLINK_HEADER..filled)
            .and_then(|error| error.first_chunk::<4>());
        match code.map(|code| i32::from_ne_bytes(*code)) {
            Some(0) => {}
            Some(code) => {
                return Err(io::Error::from_raw_os_error(
                    code.checked_neg().unwrap_or(i32::MAX),
                ));
            }
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does \
                      not"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(Self {
            socket,
            probe,
            names,
            witness,
            audit,
        })
    }

    /// Reports packets until `stop` completes, then those that are queued. The firewall limits
    /// their rate.
    pub async fn run(self, stop: impl Future) {
        let mut stop = pin!(stop);
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let received = tokio::select! {
                biased;
                received = self.receive(&mut buffer) => received,
                _ = &mut stop => return,
            };
            match received {
                Ok(filled) => self.report_all(buffer.get(..filled).unwrap_or_default()),
                // Packets were lost because the queue was full; later ones are still worth
                // reporting.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
                Err(error) => {
                    // The firewall holds without its reports.
                    tracing::warn!(
                        "attempts to go past the proxy are not reported any more: {error}"
                    );
                    stop.await;
                    return;
                }
            }
        }
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let receive = |socket: &OwnedFd| {
            Ok(rustix::net::recv(socket.as_fd(), &mut *buffer, RecvFlags::empty())?.0)
        };
        self.socket.async_io(Interest::READABLE, receive).await
    }

    fn report_all(&self, messages: &[u8]) {
        for attempt in attempts(messages).filter(|attempt| !self.is_proof(attempt)) {
            let name = self.names.name(attempt.to);
            report(
                &*self.audit,
                &attempt,
                name.as_ref(),
                self.witness.sender(attempt.mark).as_ref(),
            );
        }
    }

    fn is_proof(&self, attempt: &Attempt) -> bool {
        let port = attempt.ports.map(|[_, port]| port);
        self.probe
            .is_some_and(|probe| attempt.to == *probe.ip() && port == Some(probe.port()))
    }
}

fn report(audit: &dyn Audit, attempt: &Attempt, name: Option<&HostName>, caller: Option<&Caller>) {
    let host = name.map_or_else(|| attempt.to.to_string(), HostName::to_string);
    let protocol = attempt.protocol.to_string();
    let hint = attempt.hint(name.is_some());
    let port = attempt.ports.map(|[_, port]| port);
    let binary = caller.map(|caller| caller.program.executable.as_str());
    let pid = caller.map(|caller| caller.pid);
    let lineage = caller.map(Caller::lineage).unwrap_or_default();
    let code = ReasonCode::DirectConnection;
    audit.event(&Event::Bypass(BypassAttempt {
        ends: Ends {
            binary,
            pid,
            host: Some(&host),
            port,
        },
        lineage,
        decided: Decided {
            severity: code.report().severity,
            action: code.report().action,
            policy: Some("bypass-detect"),
            engine: Some(code.stage().engine()),
            decision: Decision::Deny,
            reason: REASON,
            code: Some(code),
        },
        protocol: &protocol,
        denial: Some(&denial(attempt, &host, hint, caller)),
    }));
    let binary = binary.unwrap_or("-");
    let number = port.unwrap_or(0);
    let pid = pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let ancestors = if lineage.ancestors.is_empty() {
        "-".to_owned()
    } else {
        lineage.ancestors.join(" -> ")
    };
    audit.event(&Event::Finding(Finding {
        activity: FindingActivity::Blocked,
        severity: Severity::Medium,
        title: "Proxy Bypass Detected",
        confidence: Confidence::High,
        message: &format!(
            "BYPASS_DETECT {host}:{number} proto={protocol} binary={binary} binary_pid={pid} \
             ancestors={ancestors} action=reject reason={REASON} hint={hint}"
        ),
    }));
}

fn denial(attempt: &Attempt, host: &str, hint: &str, caller: Option<&Caller>) -> Denial {
    let program = caller.map(|caller| &caller.program);
    Denial {
        host: host.to_owned(),
        port: attempt.ports.map_or(0, |[_, port]| port),
        binary: program.map_or_else(|| "-".to_owned(), |program| program.executable.clone()),
        ancestors: program
            .map(|program| program.ancestors.clone())
            .unwrap_or_default(),
        code: ReasonCode::DirectConnection,
        reason: REASON.to_owned(),
        fix: Some(format!("it went past the proxy: {hint}")),
        request: None,
    }
}

const NETLINK_HEADER: usize = 16;
const NFGENMSG: usize = 4;
/// `NFNL_SUBSYS_ULOG << 8` with `NFULNL_MSG_PACKET` and `NFULNL_MSG_CONFIG`.
const MSG_PACKET: u16 = 4 << 8;
const MSG_CONFIG: u16 = 4 << 8 | 1;
const REQUEST_ACK: u16 = 1 | 4;
const NFULA_MARK: u16 = 2;
const NFULA_PAYLOAD: u16 = 9;

/// Builds the messages that bind to a group: packets cut to 128 bytes, each reported at once.
fn bind_request(group: u16) -> Vec<u8> {
    let mut bytes = vec![0; NETLINK_HEADER];
    // `struct nfgenmsg`: the group is its resource number, big-endian.
    bytes.extend([0, 0]);
    bytes.extend(group.to_be_bytes());
    // NFULA_CFG_CMD bind, NFULA_CFG_MODE copy 128 bytes, NFULA_CFG_QTHRESH 1.
    let copy_packet = [0, 0, 0, 128, 2, 0];
    for (kind, payload) in [(1_u16, &[1][..]), (2, &copy_packet), (5, &[0, 0, 0, 1])] {
        let length = u16::try_from(4 + payload.len()).unwrap_or(u16::MAX);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    bytes[0..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&MSG_CONFIG.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST_ACK.to_ne_bytes());
    bytes
}

/// Parses the packets in what the kernel sent; other messages are skipped.
fn attempts(mut bytes: &[u8]) -> impl Iterator<Item = Attempt> {
    std::iter::from_fn(move || {
        while let Some(header) = bytes.first_chunk::<NETLINK_HEADER>() {
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let message = bytes.get(NETLINK_HEADER..length)?;
            bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            let attributes = message.get(NFGENMSG..).filter(|_| kind == MSG_PACKET);
            if let Some(attempt) = attributes.and_then(|all| parse(attribute(all, NFULA_PAYLOAD)?))
            {
                let mark =
                    attributes.and_then(|all| attribute(all, NFULA_MARK)?.first_chunk::<4>());
                return Some(Attempt {
                    mark: mark.map_or(0, |mark| u32::from_be_bytes(*mark)),
                    ..attempt
                });
            }
        }
        None
    })
}

fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    while let Some(header) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) & 0x3fff == kind {
            return Some(value);
        }
        attributes = attributes
            .get(length.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    None
}

/// Parses the head of an IP packet (RFC 791, RFC 8200), and the ports of TCP and UDP.
fn parse(packet: &[u8]) -> Option<Attempt> {
    let (to, number, transport) = match packet.first()? >> 4 {
        4 => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            let header = usize::from(packet.first()? & 0x0f) * 4;
            (address(16)?, *packet.get(9)?, packet.get(header..)?)
        }
        6 => {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            (address(24)?, *packet.get(6)?, packet.get(40..)?)
        }
        _ => return None,
    };
    let protocol = match number {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        other => Protocol::Other(other),
    };
    let ports = transport
        .first_chunk::<4>()
        .filter(|_| !matches!(protocol, Protocol::Other(_)));
    let ports = ports.map(|ports| {
        [
            u16::from_be_bytes([ports[0], ports[1]]),
            u16::from_be_bytes([ports[2], ports[3]]),
        ]
    });
    Some(Attempt {
        to,
        ports,
        protocol,
        mark: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::{Attempt, Protocol, attempts, parse};

    fn v4(protocol: u8, port: u16) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 200, 0, 2, 198, 51, 100, 77,
        ];
        packet.extend([
            0x80,
            0,
            port.to_be_bytes()[0],
            port.to_be_bytes()[1],
            0,
            0,
            0,
            0,
        ]);
        packet
    }

    // Conformance: NET-10.
    #[test]
    fn packets_are_read_and_their_hints_differ() {
        let of = |protocol, port| parse(&v4(protocol, port)).unwrap();
        let tcp = of(6, 443);
        let to = "198.51.100.77".parse().unwrap();
        assert_eq!(
            tcp,
            Attempt {
                mark: 0,
                to,
                ports: Some([0x8000, 443]),
                protocol: Protocol::Tcp
            }
        );
        let hints = [tcp, of(17, 53), of(17, 123), of(1, 0)].map(|attempt| attempt.hint(false));
        assert!(
            hints
                .iter()
                .enumerate()
                .all(|(n, hint)| !hints[..n].contains(hint)),
            "{hints:?}"
        );
        assert_eq!(
            of(132, 9).ports,
            None,
            "ports of other protocols are not looked for"
        );
    }

    // Conformance: NET-10.
    #[test]
    fn what_is_no_whole_packet_is_passed_over() {
        let packet = v4(6, 443);
        for length in 0..20 {
            assert_eq!(parse(&packet[..length]), None, "{length} bytes");
        }
        assert_eq!(parse(&packet[..22]).unwrap().ports, None);
        for length in 0..64 {
            assert_eq!(attempts(&vec![0xff; length]).count(), 0);
            assert_eq!(attempts(&vec![0; length]).count(), 0);
        }
    }

    #[test]
    fn fuzzed_messages_of_the_fence_are_passed_over_or_read() {
        let packet = v4(6, 443);
        let attribute = [
            &u16::try_from(packet.len() + 4).unwrap().to_ne_bytes()[..],
            &9_u16.to_ne_bytes(),
            &packet,
        ]
        .concat();
        let length = u32::try_from(20 + attribute.len()).unwrap().to_ne_bytes();
        let message = [
            &length[..],
            &super::MSG_PACKET.to_ne_bytes(),
            &[0; 14],
            &attribute,
        ]
        .concat();
        assert_eq!(attempts(&message).count(), 1);
        let words: [&[u8]; 4] = [&length, &[0xff; 4], &[0; 4], &packet];
        fuzz::fuzz(
            "messages of the fence",
            &[&message, &packet],
            &words,
            |input| {
                assert!(attempts(input).count() <= input.len() / 16);
                let _ = parse(input);
            },
        );
    }
}
