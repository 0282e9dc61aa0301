//! The vault in force, and the credentials whose secrets answers are searched for.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use openshell_policy::credential::SHORT_SECRET_BYTES;
use openshell_policy::network::host::Host;

use crate::credentials::vault::{Credential, Vault};
use crate::secrets::matcher::SecretSearch;

/// The vault in force, and replaced credentials. A request loads the vault once.
#[derive(Debug, Default)]
pub struct CurrentVault {
    vault: ArcSwap<Vault>,
    /// Those that answers are searched for: of the vault, and the last [`RETIRED`] replaced ones,
    /// as an upstream that has stored one may still return it.
    searched: ArcSwap<Searched>,
}

/// Replaced credentials that are kept: as many as a vault may hold.
const RETIRED: usize = 1_000;

impl CurrentVault {
    /// The vault in force.
    #[must_use]
    pub fn load(&self) -> Arc<Vault> {
        self.vault.load_full()
    }

    /// Puts `vault` in force at once.
    pub fn replace(&self, vault: Vault) {
        let vault = Arc::new(vault);
        let before = self.searched.load();
        let mut searched: Vec<_> = vault.credentials().cloned().collect();
        let most = searched.len() + RETIRED;
        // Those of the vault before come first.
        for credential in &before.credentials {
            let is_same = |other: &Arc<Credential>| {
                other.binding() == credential.binding() && other.secret().ct_eq(credential.secret())
            };
            if searched.len() < most && !searched.iter().any(is_same) {
                searched.push(Arc::clone(credential));
            }
        }
        // No request may carry what its answer is not searched for.
        self.searched.store(Arc::new(Searched::new(searched)));
        self.vault.store(vault);
    }

    /// Credentials that responses of `host` are searched for.
    #[must_use]
    pub fn watched(&self, host: &Host) -> Watched {
        self.searched.load().of_host(host)
    }
}

/// All such credentials, and the search for their secrets.
#[derive(Debug, Default)]
struct Searched {
    credentials: Vec<Arc<Credential>>,
    search: OnceLock<SecretSearch>,
}

impl Searched {
    fn new(credentials: Vec<Arc<Credential>>) -> Self {
        Self {
            credentials,
            search: OnceLock::new(),
        }
    }

    /// Credentials that answers of `host` are searched for: all that may be sent there at any port,
    /// by any request, since one request may read back what another has stored. Credentials without
    /// hosts may be sent everywhere.
    fn of_host(self: &Arc<Self>, host: &Host) -> Watched {
        let is_watched = self
            .credentials
            .iter()
            .map(|credential| credential.binding().includes_host(host));
        Watched {
            is_watched: is_watched.collect(),
            all: Arc::clone(self),
        }
    }
}

/// Those for the answers of one host.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    all: Arc<Searched>,
    is_watched: Vec<bool>,
}

impl FromIterator<Arc<Credential>> for Watched {
    fn from_iter<I: IntoIterator<Item = Arc<Credential>>>(credentials: I) -> Self {
        let all = Searched::new(credentials.into_iter().collect());
        Self {
            is_watched: vec![true; all.credentials.len()],
            all: Arc::new(all),
        }
    }
}

impl Watched {
    /// Returns those that no bytes of another meaning hold by chance: a cipher of a gigabyte has
    /// any three or four bytes.
    #[must_use]
    pub fn without_short(mut self) -> Self {
        for (credential, is_watched) in self.all.credentials.iter().zip(&mut self.is_watched) {
            *is_watched &= credential.secret().expose().len() >= SHORT_SECRET_BYTES;
        }
        self
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_watched.contains(&true)
    }

    /// Iterates over them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Credential>> {
        let watched = self.all.credentials.iter().zip(&self.is_watched);
        watched.filter_map(|(credential, is_watched)| is_watched.then_some(credential))
    }

    /// Returns true for the index of one of them.
    #[must_use]
    pub fn includes(&self, index: usize) -> bool {
        self.is_watched.get(index).copied().unwrap_or_default()
    }

    /// The search for their secrets, and for those of others.
    #[must_use]
    pub fn search(&self) -> &SecretSearch {
        let Searched {
            credentials,
            search,
        } = &*self.all;
        search.get_or_init(|| {
            SecretSearch::new(credentials.iter().map(|credential| credential.forms()))
        })
    }

    /// Bytes of the longest encoding of one of them, if there are any.
    #[must_use]
    pub fn longest(&self) -> Option<usize> {
        self.iter()
            .map(|credential| credential.forms().longest())
            .max()
    }
}

#[cfg(test)]
mod tests {
    use openshell_policy::credential::{Binding, BoundHost, CredentialName};
    use openshell_policy::network::host::Host;
    use openshell_policy::secret::Secret;

    use super::{CurrentVault, Vault};

    fn vault(credentials: &[(&str, &str, Option<&str>)]) -> Vault {
        Vault::new(credentials.iter().map(|(name, secret, host)| {
            let hosts = host.map(|host| vec![BoundHost::parse(host).unwrap()]);
            let binding = Binding {
                hosts,
                ..Binding::default()
            };
            (
                CredentialName::parse(name).unwrap(),
                Secret::new(secret.as_bytes().to_vec()),
                binding,
            )
        }))
    }

    fn watched(vault: &CurrentVault, host: &str) -> Vec<String> {
        let watched = vault.watched(&Host::parse(host).unwrap());
        let mut secrets: Vec<_> = watched
            .iter()
            .map(|known| String::from_utf8(known.secret().expose().to_vec()).unwrap())
            .collect();
        secrets.sort();
        secrets
    }

    #[test]
    fn answers_are_searched_for_what_may_go_to_their_host_at_any_port_also_when_it_was_replaced() {
        let current = CurrentVault::default();
        current.replace(vault(&[
            ("A", "bound", Some("a.test:8443")),
            ("B", "unbound", None),
        ]));
        assert_eq!(watched(&current, "a.test"), ["bound", "unbound"]);
        assert_eq!(watched(&current, "b.test"), ["unbound"]);
        // What a newer file has for the same names is searched for beside what was stored before.
        for _ in 0..3 {
            current.replace(vault(&[
                ("A", "newer", Some("a.test")),
                ("B", "unbound", None),
            ]));
        }
        assert_eq!(watched(&current, "a.test"), ["bound", "newer", "unbound"]);
    }
}
