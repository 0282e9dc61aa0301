//! The secrets, by what stands for them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use openshell_policy::credential::{Binding, CredentialName};
use openshell_policy::secret::Secret;

use crate::credentials::echo::{self, Needle};

/// A secret, and where it may go.
#[derive(Debug)]
pub struct Credential {
    name: String,
    secret: Secret,
    binding: Binding,
    echoes: OnceLock<Vec<Needle>>,
}

impl Credential {
    /// One that no placeholder stands for.
    #[must_use]
    pub fn of(name: String, secret: Secret) -> Self {
        Self { name, secret, binding: Binding::default(), echoes: OnceLock::new() }
    }

    /// What placeholders call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret.
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Where it may go.
    #[must_use]
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// What it looks like in an answer.
    #[must_use]
    pub fn echoes(&self) -> &[Needle] {
        self.echoes.get_or_init(|| echo::needles(self.secret.expose()))
    }
}

/// All secrets of one sandbox.
#[derive(Debug, Default)]
pub struct Vault(HashMap<String, Arc<Credential>>);

impl Vault {
    /// Of these credentials.
    #[must_use]
    pub fn new(credentials: impl IntoIterator<Item = (CredentialName, Secret, Binding)>) -> Self {
        let credential = |(name, secret, binding): (CredentialName, _, _)| {
            let name = name.as_str().to_owned();
            (name.clone(), Arc::new(Credential { name, secret, binding, echoes: OnceLock::new() }))
        };
        Self(credentials.into_iter().map(credential).collect())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The one that a placeholder calls `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Credential>> {
        self.0.get(name)
    }
}

/// The secrets in force. A request takes those of its moment.
#[derive(Debug, Default)]
pub struct CurrentVault(ArcSwap<Vault>);

impl CurrentVault {
    /// Those in force.
    #[must_use]
    pub fn load(&self) -> Arc<Vault> {
        self.0.load_full()
    }

    /// Puts `vault` in force at once.
    pub fn replace(&self, vault: Vault) {
        self.0.store(Arc::new(vault));
    }
}
