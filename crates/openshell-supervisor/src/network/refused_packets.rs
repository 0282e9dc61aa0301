//! The packets that the egress firewall has refused, as the kernel logs them (nfnetlink_log).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd, RawFd};

use openshell_events::packet::{RefusedPacket, Transport};

use crate::network::netlink::{Message, Socket, attribute};

/// The number of bytes of a packet that are logged.
const PACKET_BYTES: u8 = 128;

/// `NFNL_SUBSYS_ULOG << 8` with `NFULNL_MSG_PACKET` and `NFULNL_MSG_CONFIG`.
const MSG_PACKET: u16 = 4 << 8;
const MSG_CONFIG: u16 = 4 << 8 | 1;
const NFGENMSG: usize = 4;
const NFULA_MARK: u16 = 2;
const NFULA_PAYLOAD: u16 = 9;

/// The packets of one log group.
#[derive(Debug)]
pub struct RefusedPackets {
    socket: Socket,
}

impl RefusedPackets {
    /// Listens to `group` on `socket`, which was opened inside the sandbox's network namespace.
    ///
    /// # Errors
    /// Fails if the kernel lacks nfnetlink_log.
    pub fn listen(socket: Socket, group: u16) -> io::Result<Self> {
        // In `struct nfgenmsg`, the group is the resource number, big-endian.
        let [high, low] = group.to_be_bytes();
        // NFULA_CFG_CMD bind, NFULA_CFG_MODE copy, NFULA_CFG_QTHRESH 1: each packet is reported at
        // once.
        let bind = Message::request(MSG_CONFIG, 0, &[0, 0, high, low])
            .attribute(1, &[1])
            .attribute(2, &[0, 0, 0, PACKET_BYTES, 2, 0])
            .attribute(5, &[0, 0, 0, 1]);
        socket.execute(vec![bind])?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket })
    }

    /// Reads what has been logged; if something has, the descriptor is readable.
    ///
    /// # Errors
    /// Fails if nothing has been logged ([`io::ErrorKind::WouldBlock`]), or if packets were lost
    /// (ENOBUFS).
    pub fn read(&self) -> io::Result<Vec<RefusedPacket>> {
        let messages = self.socket.receive()?;
        Ok(messages
            .iter()
            .filter(|message| message.kind == MSG_PACKET)
            .filter_map(|message| logged(&message.payload))
            .collect())
    }
}

impl AsRawFd for RefusedPackets {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

/// Reads the packet in one message of the log.
fn logged(message: &[u8]) -> Option<RefusedPacket> {
    let attributes = message.get(NFGENMSG..)?;
    let packet = parse(attribute(attributes, NFULA_PAYLOAD)?)?;
    let mark = attribute(attributes, NFULA_MARK).and_then(<[u8]>::first_chunk::<4>);
    Some(RefusedPacket {
        mark: mark.map_or(0, |mark| u32::from_be_bytes(*mark)),
        ..packet
    })
}

/// Parses the head of an IP packet (RFC 791, RFC 8200), and the ports of TCP and UDP.
fn parse(packet: &[u8]) -> Option<RefusedPacket> {
    let (to, number, payload) = match packet.first()? >> 4 {
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
    let transport = match number {
        6 => Transport::Tcp,
        17 => Transport::Udp,
        other => Transport::Other(other),
    };
    let ports = payload
        .first_chunk::<4>()
        .filter(|_| !matches!(transport, Transport::Other(_)));
    let ports = ports.map(|ports| {
        [
            u16::from_be_bytes([ports[0], ports[1]]),
            u16::from_be_bytes([ports[2], ports[3]]),
        ]
    });
    Some(RefusedPacket {
        to,
        ports,
        transport,
        mark: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::{RefusedPacket, Transport, logged, parse};

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
    fn packets_are_read() {
        let to = "198.51.100.77".parse().unwrap();
        assert_eq!(
            parse(&v4(6, 443)),
            Some(RefusedPacket {
                mark: 0,
                to,
                ports: Some([0x8000, 443]),
                transport: Transport::Tcp
            })
        );
        let other = parse(&v4(132, 9)).unwrap();
        assert_eq!(
            other.ports, None,
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
            assert_eq!(logged(&vec![0xff; length]), None);
            assert_eq!(logged(&vec![0; length]), None);
        }
    }

    #[test]
    fn fuzzed_messages_of_the_fence_are_passed_over_or_read() {
        let packet = v4(6, 443);
        let length = u16::try_from(packet.len() + 4).unwrap().to_ne_bytes();
        let message = [&[0; 4][..], &length, &9_u16.to_ne_bytes(), &packet].concat();
        assert!(logged(&message).is_some());
        let words: [&[u8]; 4] = [&length, &[0xff; 4], &[0; 4], &packet];
        fuzz::fuzz(
            "messages of the fence",
            &[&message, &packet],
            &words,
            |input| {
                let _ = logged(input);
                let _ = parse(input);
            },
        );
    }
}
