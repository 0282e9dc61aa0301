//! The addresses of names. A name keeps its address for the life of the sandbox.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::str::FromStr;

use openshell_policy::address::AddressClass;
use openshell_policy::network::host::HostName;

use super::known::is_door;

/// The addresses that names have inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameAddresses {
    /// Addresses of a range; outside of the sandbox they lead nowhere.
    Of(PoolRange),
    /// The addresses that the names have outside. This needs a name that a policy writes out, and a
    /// public address that no other name has and that the policy does not permit itself. Other
    /// names get addresses of the default range.
    Real,
}

impl Default for NameAddresses {
    fn default() -> Self {
        Self::Of(PoolRange::default())
    }
}

impl FromStr for NameAddresses {
    type Err = String;

    /// Parses `real`, or a range of IPv4 addresses.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "real" => Ok(Self::Real),
            _ => PoolRange::parse(text).map(Self::Of),
        }
    }
}

/// A range of addresses for names: all of a network except its first and its last address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRange {
    first: u32,
    count: u32,
}

impl Default for PoolRange {
    /// Returns 198.18.0.0/15, which no host of the internet has (RFC 2544).
    fn default() -> Self {
        Self {
            first: u32::from_be_bytes([198, 18, 0, 1]),
            count: (1 << 17) - 2,
        }
    }
}

impl PoolRange {
    fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "expected `real`, or a range of IPv4 addresses with a prefix of 8 to 24 \
                            bits, for example 11.5.0.0/16";
        let (address, bits) = text.split_once('/').ok_or(FORM)?;
        let address = u32::from(address.parse::<Ipv4Addr>().map_err(|_| FORM)?);
        let bits: u32 = bits.parse().map_err(|_| FORM)?;
        if !(8..=24).contains(&bits) {
            return Err(FORM.to_owned());
        }
        let last = address | (u32::MAX >> bits);
        if address & (u32::MAX >> bits) != 0 {
            return Err(format!(
                "the range must begin at its first address: {}/{bits}",
                Ipv4Addr::from(address & !(u32::MAX >> bits))
            ));
        }
        let own = u32::from_be_bytes([10, 200, 0, 0]);
        if !is_door(address.into()) || !is_door(last.into()) || (address..=last).contains(&own) {
            return Err(format!(
                "{text} includes addresses that never lead out of a sandbox, or its own \
                 10.200.0.0/24; choose another range"
            ));
        }
        Ok(Self {
            first: address + 1,
            count: last - address - 1,
        })
    }
}

/// A map from addresses to names, and one from names to addresses.
#[derive(Debug, Default)]
pub(super) struct Pool {
    range: PoolRange,
    /// How many addresses of the range were taken or skipped.
    used: u32,
    names: HashMap<Ipv4Addr, HostName>,
    addresses: HashMap<HostName, Ipv4Addr>,
}

impl Pool {
    pub(super) fn new(range: PoolRange) -> Self {
        Self {
            range,
            ..Self::default()
        }
    }

    /// Returns how many names may have addresses although no policy names them, so that as many are
    /// left for those of the policy.
    pub(super) fn spare(&self) -> usize {
        usize::try_from(self.range.count / 2).unwrap_or(usize::MAX)
    }

    /// Returns the address of `name`, if it has one.
    pub(super) fn get(&self, name: &HostName) -> Option<Ipv4Addr> {
        self.addresses.get(name).copied()
    }

    /// Returns the address of `name`. If it has none, it gets the `real` one, or else the next one
    /// of the range, if that is `free` of other uses. `None` if all are taken.
    pub(super) fn take(
        &mut self,
        name: &HostName,
        real: Option<Ipv4Addr>,
        free: impl Fn(Ipv4Addr) -> bool,
    ) -> Option<Ipv4Addr> {
        if let Some(address) = self.get(name) {
            return Some(address);
        }
        let is_usable = |address: &Ipv4Addr| free(*address) && !self.names.contains_key(address);
        let range = self.range;
        let mut next =
            (self.used..range.count).map(|index| (index + 1, Ipv4Addr::from(range.first + index)));
        let is_public = |address: &Ipv4Addr| {
            is_door(*address) && !AddressClass::of((*address).into()).is_internal()
        };
        let address = match real.filter(|address| is_public(address) && is_usable(address)) {
            Some(address) => address,
            None => {
                let (used, address) = next.find(|(_, address)| is_usable(address))?;
                self.used = used;
                address
            }
        };
        self.names.insert(address, name.clone());
        self.addresses.insert(name.clone(), address);
        Some(address)
    }

    /// Returns the name whose address is `address`.
    pub(super) fn name(&self, address: Ipv4Addr) -> Option<&HostName> {
        self.names.get(&address)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use openshell_policy::network::host::HostName;

    use super::{NameAddresses, Pool, PoolRange};

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    fn any(_: Ipv4Addr) -> bool {
        true
    }

    #[test]
    fn an_address_is_one_names_for_ever_and_they_end_within_the_network() {
        let mut pool = Pool::default();
        assert_eq!(
            pool.take(&name("a.test"), None, any),
            Some(Ipv4Addr::new(198, 18, 0, 1))
        );
        assert_eq!(
            pool.take(&name("b.test"), None, any),
            Some(Ipv4Addr::new(198, 18, 0, 2))
        );
        assert_eq!(
            pool.take(&name("a.test"), None, any),
            pool.get(&name("a.test"))
        );
        let count = PoolRange::default().count;
        let last = (2..count)
            .filter_map(|n| pool.take(&name(&format!("n{n}.test")), None, any))
            .last();
        assert_eq!(last, Some(Ipv4Addr::new(198, 19, 255, 254)));
        assert_eq!(pool.take(&name("more.test"), None, any), None);
        assert_eq!(
            pool.take(&name("b.test"), None, any),
            Some(Ipv4Addr::new(198, 18, 0, 2))
        );
        assert_eq!(
            pool.name(Ipv4Addr::new(198, 18, 0, 2)),
            Some(&name("b.test"))
        );
        for none in [
            [198, 18, 0, 0],
            [198, 19, 255, 255],
            [198, 17, 255, 255],
            [10, 200, 0, 1],
        ] {
            assert_eq!(pool.name(none.into()), None);
        }
    }

    #[test]
    fn a_real_address_is_one_names_and_no_hosts_of_the_policy_nor_the_sandboxes_own() {
        let mut pool = Pool::default();
        let real = Ipv4Addr::new(11, 7, 7, 7);
        let listed = Ipv4Addr::new(11, 8, 8, 8);
        let free = |address| address != listed;
        assert_eq!(pool.take(&name("a.test"), Some(real), free), Some(real));
        assert_eq!(pool.name(real), Some(&name("a.test")));
        let own = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 200, 0, 1)];
        let internal = [
            [10, 9, 8, 7],
            [192, 168, 0, 1],
            [169, 254, 169, 254],
            [100, 64, 0, 1],
        ]
        .map(Ipv4Addr::from);
        let others = [real, listed].into_iter().chain(own).chain(internal);
        for (n, taken) in others.enumerate() {
            let address = pool
                .take(&name(&format!("n{n}.test")), Some(taken), free)
                .unwrap();
            assert_eq!(address.octets()[..3], [198, 18, 0], "{taken}");
        }
    }

    #[test]
    fn a_range_is_a_network_of_a_usable_size_that_leads_out_of_the_sandbox() {
        let range = "11.5.0.0/16".parse().unwrap();
        let NameAddresses::Of(range) = range else {
            panic!("{range:?}")
        };
        let mut pool = Pool::new(range);
        let is_free = |address| address != Ipv4Addr::new(11, 5, 0, 1);
        assert_eq!(
            pool.take(&name("a.test"), None, is_free),
            Some(Ipv4Addr::new(11, 5, 0, 2))
        );
        assert_eq!("real".parse(), Ok(NameAddresses::Real));
        for (text, reason) in [
            ("11.5.0.1/16", "first address: 11.5.0.0/16"),
            ("11.0.0.0/7", "8 to 24 bits"),
            ("11.5.5.0/25", "8 to 24 bits"),
            ("11.5.0.0", "8 to 24 bits"),
            ("fd00::/16", "8 to 24 bits"),
            ("10.0.0.0/8", "10.200.0.0/24"),
            ("10.200.0.0/24", "10.200.0.0/24"),
            ("127.0.0.0/8", "never lead out"),
            ("224.0.0.0/8", "never lead out"),
            ("0.0.0.0/8", "never lead out"),
        ] {
            assert!(
                text.parse::<NameAddresses>()
                    .is_err_and(|error| error.contains(reason)),
                "{text}"
            );
        }
    }
}
