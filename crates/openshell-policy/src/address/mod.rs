//! Classes of IP addresses: public, internal, never reachable. An IPv6 address that embeds an IPv4
//! address has the class of that.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::violation::ViolationKind;

/// Class of an address (IANA special-purpose address registries, RFC 6890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// Globally reachable.
    Public,
    /// RFC 1918, RFC 6598 (shared), RFC 4193 (unique local).
    Private,
    /// Benchmarking, documentation, protocol assignments, reserved.
    Special,
    /// 224.0.0.0/4, ff00::/8, and the limited broadcast address.
    Multicast,
    /// 127.0.0.0/8, ::1.
    Loopback,
    /// 169.254.0.0/16, fe80::/10.
    LinkLocal,
    /// 0.0.0.0/8, ::.
    Unspecified,
    /// Instance metadata and platform services outside the link-local ranges: 168.63.129.16
    /// (Azure), 100.100.100.200 (Alibaba), 192.0.0.192 (Oracle), fd00:ec2::254 and fd00:ec2::23
    /// (Amazon), fd20:ce::254 (Google).
    Metadata,
}

impl AddressClass {
    /// Returns the class of `address`, or of the IPv4 address that it embeds (mapped, compatible,
    /// NAT64, 6to4).
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::of_v4(v4),
            IpAddr::V6(v6) => Self::of_v6(v6),
        }
    }

    /// Returns true if `allowed_ips` must list an address of this class before a host may resolve
    /// to it.
    #[must_use]
    pub fn is_internal(self) -> bool {
        self != Self::Public
    }

    /// Returns true if no policy can make addresses of this class reachable.
    #[must_use]
    pub fn is_always_blocked(self) -> bool {
        match self {
            Self::Loopback
            | Self::LinkLocal
            | Self::Unspecified
            | Self::Metadata
            | Self::Multicast => true,
            Self::Public | Self::Private | Self::Special => false,
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [0, ..] => Self::Unspecified,
            [127, ..] => Self::Loopback,
            [169, 254, ..] => Self::LinkLocal,
            [168, 63, 129, 16] | [100, 100, 100, 200] | [192, 0, 0, 192] => Self::Metadata,
            [224..=239, ..] | [255, 255, 255, 255] => Self::Multicast,
            [10, ..] | [192, 168, ..] => Self::Private,
            [172, second, ..] if second & 0xf0 == 16 => Self::Private,
            [100, second, ..] if second & 0xc0 == 64 => Self::Private,
            [192, 0, 0 | 2, _] | [192, 88, 99, _] | [198, 18 | 19, ..] => Self::Special,
            [198, 51, 100, _] | [203, 0, 113, _] => Self::Special,
            [240..=255, ..] => Self::Special,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        if address == Ipv6Addr::UNSPECIFIED {
            return Self::Unspecified;
        }
        if address == Ipv6Addr::LOCALHOST {
            return Self::Loopback;
        }
        if let Some(v4) = embedded(address) {
            return Self::of_v4(v4);
        }
        match address.segments() {
            [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254 | 0x0023] => Self::Metadata,
            [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254] => Self::Metadata,
            [first, ..] if first & 0xff00 == 0xff00 => Self::Multicast,
            // A local translator may translate to any network, so an address of its prefix is
            // refused if any IPv4 address that it may embed is never reachable.
            [0x0064, 0xff9b, 1, ..] => {
                let blocked = translated(address)
                    .map(Self::of_v4)
                    .find(|class| class.is_always_blocked());
                blocked.unwrap_or(Self::Special)
            }
            [first, ..] if first & 0xffc0 == 0xfe80 => Self::LinkLocal,
            [first, ..] if first & 0xfe00 == 0xfc00 => Self::Private,
            // Only 2000::/3 is global unicast; the ranges for documentation, benchmarking, ORCHID,
            // Teredo and local NAT64 lie in or beside it.
            [0x2001, 0x0db8, ..] | [0x2001, 0, ..] | [0x2001, 2, 0, ..] => Self::Special,
            [0x2001, second, ..] if second & 0xffe0 == 0x20 || second & 0xfff0 == 0x10 => {
                Self::Special
            }
            [0x3fff, second, ..] if second & 0xf000 == 0 => Self::Special,
            [first, ..] if first & 0xe000 == 0x2000 => Self::Public,
            _ => Self::Special,
        }
    }
}

/// Returns the IPv4 address embedded in an IPv6 address: mapped (RFC 4291 §2.5.5.2), compatible
/// (§2.5.5.1), NAT64 (RFC 6052), 6to4 (RFC 3056).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => from(high, low),
        [0, 0, 0, 0, 0xffff, 0, high, low] => from(high, low),
        [0x0064, 0xff9b, 0, 0, 0, 0, high, low] => from(high, low),
        [0x2002, high, low, ..] => from(high, low),
        _ => None,
    }
}

/// Returns the IPv4 addresses that an address of the local NAT64 prefix 64:ff9b:1::/48 (RFC 8215)
/// may embed: the last 32 bits, or those behind a prefix of 48, 56 or 64 bits, around bits 64 to 71
/// (RFC 6052 §2.2), if any of those are set.
fn translated(address: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let [.., o6, o7, _, o9, o10, o11, o12, o13, o14, o15] = address.octets();
    let last = Ipv4Addr::new(o12, o13, o14, o15);
    let earlier = [[o6, o7, o9, o10], [o7, o9, o10, o11], [o9, o10, o11, o12]].map(Ipv4Addr::from);
    let is_anything = move |address: &Ipv4Addr| address.octets()[0] != 0;
    earlier.into_iter().filter(is_anything).chain([last])
}

/// Host names of cloud metadata services.
const METADATA_NAMES: &[&str] = &[
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.azure.internal",
    "metadata.google.internal",
    "metadata.goog",
];

/// Ports that control clusters and their machines: etcd, the Kubernetes API server, the kubelet.
/// The proxy refuses every connection to them.
pub const CONTROL_PLANE_PORTS: &[u16] = &[2379, 2380, 6443, 10250, 10255];

/// Returns the reason why no policy can make `host` reachable, if its text is enough to tell.
#[must_use]
pub fn never_reachable(host: &str) -> Option<&'static str> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok();
    let class = address.map(AddressClass::of);
    if class == Some(AddressClass::Metadata) || METADATA_NAMES.contains(&host.as_str()) {
        return Some("it serves a cloud's instance metadata");
    }
    // A connection to the unspecified address goes to the host itself (ip(7)).
    let is_own = class == Some(AddressClass::Loopback)
        || address.is_some_and(|address| address.is_unspecified());
    if is_own || host == "localhost" || host.ends_with(".localhost") {
        return Some(
            "it is the host itself; a server inside the sandbox needs neither a proxy nor a policy",
        );
    }
    class
        .filter(|class| class.is_always_blocked())
        .map(|_| "it is a link-local or multicast address")
}

/// An entry of `allowed_ips`: an address or a CIDR range that includes no address that is never
/// reachable. A range inside the IPv4-mapped prefix is kept as the IPv4 range that it embeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Parses an address or a CIDR range.
    ///
    /// # Errors
    /// Fails if the text is neither, or if it overlaps addresses that are always blocked.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let range = match text.parse::<IpNet>() {
            Ok(range) => range.trunc(),
            Err(_) => match text.parse::<IpAddr>() {
                Ok(address) => IpNet::from(address),
                Err(_) => return Err(ViolationKind::AddressInvalid(text.to_owned())),
            },
        };
        let range = unmapped(range);
        let is_blocked_host = range.prefix_len() == range.max_prefix_len()
            && AddressClass::of(range.addr()).is_always_blocked();
        if is_blocked_host
            || always_blocked()
                .iter()
                .any(|blocked| blocked.contains(&range) || range.contains(blocked))
        {
            return Err(ViolationKind::AddressAlwaysBlocked(text.to_owned()));
        }
        Ok(Self(range))
    }

    /// Returns true if the range contains `address`. An IPv4-mapped address counts as the IPv4
    /// address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }

    /// Returns true if every address of `other` is one of this range.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }

    /// Returns true if the prefix is shorter than 16 bits.
    #[must_use]
    pub fn is_broad(&self) -> bool {
        self.0.prefix_len() < 16
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return self.0.addr().fmt(f);
        }
        self.0.fmt(f)
    }
}

fn unmapped(range: IpNet) -> IpNet {
    let IpNet::V6(v6) = range else { return range };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len().checked_sub(96)) {
        (Some(v4), Some(prefix)) => Ipv4Net::new(v4, prefix).map_or(range, IpNet::V4),
        _ => range,
    }
}

fn always_blocked() -> [IpNet; 9] {
    let v4 = |address: [u8; 4], prefix| IpNet::V4(Ipv4Net::new_assert(address.into(), prefix));
    let v6 = |segments: [u16; 8], prefix| IpNet::V6(Ipv6Net::new_assert(segments.into(), prefix));
    [
        v4([0, 0, 0, 0], 8),
        v4([127, 0, 0, 0], 8),
        v4([169, 254, 0, 0], 16),
        v4([224, 0, 0, 0], 4),
        v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8),
        v6([0; 8], 128),
        v6([0, 0, 0, 0, 0, 0, 0, 1], 128),
        v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
        v6([0, 0, 0, 0, 0, 0xffff, 0x7f00, 0], 104),
    ]
}

#[cfg(test)]
mod tests;
