//! The secrets of credentials, by the names that placeholders use for them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use openshell_policy::credential::{Binding, CredentialName};
use openshell_policy::secret::Secret;

use crate::secrets::matcher::Forms;

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
    /// Creates a credential that has no placeholder.
    #[must_use]
    pub fn of(name: String, secret: Secret) -> Self {
        Self {
            name,
            secret,
            binding: Binding::default(),
            expires: None,
            forms: OnceLock::new(),
        }
    }

    /// Returns true once the credential is no longer valid.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expires
            .is_some_and(|expires| expires <= SystemTime::now())
    }

    /// Returns the name of the credential in placeholders.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the hosts, ports and paths that the secret may be sent to.
    #[must_use]
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Returns the encodings of the secret, for searching responses.
    #[must_use]
    pub fn forms(&self) -> &Forms {
        self.forms.get_or_init(|| Forms::of(self.secret.expose()))
    }
}

/// A credential of a vault.
#[derive(Debug)]
pub struct Entry {
    /// Its name in placeholders and messages.
    pub name: CredentialName,
    /// The secret.
    pub secret: Secret,
    /// The hosts, ports and paths that the secret may be sent to.
    pub binding: Binding,
    /// The end of its validity, if it has one.
    pub expires: Option<SystemTime>,
    /// More names for it in placeholders.
    pub aliases: Vec<String>,
}

/// All credentials of one sandbox.
#[derive(Debug, Default)]
pub struct Vault(HashMap<String, Arc<Credential>>);

impl Vault {
    /// Creates a vault of `credentials`.
    #[must_use]
    pub fn new(credentials: impl IntoIterator<Item = (CredentialName, Secret, Binding)>) -> Self {
        let entry = |(name, secret, binding)| Entry {
            name,
            secret,
            binding,
            expires: None,
            aliases: Vec::new(),
        };
        Self::of(credentials.into_iter().map(entry))
    }

    /// Creates a vault of `entries`. If a name is also another credential's alias, the name wins.
    #[must_use]
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut vault = HashMap::new();
        let mut aliased = Vec::new();
        for Entry {
            name,
            secret,
            binding,
            expires,
            aliases,
        } in entries
        {
            let name = name.as_str().to_owned();
            let credential = Arc::new(Credential {
                name: name.clone(),
                secret,
                binding,
                expires,
                forms: OnceLock::new(),
            });
            aliased.extend(
                aliases
                    .into_iter()
                    .map(|alias| (alias, Arc::clone(&credential))),
            );
            vault.insert(name, credential);
        }
        for (alias, credential) in aliased {
            vault.entry(alias).or_insert(credential);
        }
        Self(vault)
    }

    /// Returns each credential once.
    pub(crate) fn credentials(&self) -> impl Iterator<Item = &Arc<Credential>> {
        self.0
            .iter()
            .filter(|(name, credential)| **name == credential.name)
            .map(|(_, credential)| credential)
    }

    /// Returns true if there are no credentials.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the credential that placeholders call `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Credential>> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests {
    use openshell_policy::credential::{Binding, CredentialName};
    use openshell_policy::secret::Secret;

    use super::{Entry, Vault};

    #[test]
    fn a_name_counts_before_an_alias_and_each_credential_is_there_once() {
        let entry = |name: &str, secret: &str, aliases: &[&str]| Entry {
            name: CredentialName::parse(name).unwrap(),
            secret: Secret::new(secret.as_bytes().to_vec()),
            binding: Binding::default(),
            expires: None,
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
        };
        let entries = || {
            [
                entry("v1_A", "own", &[]),
                entry("A", "other", &["v1_A", "v2_A"]),
            ]
        };
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
}
