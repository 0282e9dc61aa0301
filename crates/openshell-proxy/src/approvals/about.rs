//! What a question is about: something that was refused, or a line that a program proposes.

use std::sync::Arc;

use crate::approvals::bounds::DeniedForRun;
use crate::approvals::line::{Joined, join};
use crate::approvals::proposal::Proposal;
use crate::approvals::wish::Wish;
use crate::decide::line::Line;
use crate::decide::own_lines::OwnLines;
use crate::decide::snapshot::Snapshot;
use crate::ground::peer::Caller;

/// What a question is about.
#[derive(Clone, Debug)]
pub(super) enum About {
    /// Something that was refused.
    Refused(Box<Wish>),
    /// A line that a program proposes.
    Proposed(Arc<Proposal>),
}

impl About {
    /// Returns the path of the program that asks.
    pub(super) fn program(&self) -> &str {
        &self.caller().program.executable
    }

    /// Returns the paths of the programs that a line would permit something to.
    pub(super) fn permitted(&self) -> Vec<&str> {
        match self {
            Self::Refused(_) => vec![self.program()],
            Self::Proposed(proposal) => proposal.paths().collect(),
        }
    }

    /// Returns the program that asks.
    pub(super) fn caller(&self) -> &Caller {
        match self {
            Self::Refused(wish) => &wish.caller,
            Self::Proposed(proposal) => &proposal.caller,
        }
    }

    /// Returns the host and port, the first if there are several.
    pub(super) fn place(&self) -> (String, u16) {
        match self {
            Self::Refused(wish) => (wish.target.without_port(), wish.target.port),
            Self::Proposed(proposal) => proposal.place(),
        }
    }

    /// Returns the generation `in_force` together with the lines that hold for this alone.
    pub(super) fn over(&self, in_force: Arc<Snapshot>) -> Arc<Snapshot> {
        match self {
            Self::Refused(wish) => wish.own.over(in_force),
            Self::Proposed(_) => in_force,
        }
    }

    /// Returns the same without lines that hold for it alone.
    pub(super) fn alone(&self) -> Self {
        match self {
            Self::Refused(wish) => Self::Refused(Box::new(Wish {
                own: OwnLines::default(),
                ..Wish::clone(wish)
            })),
            Self::Proposed(_) => self.clone(),
        }
    }

    /// Returns true if `snapshot` permits it without a line. Blocks.
    pub(super) fn is_permitted(&self, snapshot: &Snapshot) -> bool {
        match self {
            Self::Refused(wish) => wish.judge(snapshot).is_ok(),
            Self::Proposed(proposal) => proposal.is_permitted(snapshot),
        }
    }

    /// Adds `line` to the policy of `snapshot`; `None` if it does not fit, does not permit this, or
    /// takes something away. Blocks.
    pub(super) fn join(&self, snapshot: &Snapshot, line: &Line) -> Option<Joined> {
        match self {
            Self::Refused(wish) => join(wish, snapshot, line),
            Self::Proposed(proposal) => proposal.join(snapshot, line).ok(),
        }
    }

    /// Returns what `line` permits beside the policy of `snapshot`, in words; `None` as for
    /// [`About::join`]. Blocks.
    pub(super) fn permits(&self, snapshot: &Snapshot, line: &Line) -> Option<Vec<String>> {
        self.join(snapshot, line).map(|joined| joined.permits)
    }

    /// Returns what is not asked again if this is denied for the run and counts as of `program`.
    pub(super) fn denied_for_run(&self, program: &str) -> DeniedForRun {
        match self {
            Self::Refused(wish) => wish.denied_for_run(program),
            Self::Proposed(proposal) => proposal.denied_for_run(program),
        }
    }

    /// Tells a program that proposed it that the generation with this number permits it.
    pub(super) fn approve(&self, generation: u64) {
        if let Self::Proposed(proposal) = self {
            proposal.approve(generation);
        }
    }

    /// Tells a program that proposed it that nobody permits it, for this `reason`.
    pub(super) fn reject(&self, reason: &str) {
        if let Self::Proposed(proposal) = self {
            proposal.reject(reason);
        }
    }
}
