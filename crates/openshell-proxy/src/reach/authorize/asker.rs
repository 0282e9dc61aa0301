//! The program behind a refusal, as far as it takes time to know it.

use std::sync::Arc;

use crate::decide::identify::{Identified, Identifier};
use crate::ground::peer::Caller;

/// A program whose connection or request was refused.
#[derive(Clone, Debug)]
pub struct Asker {
    pub(crate) caller: Caller,
    /// Its process, unless it is known whether that is modified.
    pub(crate) unexamined: Option<(Arc<Identifier>, Identified)>,
}

impl Asker {
    /// Returns the program, of which is not known whether it is modified.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the program, of which is known whether it is modified. Blocks, because processes can
    /// delay that.
    #[must_use]
    pub fn examined(&self) -> Caller {
        let unexamined = self.unexamined.as_ref();
        let is_modified = unexamined
            .is_some_and(|(identifier, process)| identifier.modified_by(process).is_some());
        self.caller.modified(is_modified)
    }
}
