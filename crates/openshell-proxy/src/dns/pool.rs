//! Addresses for names, each one's for the life of the sandbox.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use openshell_policy::network::host::HostName;

/// The first address of the pool: of 198.18.0.0/15, which no host of the internet has (RFC 2544).
const FIRST: u32 = u32::from_be_bytes([198, 18, 0, 1]);

/// Addresses in the pool: all but the first and the last of the network.
pub(super) const ADDRESSES: usize = (1 << 17) - 2;

/// Names by address, and addresses by name.
#[derive(Debug, Default)]
pub(super) struct Pool {
    names: Vec<HostName>,
    indices: HashMap<HostName, u32>,
}

impl Pool {
    /// The address of `name`, if it has one.
    pub(super) fn get(&self, name: &HostName) -> Option<Ipv4Addr> {
        self.indices.get(name).map(|index| Ipv4Addr::from(FIRST + index))
    }

    /// The address of `name`, the next one if it had none; `None` if all are taken.
    pub(super) fn take(&mut self, name: &HostName) -> Option<Ipv4Addr> {
        if let Some(address) = self.get(name) {
            return Some(address);
        }
        if self.names.len() == ADDRESSES {
            return None;
        }
        let index = u32::try_from(self.names.len()).ok()?;
        self.names.push(name.clone());
        self.indices.insert(name.clone(), index);
        Some(Ipv4Addr::from(FIRST + index))
    }

    /// The name whose address is `address`.
    pub(super) fn name(&self, address: Ipv4Addr) -> Option<&HostName> {
        let index = u32::from(address).checked_sub(FIRST)?;
        self.names.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use openshell_policy::network::host::HostName;

    use super::{ADDRESSES, Pool};

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[test]
    fn an_address_is_one_names_for_ever_and_they_end_within_the_network() {
        let mut pool = Pool::default();
        assert_eq!(pool.take(&name("a.test")), Some(Ipv4Addr::new(198, 18, 0, 1)));
        assert_eq!(pool.take(&name("b.test")), Some(Ipv4Addr::new(198, 18, 0, 2)));
        assert_eq!(pool.take(&name("a.test")), pool.get(&name("a.test")));
        let last = (2..ADDRESSES).filter_map(|n| pool.take(&name(&format!("n{n}.test")))).last();
        assert_eq!(last, Some(Ipv4Addr::new(198, 19, 255, 254)));
        assert_eq!(pool.take(&name("more.test")), None);
        assert_eq!(pool.take(&name("b.test")), Some(Ipv4Addr::new(198, 18, 0, 2)));
        assert_eq!(pool.name(Ipv4Addr::new(198, 18, 0, 2)), Some(&name("b.test")));
        for none in [[198, 18, 0, 0], [198, 19, 255, 255], [198, 17, 255, 255], [10, 200, 0, 1]] {
            assert_eq!(pool.name(none.into()), None);
        }
    }
}
