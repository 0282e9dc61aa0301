//! Secrets of credentials, by the names that placeholders give them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use openshell_policy::credential::{Binding, CredentialName};
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;

use crate::credentials::matcher::Forms;
use crate::credentials::watched::{Searched, Watched};

/// A secret with its binding.
#[derive(Debug)]
pub struct Credential {
    name: String,
    secret: Secret,
    binding: Binding,
    /// The end of its validity, if it has one.
    expires: Option<SystemTime>,
    forms: OnceLock<Forms>,
}

impl Credential {
    /// A credential without placeholders.
    #[must_use]
    pub fn of(name: String, secret: Secret) -> Self {
        Self { name, secret, binding: Binding::default(), expires: None, forms: OnceLock::new() }
    }

    /// True once it is no longer valid.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| expires <= SystemTime::now())
    }

    /// Name of the credential in placeholders.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Hosts, ports and paths that the secret may be sent to.
    #[must_use]
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Encodings of the secret, for searching responses.
    #[must_use]
    pub fn forms(&self) -> &Forms {
        self.forms.get_or_init(|| Forms::of(self.secret.expose()))
    }
}

/// A credential of a vault.
#[derive(Debug)]
pub struct Entry {
    /// Name in placeholders and messages.
    pub name: CredentialName,
    /// The secret.
    pub secret: Secret,
    /// Hosts, ports and paths that it may be sent to.
    pub binding: Binding,
    /// The end of its validity, if it has one.
    pub expires: Option<SystemTime>,
    /// Further names in placeholders.
    pub aliases: Vec<String>,
}

/// All credentials of one sandbox.
#[derive(Debug, Default)]
pub struct Vault(HashMap<String, Arc<Credential>>);

impl Vault {
    /// Creates a vault of `credentials`.
    #[must_use]
    pub fn new(credentials: impl IntoIterator<Item = (CredentialName, Secret, Binding)>) -> Self {
        let entry = |(name, secret, binding)| Entry { name, secret, binding, expires: None, aliases: Vec::new() };
        Self::of(credentials.into_iter().map(entry))
    }

    /// Creates a vault of `entries`. A name counts before another credential's alias.
    #[must_use]
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let (mut vault, mut aliased) = (HashMap::new(), Vec::new());
        for Entry { name, secret, binding, expires, aliases } in entries {
            let name = name.as_str().to_owned();
            let credential =
                Arc::new(Credential { name: name.clone(), secret, binding, expires, forms: OnceLock::new() });
            aliased.extend(aliases.into_iter().map(|alias| (alias, Arc::clone(&credential))));
            vault.insert(name, credential);
        }
        for (alias, credential) in aliased {
            vault.entry(alias).or_insert(credential);
        }
        Self(vault)
    }

    /// Each credential once.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = &Arc<Credential>> {
        self.0.iter().filter(|(name, credential)| **name == credential.name).map(|(_, credential)| credential)
    }

    /// Returns true if there are no credentials.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The credential that placeholders call `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Credential>> {
        self.0.get(name)
    }
}

/// The vault in force, and replaced credentials. A request loads the vault once.
#[derive(Debug, Default)]
pub struct CurrentVault {
    vault: ArcSwap<Vault>,
    /// Those that answers are searched for: of the vault, and the last [`RETIRED`] replaced ones, as an upstream that has stored one may
    /// still return it.
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
        for credential in before.credentials() {
            let is_same =
                |other: &Arc<Credential>| other.binding == credential.binding && other.secret.ct_eq(&credential.secret);
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

#[cfg(test)]
mod tests {
    use openshell_policy::credential::{Binding, BoundHost, CredentialName};
    use openshell_policy::network::host::Host;
    use openshell_policy::secret::Secret;

    use super::{CurrentVault, Entry, Vault};

    fn vault(credentials: &[(&str, &str, Option<&str>)]) -> Vault {
        Vault::new(credentials.iter().map(|(name, secret, host)| {
            let hosts = host.map(|host| vec![BoundHost::parse(host).unwrap()]);
            let binding = Binding { hosts, ..Binding::default() };
            (CredentialName::parse(name).unwrap(), Secret::new(secret.as_bytes().to_vec()), binding)
        }))
    }

    fn watched(vault: &CurrentVault, host: &str) -> Vec<String> {
        let watched = vault.watched(&Host::parse(host).unwrap());
        let mut secrets: Vec<_> =
            watched.iter().map(|known| String::from_utf8(known.secret().expose().to_vec()).unwrap()).collect();
        secrets.sort();
        secrets
    }

    #[test]
    fn a_name_counts_before_an_alias_and_each_credential_is_there_once() {
        let entry = |name: &str, secret: &str, aliases: &[&str]| Entry {
            name: CredentialName::parse(name).unwrap(),
            secret: Secret::new(secret.as_bytes().to_vec()),
            binding: Binding::default(),
            expires: None,
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
        };
        let entries = || [entry("v1_A", "own", &[]), entry("A", "other", &["v1_A", "v2_A"])];
        let [one, two] = entries();
        for entries in [entries(), [two, one]] {
            let vault = Vault::of(entries);
            let secret = |name: &str| vault.get(name).unwrap().secret().expose().to_vec();
            assert_eq!(
                (secret("v1_A"), secret("v2_A"), secret("A")),
                (b"own".into(), b"other".into(), b"other".into())
            );
            assert_eq!(vault.credentials().count(), 2);
        }
    }

    #[test]
    fn answers_are_searched_for_what_may_go_to_their_host_at_any_port_also_when_it_was_replaced() {
        let current = CurrentVault::default();
        current.replace(vault(&[("A", "bound", Some("a.test:8443")), ("B", "unbound", None)]));
        assert_eq!(watched(&current, "a.test"), ["bound", "unbound"]);
        assert_eq!(watched(&current, "b.test"), ["unbound"]);
        // What a newer file has for the same names is searched for beside what was stored before.
        for _ in 0..3 {
            current.replace(vault(&[("A", "newer", Some("a.test")), ("B", "unbound", None)]));
        }
        assert_eq!(watched(&current, "a.test"), ["bound", "newer", "unbound"]);
    }
}
