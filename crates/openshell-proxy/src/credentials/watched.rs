//! Credentials whose secrets answers are searched for.

use std::sync::{Arc, OnceLock};

use openshell_policy::network::host::Host;

use crate::credentials::matcher::SecretSearch;
use crate::credentials::vault::Credential;

/// All of them, and the search for their secrets.
#[derive(Debug, Default)]
pub(crate) struct Searched {
    credentials: Vec<Arc<Credential>>,
    search: OnceLock<SecretSearch>,
}

impl Searched {
    pub(crate) fn new(credentials: Vec<Arc<Credential>>) -> Self {
        Self { credentials, search: OnceLock::new() }
    }

    pub(crate) fn credentials(&self) -> &[Arc<Credential>] {
        &self.credentials
    }

    /// Credentials that answers of `host` are searched for: all that may be sent there at any port, by any request, since one request may
    /// read back what another has stored. Credentials without hosts may be sent everywhere.
    pub(crate) fn of_host(self: &Arc<Self>, host: &Host) -> Watched {
        let is_watched = self.credentials.iter().map(|credential| credential.binding().includes_host(host));
        Watched { is_watched: is_watched.collect(), all: Arc::clone(self) }
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
        Self { is_watched: vec![true; all.credentials.len()], all: Arc::new(all) }
    }
}

impl Watched {
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
        let Searched { credentials, search } = &*self.all;
        search.get_or_init(|| SecretSearch::new(credentials.iter().map(|credential| credential.forms())))
    }

    /// Bytes of the longest encoding of one of them, if there are any.
    #[must_use]
    pub fn longest(&self) -> Option<usize> {
        self.iter().map(|credential| credential.forms().longest()).max()
    }
}
