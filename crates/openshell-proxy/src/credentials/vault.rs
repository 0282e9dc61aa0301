//! The secrets, by what stands for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use openshell_policy::credential::{Binding, CredentialName};
use openshell_policy::secret::Secret;

use crate::context::Limits;
use crate::credentials::matcher::Forms;
use crate::intake::Target;

/// A secret, and where it may go.
#[derive(Debug)]
pub struct Credential {
    name: String,
    secret: Secret,
    binding: Binding,
    forms: OnceLock<Forms>,
}

impl Credential {
    /// One that no placeholder stands for.
    #[must_use]
    pub fn of(name: String, secret: Secret) -> Self {
        Self { name, secret, binding: Binding::default(), forms: OnceLock::new() }
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
    pub fn forms(&self) -> &Forms {
        self.forms.get_or_init(|| Forms::of(self.secret.expose()))
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
            (name.clone(), Arc::new(Credential { name, secret, binding, forms: OnceLock::new() }))
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

/// Credentials that answers are searched for.
pub type Watched = Arc<[Arc<Credential>]>;

/// The secrets in force, and where secrets went in this run. A request takes those of its moment.
#[derive(Debug, Default)]
pub struct CurrentVault {
    vault: ArcSwap<Vault>,
    /// What went where, bounded by [`Limits::LEAVES`] targets; kept when a newer vault comes into force.
    sent: Mutex<HashMap<Target, Watched>>,
}

impl CurrentVault {
    /// Those in force.
    #[must_use]
    pub fn load(&self) -> Arc<Vault> {
        self.vault.load_full()
    }

    /// Puts `vault` in force at once.
    pub fn replace(&self, vault: Vault) {
        self.vault.store(Arc::new(vault));
    }

    /// The credentials that answers of `target` are searched for, whichever request they answer: those that are bound to it, and those
    /// that went there in this run, as what one request has stored another may read back.
    #[must_use]
    pub fn watched(&self, target: &Target) -> Watched {
        let (vault, sent) = (self.vault.load(), self.sent());
        let went = sent.get(target).cloned().unwrap_or_default();
        let is_new = |credential: &&Arc<Credential>| !went.iter().any(|known| Arc::ptr_eq(known, credential));
        let is_full = sent.len() >= Limits::LEAVES && went.is_empty();
        let bound = |credential: &&Arc<Credential>| {
            // Where nobody remembers what went there, anything may have.
            is_full || credential.binding.hosts.is_some() && credential.binding.includes(&target.host, target.port)
        };
        let mut more = vault.0.values().filter(bound).filter(is_new).peekable();
        if more.peek().is_none() {
            return went;
        }
        went.iter().chain(more).cloned().collect()
    }

    /// Remembers that `used` go to `target`, whose answers are searched for `watched` so far, and returns what they are searched for now.
    #[must_use]
    pub fn note_sent(&self, target: &Target, watched: Watched, used: &[Arc<Credential>]) -> Watched {
        let is_known = |used: &Arc<Credential>| watched.iter().any(|known| Arc::ptr_eq(known, used));
        if used.iter().all(is_known) {
            return watched;
        }
        let all: Watched = watched.iter().chain(used.iter().filter(|used| !is_known(used))).cloned().collect();
        let mut sent = self.sent();
        if sent.len() < Limits::LEAVES || sent.contains_key(target) {
            sent.insert(target.clone(), Arc::clone(&all));
        }
        all
    }

    /// What is behind the lock is whole at every moment.
    fn sent(&self) -> MutexGuard<'_, HashMap<Target, Watched>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
