//! Names that the policy does not know.

use std::collections::{BTreeSet, HashSet};

use openshell_policy::network::host::HostName;

/// The most unknown names that have addresses at once because a person is asked.
const AT_ONCE: usize = 256;

/// The most of them in the life of a sandbox.
const EVER: usize = 4_096;

/// The most ports of one of them.
const PORTS_OF_NAME: usize = 16;

/// The most different ports of all of them. Each has a listener for the life of the sandbox, and the
/// names of the policy need some too.
const PORTS: usize = 256;

/// What happens to names that the policy does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownNames {
    /// They have no address.
    Refused,
    /// They have one, and doors at every port, because the run is observed.
    Observed,
    /// They have one, and some doors, because a person is asked about connections to them.
    Asked,
}

impl UnknownNames {
    /// Returns true if doors open when a program connects to them.
    #[must_use]
    pub fn have_doors(self) -> bool {
        self != Self::Refused
    }
}

/// The unknown names that have, or had, addresses because a person is asked.
#[derive(Debug, Default)]
pub(super) struct AskedNames {
    ever: HashSet<HostName>,
    ports: BTreeSet<u16>,
}

impl AskedNames {
    /// Takes room for `name`, beside those that have addresses `now`; returns false if there is none.
    /// No more than `most` may ever have one.
    pub(super) fn admit(&mut self, name: &HostName, now: usize, most: usize) -> bool {
        if now >= AT_ONCE {
            return false;
        }
        if !self.ever.contains(name) {
            if self.ever.len() >= EVER.min(most) {
                return false;
            }
            self.ever.insert(name.clone());
        }
        true
    }

    /// Takes room for a door at `port` of a name that has `doors`; returns false if there is none.
    pub(super) fn admit_port(&mut self, port: u16, doors: usize) -> bool {
        let is_new = !self.ports.contains(&port);
        if doors >= PORTS_OF_NAME || is_new && self.ports.len() >= PORTS {
            return false;
        }
        self.ports.insert(port);
        true
    }
}

/// Returns true if a person may be asked about connections to `name`. Clients go on to another name
/// from one with a search domain, and one of a single label is a name inside.
pub(super) fn is_askable(name: &HostName, search: &[HostName]) -> bool {
    let name = name.as_str();
    let has_domain = |domain: &HostName| {
        let before = name.strip_suffix(domain.as_str());
        before.is_some_and(|before| before.ends_with('.'))
    };
    name.contains('.') && !search.iter().any(has_domain)
}

#[cfg(test)]
mod tests {
    use openshell_policy::network::host::HostName;

    use super::{AT_ONCE, AskedNames, EVER, PORTS, PORTS_OF_NAME, is_askable};

    fn name(text: &str) -> HostName {
        HostName::parse(text).unwrap()
    }

    #[test]
    fn unknown_names_and_their_ports_are_bounded() {
        let mut asked = AskedNames::default();
        assert!(asked.admit(&name("a.test"), AT_ONCE - 1, 1));
        assert!(asked.admit(&name("a.test"), 0, 1), "it has one");
        assert!(!asked.admit(&name("a.test"), AT_ONCE, 1));
        assert!(!asked.admit(&name("b.test"), 0, 1));
        for number in 1..EVER {
            assert!(asked.admit(&name(&format!("n{number}.test")), 0, usize::MAX));
        }
        assert!(!asked.admit(&name("b.test"), 0, usize::MAX));
        for port in 0..PORTS {
            assert!(asked.admit_port(u16::try_from(port).unwrap(), 0));
        }
        assert!(!asked.admit_port(60_000, 0));
        assert!(asked.admit_port(1, PORTS_OF_NAME - 1));
        assert!(!asked.admit_port(1, PORTS_OF_NAME));
    }

    #[test]
    fn a_name_is_asked_unless_it_has_one_label_or_a_search_domain() {
        let search = [name("corp.test")];
        for (text, expected) in [
            ("a.test", true),
            ("api.example.com", true),
            ("localhost", false),
            ("a.test.corp.test", false),
            ("a.corp.test", false),
            ("acorp.test", true),
        ] {
            assert_eq!(is_askable(&name(text), &search), expected, "{text}");
        }
    }
}
