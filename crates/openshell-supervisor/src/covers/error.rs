//! Errors for paths that cannot be kept from a command.

use std::io;

use crate::files::carve_outs::CarveOutError;

/// The reason why a path cannot be kept from a command.
#[derive(Debug, thiserror::Error)]
pub enum CoverError {
    /// What is in the way, with the remedy.
    #[error("{0}")]
    Refused(String),
    /// A part of the file system cannot be looked at.
    #[error("{what}")]
    Unseen {
        /// The part, and what follows from that.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A path cannot be taken out of the grants.
    #[error(transparent)]
    CarveOut(#[from] CarveOutError),
}

/// Returns a function that makes the error for a part that cannot be looked at; `what` describes
/// the part.
pub(super) fn unseen(what: impl FnOnce() -> String) -> impl FnOnce(io::Error) -> CoverError {
    move |source| CoverError::Unseen {
        what: what(),
        source,
    }
}
