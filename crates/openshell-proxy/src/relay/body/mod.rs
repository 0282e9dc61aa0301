//! Bodies of requests on their way to the upstream: read ahead for rules, searched, and sent.

pub mod ahead;
pub mod searched;

use bytes::Bytes;

use crate::decide::message::{Ahead, Need};
use crate::denial::refusal::Refusal;
use crate::relay::body::ahead::AheadBody;
use crate::relay::body::searched::RequestBody;
use crate::wire::memory::Memory;

/// Body of a request that is not sent yet.
#[derive(Debug)]
pub enum Unsent {
    /// A client's, as it comes.
    Unread(AheadBody),
    /// Ready to be sent: searched by an earlier attempt, or the proxy's own.
    Ready(RequestBody, Ahead),
}

impl Unsent {
    /// True if more of it can be read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        matches!(self, Self::Unread(_))
    }

    /// A body that the proxy holds whole, and that is not searched.
    #[must_use]
    pub fn whole(body: Bytes) -> Self {
        let ahead = Ahead {
            bytes: body.clone(),
            is_whole: true,
            room: None,
        };
        Self::Ready(searched::whole(body), ahead)
    }

    /// Reads as much as rules `need`, into memory of `program`. Of a body that is ready for sending
    /// nothing more is read: a permit that needs more refuses it.
    ///
    /// # Errors
    /// As [`AheadBody::read`].
    pub async fn read(
        &mut self,
        need: Need,
        memory: &Memory,
        program: &str,
    ) -> Result<Ahead, Refusal> {
        match self {
            Self::Unread(body) if body.ahead().meets(need) => Ok(body.ahead()),
            // Boxed, since most requests need none of it.
            Self::Unread(body) => Box::pin(body.read(need, memory, program)).await,
            Self::Ready(_, ahead) => Ok(ahead.clone()),
        }
    }
}
