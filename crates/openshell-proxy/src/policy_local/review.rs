//! Who decides about what programs propose.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::watch;

use crate::approvals::desk::Desk;
use crate::approvals::proposal::{Fate, Proposal};

/// A proposal that somebody decides about.
#[derive(Debug)]
pub struct Submitted {
    /// Its id, if the one who decides has given it one.
    pub id: Option<String>,
    /// The key that its line has.
    pub name: String,
    /// What becomes of it.
    pub fate: watch::Receiver<Fate>,
}

/// Why nobody decides about a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSubmitted {
    /// It is no good, for this reason.
    Rejected(String),
    /// The one who decides is not reached: the status and the word of the answer, and the reason.
    Failed(u16, &'static str, String),
}

/// What comes of submitting a proposal.
pub type Submission<'s> =
    Pin<Box<dyn Future<Output = Result<Submitted, NotSubmitted>> + Send + 's>>;

/// Somebody who decides about proposals.
pub trait Review: fmt::Debug + Send + Sync {
    /// Submits a proposal.
    fn submit(&self, proposal: Proposal) -> Submission<'_>;
}

impl Review for Arc<Desk> {
    fn submit(&self, proposal: Proposal) -> Submission<'_> {
        let desk = Self::clone(self);
        Box::pin(async move {
            let asked = tokio::task::spawn_blocking(move || desk.propose(proposal)).await;
            let asked = asked.map_err(|error| NotSubmitted::Rejected(error.to_string()))?;
            let asked = asked.map_err(NotSubmitted::Rejected)?;
            Ok(Submitted {
                id: None,
                name: asked.name.as_str().to_owned(),
                fate: asked.fate,
            })
        })
    }
}
