//! The vault in force, and the credentials for whose secrets responses are searched.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use openshell_policy::credential::SHORT_SECRET_BYTES;
use openshell_policy::network::host::Host;

use crate::credentials::vault::{Credential, Vault};
use crate::secrets::matcher::SecretSearch;

/// The vault in force, and credentials that were replaced. A request loads the vault once.
#[derive(Debug, Default)]
pub struct CurrentVault {
    vault: ArcSwap<Vault>,
    /// The credentials for which responses are searched: those of the vault, and the last
    /// [`RETIRED`] replaced ones, because an upstream that has stored one may still return it.
    searched: ArcSwap<Searched>,
}

/// Number of replaced credentials that are kept: as many as a vault may hold.
const RETIRED: usize = 1_000;

impl CurrentVault {
    /// Returns the vault in force.
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
        // The credentials of the previous vault come first.
        for credential in &before.credentials {
            let is_same = |other: &Arc<Credential>| {
                other.binding() == credential.binding() && other.secret().ct_eq(credential.secret())
            };
            if searched.len() < most && !searched.iter().any(is_same) {
                searched.push(Arc::clone(credential));
            }
        }
        // The search is stored first, so that no request carries a secret that its response is not
        // searched for.
        self.searched.store(Arc::new(Searched::new(searched)));
        self.vault.store(vault);
    }

    /// Returns the credentials for which responses of `host` are searched.
    #[must_use]
    pub fn watched(&self, host: &Host) -> Watched {
        self.searched.load().of_host(host)
    }
}

/// All credentials for which responses are searched, and the search for their secrets.
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

    /// Returns the credentials for which responses of `host` are searched: all that any request may
    /// send there, at any port, because one request may read back what another has stored.
    /// Credentials without hosts may be sent everywhere.
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

/// The credentials for which the responses of one host are searched.
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
    /// Returns only those credentials whose secrets do not occur by chance in bytes that mean
    /// something else: a gigabyte of ciphertext contains any three or four bytes.
    #[must_use]
    pub fn without_short(mut self) -> Self {
        for (credential, is_watched) in self.all.credentials.iter().zip(&mut self.is_watched) {
            *is_watched &= credential.secret().expose().len() >= SHORT_SECRET_BYTES;
        }
        self
    }

    /// Returns true if there are no credentials.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.is_watched.contains(&true)
    }

    /// Returns the credentials.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Credential>> {
        let watched = self.all.credentials.iter().zip(&self.is_watched);
        watched.filter_map(|(credential, is_watched)| is_watched.then_some(credential))
    }

    /// Returns true if `index` is that of one of these credentials.
    #[must_use]
    pub fn includes(&self, index: usize) -> bool {
        self.is_watched.get(index).copied().unwrap_or_default()
    }

    /// Returns the search for their secrets, which also finds those of others.
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

    /// Returns the length in bytes of the longest encoding of any of them; `None` if there are
    /// none.
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
        // Secrets of a newer file with the same names are searched for in addition to those stored
        // before.
        for _ in 0..3 {
            current.replace(vault(&[
                ("A", "newer", Some("a.test")),
                ("B", "unbound", None),
            ]));
        }
        assert_eq!(watched(&current, "a.test"), ["bound", "newer", "unbound"]);
    }
}
