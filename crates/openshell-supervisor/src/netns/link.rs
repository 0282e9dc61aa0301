//! The veth pair, its addresses and routes (rtnetlink(7)).

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketType};

use crate::netlink::{Message, Protocol, Socket, attributes};

const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
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
const IFA_LABEL: u16 = 3;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;

const AF_INET: u8 = libc::AF_INET as u8;
const AF_INET6: u16 = libc::AF_INET6 as u16;
const IFF_UP: u32 = libc::IFF_UP as u32;

/// Interface index of loopback in a new namespace.
const LOOPBACK: u32 = 1;

/// Interface index of `eth0`, the workload's end of the veth pair, in its namespace.
pub const INTERFACE: u32 = 2;

/// The /24 of one sandbox's link, inside 10.200.0.0/16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    third: u8,
}

impl Subnet {
    /// All subnets, starting with 10.200.0.0/24.
    pub(super) fn candidates() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(|third| Self { third })
    }

    /// Address of the host's end, on which the proxy listens: 10.200.0.1 in the first subnet.
    #[must_use]
    pub fn supervisor(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, self.third, 1)
    }

    /// Address of the workload's end: 10.200.0.2 in the first subnet.
    #[must_use]
    pub fn workload(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 200, self.third, 2)
    }

    fn contains(self, address: Ipv4Addr) -> bool {
        address.octets()[..3] == [10, 200, self.third]
    }
}

/// Returns the subnets in which the calling thread's namespace has no address and no route.
pub(super) fn free_subnets(socket: &Socket) -> io::Result<impl Iterator<Item = Subnet> + use<>> {
    let mut used = Vec::new();
    for (request, fixed, wanted) in [(RTM_GETADDR, 8, IFA_ADDRESS), (RTM_GETROUTE, 12, RTA_DST)] {
        let mut body = vec![0; fixed];
        body[0] = AF_INET;
        for (_, payload) in socket.dump(Message::request(request, 0, &body))? {
            let found = attributes(payload.get(fixed..).unwrap_or_default());
            let addresses = found.filter(|(kind, _)| *kind == wanted || *kind == IFA_LOCAL && request == RTM_GETADDR);
            used.extend(addresses.filter_map(|(_, bytes)| <[u8; 4]>::try_from(bytes).ok()).map(Ipv4Addr::from));
        }
    }
    // A route into 10.200.N.0/24 begins with that prefix. Wider routes (10.0.0.0/8) begin elsewhere, except
    // 10.200.0.0/16 itself, which counts as use of the first subnet.
    Ok(Subnet::candidates().filter(move |subnet| !used.iter().any(|address| subnet.contains(*address))))
}

/// Prefix of the names of host ends.
const NAME_PREFIX: &str = "os-";

/// Returns true if `address` is in the subnet of a sandbox's link on this host, or if the links cannot be listed. Lists
/// them only for addresses in 10.200.0.0/16.
#[must_use]
pub fn is_on_link(address: Ipv4Addr) -> bool {
    let [10, 200, third, _] = address.octets() else { return false };
    let subnet = Subnet { third };
    sandbox_links().map_or(true, |links| links.into_iter().any(|link| subnet.contains(link)))
}

/// Addresses of the host ends of all sandboxes' links.
fn sandbox_links() -> io::Result<Vec<Ipv4Addr>> {
    const FIXED: usize = 8;
    let socket = Socket::open(Protocol::Route)?;
    let mut request = [0; FIXED];
    request[0] = AF_INET;
    let mut links = Vec::new();
    for (_, payload) in socket.dump(Message::request(RTM_GETADDR, 0, &request))? {
        let found: Vec<_> = attributes(payload.get(FIXED..).unwrap_or_default()).collect();
        let is_ours = |(kind, bytes): &(u16, &[u8])| *kind == IFA_LABEL && bytes.starts_with(NAME_PREFIX.as_bytes());
        if found.iter().any(is_ours) {
            let local = found.iter().filter(|(kind, _)| *kind == IFA_LOCAL);
            links.extend(local.filter_map(|(_, bytes)| <[u8; 4]>::try_from(*bytes).ok()).map(Ipv4Addr::from));
        }
    }
    Ok(links)
}

/// MTU of both ends in bytes, as on loopback: every packet fits, and a stream takes less time than in packets of 1,500
/// bytes.
const MTU: u32 = 65_535;

/// Largest GSO packet in bytes, from Linux 6.3 on; older kernels ignore it.
const GSO_MAX_SIZE: u32 = 256 * 1024;

/// Creates a veth pair: the host's end here, named after the subnet and with its address, and the peer inside
/// `namespace` as `eth0`. Returns false if a link of that name exists: of two starts that choose one subnet, the kernel
/// thereby gives it to one, without a lock that any process could hold.
pub(super) fn create_pair(socket: &Socket, namespace: BorrowedFd<'_>, subnet: Subnet) -> io::Result<bool> {
    let name = format!("{NAME_PREFIX}{:08x}", u32::from(subnet.supervisor()) & !0xff);
    // Moving a link to another namespace costs an RCU grace period, so the peer is created in its own and brought up
    // from there, once both ends exist.
    let mtu = MTU.to_ne_bytes();
    let pair = Message::request(RTM_NEWLINK, CREATE_EXCLUSIVE, &link_body(0, 0))
        .text(IFLA_IFNAME, &name)
        .attribute(IFLA_MTU, &mtu)
        .attribute(IFLA_GSO_IPV4_MAX_SIZE, &GSO_MAX_SIZE.to_ne_bytes())
        .nested(IFLA_LINKINFO, |message| {
            message.text(IFLA_INFO_KIND, "veth").nested(IFLA_INFO_DATA, |message| {
                message.nested(VETH_INFO_PEER, |message| {
                    message
                        .raw(&link_body(INTERFACE, 0))
                        .text(IFLA_IFNAME, "eth0")
                        .attribute(IFLA_MTU, &mtu)
                        .attribute(IFLA_GSO_IPV4_MAX_SIZE, &GSO_MAX_SIZE.to_ne_bytes())
                        .attribute(IFLA_NET_NS_FD, &namespace.as_raw_fd().to_ne_bytes())
                })
            })
        });
    match socket.execute(vec![pair]) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
        result => result?,
    }
    let index = index_of(&name)?;
    disable_link_local_address(socket, index)?;
    socket.execute(vec![address(index, subnet.supervisor()), up(index)])?;
    Ok(true)
}

/// Configures the namespace: loopback and the veth end up, the workload's address, the default route through the host's
/// end.
pub(super) fn configure_inside(subnet: Subnet) -> io::Result<()> {
    let socket = Socket::open(Protocol::Route)?;
    disable_link_local_address(&socket, INTERFACE)?;
    socket.execute(vec![
        up(LOOPBACK),
        address(INTERFACE, subnet.workload()),
        up(INTERFACE),
        default_route(INTERFACE, subnet.supervisor()),
    ])
}

/// Brings loopback up in a namespace without an exit.
pub(super) fn loopback_up() -> io::Result<()> {
    Socket::open(Protocol::Route)?.execute(vec![up(LOOPBACK)])
}

/// Disables the link-local IPv6 address that the kernel would assign when the link comes up, and with it neighbour
/// discovery. A kernel without IPv6 assigns none.
fn disable_link_local_address(socket: &Socket, index: u32) -> io::Result<()> {
    let message = Message::request(RTM_NEWLINK, 0, &link_body(index, 0)).nested(IFLA_AF_SPEC, |message| {
        message.nested(AF_INET6, |message| message.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]))
    });
    match socket.execute(vec![message]) {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
        result => result,
    }
}

fn index_of(name: &str) -> io::Result<u32> {
    let any = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    Ok(rustix::net::netdevice::name_to_index(any, name)?)
}

/// `struct ifinfomsg`.
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

/// `struct ifaddrmsg`, a /24.
fn address(index: u32, address: Ipv4Addr) -> Message {
    let mut body = [AF_INET, 24, 0, 0, 0, 0, 0, 0];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    Message::request(RTM_NEWADDR, CREATE_EXCLUSIVE, &body)
        .attribute(IFA_LOCAL, &address.octets())
        .attribute(IFA_ADDRESS, &address.octets())
}

/// `struct rtmsg` of a unicast route in the main table.
fn default_route(index: u32, gateway: Ipv4Addr) -> Message {
    let body = [
        AF_INET,
        0,
        0,
        0,
        libc::RT_TABLE_MAIN,
        libc::RTPROT_BOOT,
        libc::RT_SCOPE_UNIVERSE,
        libc::RTN_UNICAST,
        0,
        0,
        0,
        0,
    ];
    Message::request(RTM_NEWROUTE, CREATE_EXCLUSIVE, &body)
        .attribute(RTA_GATEWAY, &gateway.octets())
        .attribute(RTA_OIF, &index.to_ne_bytes())
}
