//! Logs refused accesses to files, and collects what an observed run reads.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openshell_events::event::Audit;
use openshell_policy::policy::PolicyForm;
use openshell_supervisor::calls::file_calls::{self, Accessed, FileObserver, FileRights};
use openshell_supervisor::calls::waiting_calls::{Handler, WaitingCalls};
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::identity::run_as::{ProcessIdentity, User};

use crate::config::Config;
use crate::reports::file_refusals::FileRefusals;
use crate::reports::run_reports::observed_files::ObservedFiles;

/// The receivers of accesses, and the rights that tell which are refused.
pub(crate) struct FileLog {
    rights: FileRights,
    refusals: Arc<FileRefusals>,
    /// The collection of an observed run, if it is one.
    observed: Option<Arc<ObservedFiles>>,
    /// The rights of the policy only, without what is shown to learn from.
    of_policy: FileRights,
}

impl FileLog {
    /// Creates the log of a run. `rights` are the rights in force, and those of the policy only.
    /// `form` is that of the policy. `observed` is the collection of an observed run; the program of
    /// the command is added to it at once.
    pub(crate) fn create(
        config: &Config,
        (rights, of_policy): (FileRights, FileRights),
        (user, form): (&User, PolicyForm),
        environment: &Environment,
        observed: Option<Arc<ObservedFiles>>,
        audit: &Arc<dyn Audit>,
    ) -> Self {
        if let (Some(observed), Some(program)) =
            (&observed, program(&config.command.words, environment))
        {
            observed.add_program(&program, &of_policy, &user.identity);
        }
        let refusals = Arc::new(FileRefusals::new(Arc::clone(audit), user.clone(), form));
        Self {
            rights,
            refusals,
            observed,
            of_policy,
        }
    }

    /// Returns the refused accesses so far.
    pub(crate) fn refusals(&self) -> &Arc<FileRefusals> {
        &self.refusals
    }

    /// Returns the handler of calls about files among `calls`.
    pub(crate) fn handler(self, calls: &WaitingCalls) -> Handler {
        let Self {
            rights,
            refusals,
            observed,
            of_policy,
        } = self;
        let identity = refusals.identity().clone();
        let receivers = Receivers {
            refusals,
            observed,
            of_policy,
            identity: identity.clone(),
        };
        file_calls::handler(calls, rights, identity, Arc::new(receivers))
    }
}

/// Returns the path at which the program of `command` is found.
fn program(command: &[OsString], environment: &Environment) -> Option<PathBuf> {
    let name = Path::new(command.first()?);
    if name.components().count() > 1 {
        return std::path::absolute(name).ok();
    }
    let path = environment.get("PATH").unwrap_or_default();
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
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
        // Looking at a path is not an attempt to use it.
        if !accessed.is_lookup {
            self.refusals.add(&accessed);
        }
    }

    fn failed(&self, error: io::Error) {
        tracing::error!("cannot see accesses to files any more: {error}");
    }
}
