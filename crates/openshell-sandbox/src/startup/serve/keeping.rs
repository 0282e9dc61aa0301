//! Where lines of policy are written that outlast the run.

use std::sync::Arc;

use openshell_events::text::visible;
use openshell_policy::yaml::insert::Inserted;
use openshell_proxy::approvals::keep::{Difference, Keep};
use openshell_sources::policy::saving::PolicyFile;

use crate::reports::run_reports::saved::SavedPolicy;

/// Where lines are written.
pub(super) enum Keeping {
    /// Into the policy's own file.
    Own(PolicyFile),
    /// Into the file of --save.
    Saved(Arc<SavedPolicy>),
    /// Nowhere.
    Nowhere,
}

impl Keeping {
    /// Returns what `inserted` means for the policy's own `file`.
    fn inserted(file: &PolicyFile, inserted: Inserted) -> Difference {
        Difference {
            file: visible(&file.path().to_string_lossy()).into_owned(),
            first: Some(inserted.first),
            lines: inserted.lines,
        }
    }

    /// Returns what a further line means for the file of --save, which is written anew as a whole.
    fn saved(saved: &SavedPolicy, line: &str) -> Difference {
        Difference {
            file: visible(&saved.path().to_string_lossy()).into_owned(),
            first: None,
            lines: vec![format!("  {line}")],
        }
    }
}

impl Keep for Keeping {
    fn difference(&self, line: &str) -> Result<Difference, String> {
        match self {
            Self::Own(file) => file
                .difference(line)
                .map(|inserted| Self::inserted(file, inserted))
                .map_err(|error| format!("{error:#}")),
            Self::Saved(saved) => Ok(Self::saved(saved, line)),
            Self::Nowhere => Err(
                "the policy is not in one file, so start with --save FILE, or copy the line"
                    .to_owned(),
            ),
        }
    }

    fn keep(&self, line: &str, for_run: &[String]) -> Result<Difference, String> {
        match self {
            Self::Own(file) => file
                .save(line)
                .map(|inserted| Self::inserted(file, inserted))
                .map_err(|error| format!("{error:#}")),
            Self::Saved(saved) => saved
                .keep(line, for_run)
                .map(|()| Self::saved(saved, line))
                .map_err(|error| format!("{error:#}")),
            Self::Nowhere => self.difference(line),
        }
    }
}
