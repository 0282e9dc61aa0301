//! The socket options that a workload may set, by level. [`super::rules`] refuses every other
//! option and level. The options are those that ordinary programs set: traced from curl, wget, git,
//! ssh, Python, Node.js, Java, `ip` and PostgreSQL, and documented for nginx, haproxy, Go, QUIC
//! libraries and browsers.

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, SOL_NETLINK, SOL_SOCKET, SOL_TCP, c_int};

/// The allowed options of one level.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// The name of the level in the manual.
    pub name: &'static str,
    /// The number of the level.
    pub number: c_int,
    /// The name and number of each allowed option.
    pub allowed: &'static [(&'static str, c_int)],
}

macro_rules! options {
    ($($name:ident)*) => { &[$((stringify!($name), libc::$name)),*] };
}

/// Options of any socket: buffers, timeouts, keep-alive, reuse, timestamps, interface (socket(7)).
pub const SOCKET: Level = Level {
    name: "SOL_SOCKET",
    number: SOL_SOCKET,
    allowed: options!(SO_DEBUG SO_REUSEADDR SO_DONTROUTE SO_BROADCAST SO_SNDBUF SO_RCVBUF SO_KEEPALIVE SO_OOBINLINE
        SO_PRIORITY SO_LINGER SO_REUSEPORT SO_PASSCRED SO_RCVLOWAT SO_SNDLOWAT SO_RCVTIMEO SO_SNDTIMEO SO_BINDTODEVICE
        SO_TIMESTAMP SO_TIMESTAMPNS SO_PASSSEC SO_TIMESTAMPING SO_RXQ_OVFL SO_PEEK_OFF SO_BUSY_POLL SO_MAX_PACING_RATE
        SO_INCOMING_CPU SO_PREFER_BUSY_POLL SO_BINDTOIFINDEX),
};

/// Options of TCP, without fast open and TCP_ULP (tcp(7)).
pub const TCP: Level = Level {
    name: "SOL_TCP",
    number: SOL_TCP,
    allowed: options!(TCP_NODELAY TCP_MAXSEG TCP_CORK TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_SYNCNT TCP_LINGER2
        TCP_DEFER_ACCEPT TCP_WINDOW_CLAMP TCP_QUICKACK TCP_CONGESTION TCP_THIN_LINEAR_TIMEOUTS TCP_THIN_DUPACK
        TCP_USER_TIMEOUT TCP_TIMESTAMP TCP_NOTSENT_LOWAT TCP_SAVE_SYN),
};

/// Options of UDP: corking, and segmentation offload, which QUIC uses (udp(7)).
pub const UDP: Level = Level {
    name: "SOL_UDP",
    number: IPPROTO_UDP,
    allowed: &[
        ("UDP_CORK", 1),
        ("UDP_NO_CHECK6_TX", 101),
        ("UDP_NO_CHECK6_RX", 102),
        ("UDP_SEGMENT", 103),
        ("UDP_GRO", 104),
    ],
};

/// Options of IPv4: marking, time to live, path MTU, errors, multicast (ip(7)).
pub const IP: Level = Level {
    name: "SOL_IP",
    number: IPPROTO_IP,
    allowed: options!(IP_TOS IP_TTL IP_PKTINFO IP_MTU_DISCOVER IP_RECVERR IP_RECVTTL IP_RECVTOS
        IP_BIND_ADDRESS_NO_PORT IP_MULTICAST_IF IP_MULTICAST_TTL IP_MULTICAST_LOOP IP_ADD_MEMBERSHIP IP_DROP_MEMBERSHIP
        MCAST_JOIN_GROUP MCAST_LEAVE_GROUP IP_MULTICAST_ALL IP_UNICAST_IF),
};

/// Options of IPv6: like those of IPv4, and IPV6_V6ONLY (ipv6(7)).
pub const IPV6: Level = Level {
    name: "SOL_IPV6",
    number: IPPROTO_IPV6,
    allowed: options!(IPV6_UNICAST_HOPS IPV6_MULTICAST_IF IPV6_MULTICAST_HOPS IPV6_MULTICAST_LOOP IPV6_ADD_MEMBERSHIP
        IPV6_DROP_MEMBERSHIP IPV6_MTU_DISCOVER IPV6_RECVERR IPV6_V6ONLY MCAST_JOIN_GROUP MCAST_LEAVE_GROUP
        IPV6_MULTICAST_ALL IPV6_RECVPKTINFO IPV6_PKTINFO IPV6_RECVHOPLIMIT IPV6_HOPLIMIT IPV6_DONTFRAG IPV6_RECVTCLASS
        IPV6_TCLASS IPV6_AUTOFLOWLABEL IPV6_ADDR_PREFERENCES IPV6_UNICAST_IF),
};

/// Options of netlink sockets, for `ip` and similar tools (netlink(7)).
pub const NETLINK: Level = Level {
    name: "SOL_NETLINK",
    number: SOL_NETLINK,
    allowed: &[
        ("NETLINK_ADD_MEMBERSHIP", 1),
        ("NETLINK_DROP_MEMBERSHIP", 2),
        ("NETLINK_PKTINFO", 3),
        ("NETLINK_NO_ENOBUFS", 5),
        ("NETLINK_CAP_ACK", 10),
        ("NETLINK_EXT_ACK", 11),
        ("NETLINK_GET_STRICT_CHK", 12),
    ],
};

/// All levels with allowed options.
pub const LEVELS: &[Level] = &[SOCKET, IP, TCP, UDP, IPV6, NETLINK];
