//! Logs refused accesses to files, and collects what an observed run reads.

use std::io;
use std::sync::Arc;

use openshell_supervisor::file_calls::{self, Accessed, FileObserver, FileRights};
use openshell_supervisor::run_as::ProcessIdentity;
use openshell_supervisor::waiting_calls::{Handler, WaitingCalls};

use crate::file_refusals::FileRefusals;
use crate::run_reports::observed_files::ObservedFiles;

/// The receivers of accesses, and the rights that tell which are refused.
pub(super) struct FileLog {
    pub(super) rights: FileRights,
    pub(super) refusals: Arc<FileRefusals>,
    /// The collection of an observed run.
    pub(super) observed: Option<Arc<ObservedFiles>>,
    /// The rights of the policy alone, without what is shown to learn from.
    pub(super) of_policy: FileRights,
}

impl FileLog {
    /// Returns the handler of calls about files among `calls`.
    pub(super) fn handler(self, calls: &WaitingCalls) -> Handler {
        let Self { rights, refusals, observed, of_policy } = self;
        let identity = refusals.identity().clone();
        let receivers = Receivers { refusals, observed, of_policy, identity: identity.clone() };
        file_calls::handler(calls, rights, identity, Arc::new(receivers))
    }
}

struct Receivers {
    refusals: Arc<FileRefusals>,
    observed: Option<Arc<ObservedFiles>>,
    of_policy: FileRights,
    identity: ProcessIdentity,
}

impl FileObserver for Receivers {
    fn accessed(&self, accessed: Accessed) {
        if let Some(observed) = &self.observed {
            observed.add(&accessed, &self.of_policy, &self.identity);
        }
        // Looking at a path is no attempt to use it.
        if !accessed.is_lookup {
            self.refusals.add(&accessed);
        }
    }

    fn failed(&self, error: io::Error) {
        tracing::error!("accesses to files are not seen any more: {error}");
    }
}
