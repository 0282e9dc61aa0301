//! The veth pair between the two namespaces, with its addresses and routes (rtnetlink(7)).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::network::netlink::{Message, Protocol, Socket};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const CREATE_EXCLUSIVE: u16 = 0x600;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Switches off duplicate address detection, which would take a second.
const IFA_F_NODAD: u8 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u8 = libc::AF_INET6 as u8;
const IFF_UP: u32 = libc::IFF_UP as u32;

/// The interface index of loopback in a new namespace.
const LOOPBACK: u32 = 1;

/// The interface index of `eth0`, the name of either end of the pair, in its namespace. It is above
/// the indexes of the tunnel devices that some kernels create in every namespace (tunl0, sit0…).
pub const INTERFACE: u32 = 100;

/// The address of the landing's end, on which the proxy listens. It is the same in every sandbox.
pub const LANDING: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 1);

/// The address of the workload's end, in the same /24.
pub const WORKLOAD: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 2);

/// The IPv6 addresses of both ends, in a /64 of unique local addresses (RFC 4193).
const LANDING_V6: Ipv6Addr = Ipv6Addr::new(0xfd6f, 0x7065, 0x6e73, 0, 0, 0, 0, 1);
const WORKLOAD_V6: Ipv6Addr = Ipv6Addr::new(0xfd6f, 0x7065, 0x6e73, 0, 0, 0, 0, 2);

/// The MTU of both ends in bytes, the same as on loopback. Every packet fits, and a stream takes
/// less time than in packets of 1,500 bytes.
const MTU: u32 = 65_535;

/// The size of the largest GSO packet in bytes, since Linux 6.3; older kernels ignore it.
const GSO_MAX_SIZE: u32 = 256 * 1024;

/// Creates the veth pair: `eth0` in the calling thread's namespace, which is the workload's, and
/// `eth0` in `landing`.
pub(super) fn create_pair(landing: BorrowedFd<'_>) -> io::Result<()> {
    // Both ends are created in their final namespaces, because moving a link to another namespace
    // costs an RCU grace period.
    let end = |message: Message| {
        message
            .text(IFLA_IFNAME, "eth0")
            .attribute(IFLA_MTU, &MTU.to_ne_bytes())
            .attribute(IFLA_GSO_IPV4_MAX_SIZE, &GSO_MAX_SIZE.to_ne_bytes())
    };
    let pair = Message::request(RTM_NEWLINK, CREATE_EXCLUSIVE, &link_body(INTERFACE, 0));
    let pair = end(pair).nested(IFLA_LINKINFO, |message| {
        message
            .text(IFLA_INFO_KIND, "veth")
            .nested(IFLA_INFO_DATA, |message| {
                message.nested(VETH_INFO_PEER, |message| {
                    end(message.raw(&link_body(INTERFACE, 0)))
                        .attribute(IFLA_NET_NS_FD, &landing.as_raw_fd().to_ne_bytes())
                })
            })
    });
    Socket::open(Protocol::Route)?.execute(vec![pair])
}

/// Configures the workload's namespace: brings loopback and its end of the pair up, sets its
/// addresses, and sets default routes to the landing.
pub(super) fn configure_workload() -> io::Result<()> {
    let socket = Socket::open(Protocol::Route)?;
    disable_link_local_address(&socket)?;
    socket.execute(vec![
        up(LOOPBACK),
        address(&WORKLOAD.octets(), 24),
        up(INTERFACE),
        default_route(&LANDING.octets()),
    ])?;
    if_ipv6(socket.execute(vec![
        address(&WORKLOAD_V6.octets(), 64),
        default_route(&LANDING_V6.octets()),
    ]))
}

/// Configures the landing: brings loopback and its end of the pair up, sets its addresses, and
/// makes every other address in the world local. So a packet from the workload ends there, wherever
/// it was sent.
pub(super) fn configure_landing() -> io::Result<()> {
    let socket = Socket::open(Protocol::Route)?;
    disable_link_local_address(&socket)?;
    socket.execute(vec![
        up(LOOPBACK),
        address(&LANDING.octets(), 24),
        up(INTERFACE),
        local_default_route(AF_INET),
    ])?;
    if_ipv6(socket.execute(vec![
        address(&LANDING_V6.octets(), 64),
        local_default_route(AF_INET6),
    ]))
}

/// Brings loopback up in a namespace that has no exit.
pub(super) fn loopback_up() -> io::Result<()> {
    Socket::open(Protocol::Route)?.execute(vec![up(LOOPBACK)])
}

/// Disables the link-local IPv6 address that the kernel would assign when the link comes up, and
/// thereby its neighbour discovery.
fn disable_link_local_address(socket: &Socket) -> io::Result<()> {
    let message = Message::request(RTM_NEWLINK, 0, &link_body(INTERFACE, 0)).nested(
        IFLA_AF_SPEC,
        |message| {
            message.nested(AF_INET6.into(), |message| {
                message.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE])
            })
        },
    );
    if_ipv6(socket.execute(vec![message]))
}

/// Turns a failure into success if the kernel has no IPv6 or has it disabled.
fn if_ipv6(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES)
            ) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Returns a `struct ifinfomsg`.
fn link_body(index: u32, flags: u32) -> [u8; 16] {
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..16].copy_from_slice(&flags.to_ne_bytes());
    body
}

fn up(index: u32) -> Message {
    Message::request(RTM_NEWLINK, 0, &link_body(index, IFF_UP))
}

/// Returns the family of `address`, from its length.
fn family(address: &[u8]) -> u8 {
    if address.len() == 4 {
        AF_INET
    } else {
        AF_INET6
    }
}

/// Returns the message that adds an address to [`INTERFACE`], with a prefix of this length in bits
/// (`struct ifaddrmsg`).
fn address(address: &[u8], prefix: u8) -> Message {
    let mut body = [family(address), prefix, IFA_F_NODAD, 0, 0, 0, 0, 0];
    body[4..8].copy_from_slice(&INTERFACE.to_ne_bytes());
    Message::request(RTM_NEWADDR, CREATE_EXCLUSIVE, &body)
        .attribute(IFA_LOCAL, address)
        .attribute(IFA_ADDRESS, address)
}

/// Returns the message that adds a default route through `gateway`.
fn default_route(gateway: &[u8]) -> Message {
    route(family(gateway), libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST)
        .attribute(RTA_GATEWAY, gateway)
        .attribute(RTA_OIF, &INTERFACE.to_ne_bytes())
}

/// Returns the message that adds a route by which every address is local to this namespace. It goes
/// into the main table, in which the longer prefix of the pair wins. The table of local addresses
/// is looked up first, so there it would also catch the answers to the workload.
fn local_default_route(family: u8) -> Message {
    route(family, libc::RT_SCOPE_HOST, libc::RTN_LOCAL).attribute(RTA_OIF, &LOOPBACK.to_ne_bytes())
}

/// Returns the message that adds a default route to the main table (`struct rtmsg`).
fn route(family: u8, scope: u8, kind: u8) -> Message {
    let body = [
        family,
        0,
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_BOOT,
        scope,
        kind,
        0,
        0,
        0,
        0,
    ];
    Message::request(RTM_NEWROUTE, CREATE_EXCLUSIVE, &body)
}
