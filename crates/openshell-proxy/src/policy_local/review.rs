//! Who decides about what programs propose.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use crate::approvals::desk::Desk;
use crate::approvals::proposal::Proposal;

/// A proposal that somebody decides about.
#[derive(Debug)]
pub struct Submitted {
    /// Its id, if the one who decides has given it one.
    pub id: Option<String>,
    /// The key that its line has.
    pub name: String,
    /// The proposal, which learns what becomes of it.
    pub proposal: Arc<Proposal>,
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

/// What comes of looking at proposals.
pub type Look<'s> = Pin<Box<dyn Future<Output = Result<(), NotSubmitted>> + Send + 's>>;

/// Somebody who decides about proposals.
pub trait Review: fmt::Debug + Send + Sync {
    /// Submits a proposal.
    fn submit(&self, proposal: Proposal) -> Submission<'_>;

    /// Learns what became of all proposals, if that takes a look.
    fn look(&self) -> Look<'_>;
}

impl Review for Arc<Desk> {
    fn submit(&self, proposal: Proposal) -> Submission<'_> {
        let desk = Self::clone(self);
        Box::pin(async move {
            let proposal = Arc::new(proposal);
            let proposed = Arc::clone(&proposal);
            let asked = tokio::task::spawn_blocking(move || desk.propose(&proposed)).await;
            let name = asked.map_err(|error| NotSubmitted::Rejected(error.to_string()))?;
            let name = name.map_err(NotSubmitted::Rejected)?;
            Ok(Submitted {
                id: None,
                name: name.as_str().to_owned(),
                proposal,
            })
        })
    }

    fn look(&self) -> Look<'_> {
        // Answers are told at once.
        Box::pin(async { Ok(()) })
    }
}
