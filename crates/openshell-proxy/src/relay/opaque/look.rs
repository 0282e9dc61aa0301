//! What searches of a connection that is not inspected have in common.

use std::io;

use crate::denial::refusal::Refusal;

/// A search through the bytes of one side, which change nothing in them.
pub(super) trait Look {
    /// Returns true as long as there is anything to search for.
    fn is_active(&self) -> bool;

    /// Searches `part`, the next one.
    ///
    /// # Errors
    /// Something ends in it that is refused; [`refusal_of`] has the refusal.
    fn scan(&mut self, part: &[u8]) -> io::Result<()>;
}

/// Error of bytes that are refused.
#[derive(Debug, thiserror::Error)]
#[error("the bytes of the connection are refused")]
struct Refused(Refusal);

pub(super) fn refused(refusal: Refusal) -> io::Error {
    io::Error::other(Refused(refusal))
}

/// The refusal for what was found in a connection that is not inspected, if `error` stands for one.
#[must_use]
pub fn refusal_of(error: &io::Error) -> Option<Refusal> {
    error
        .get_ref()?
        .downcast_ref()
        .map(|Refused(refusal)| refusal.clone())
}
