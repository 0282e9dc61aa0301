//! Why what is to be kept from a command cannot be.

use std::io;

use crate::files::carve_outs::CarveOutError;

/// Why what is to be kept from a command cannot be.
#[derive(Debug, thiserror::Error)]
pub enum CoverError {
    /// What is there, with the remedy.
    #[error("{0}")]
    Refused(String),
    /// A part cannot be looked at.
    #[error("{what}")]
    Unseen {
        /// The part, and what that means.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A path cannot be taken out of the grants.
    #[error(transparent)]
    CarveOut(#[from] CarveOutError),
}

/// Returns the error for what cannot be looked at; `what` describes it.
pub(super) fn unseen(what: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> CoverError {
    move |source| CoverError::Unseen {
        what: what(),
        source,
    }
}
