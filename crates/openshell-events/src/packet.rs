//! Packets that the firewall of a sandbox has refused.

use std::fmt;
use std::net::IpAddr;

/// A refused packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedPacket {
    /// Destination.
    pub to: IpAddr,
    /// Source and destination ports, for protocols that have them.
    pub ports: Option<[u16; 2]>,
    /// Transport protocol.
    pub transport: Transport,
    /// Mark of its socket; 0 if the socket was not connected.
    pub mark: u32,
}

/// Transport protocol of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the protocols")]
pub enum Transport {
    Tcp,
    Udp,
    /// Another protocol, by its number (IANA "Protocol Numbers").
    Other(u8),
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => f.write_str("tcp"),
            Self::Udp => f.write_str("udp"),
            Self::Other(number) => write!(f, "{number}"),
        }
    }
}
