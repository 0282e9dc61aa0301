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
    /// A body that the proxy holds whole, and that is not searched.
    #[must_use]
    pub fn whole(body: Bytes) -> Self {
        Self::Ready(searched::whole(body), Ahead::default())
    }

    /// Reads as much as rules `need`, into memory of `program`. Of a body that is ready for sending
    /// nothing more is read.
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
            Self::Unread(body) if need == Need::Head => Ok(body.ahead()),
            // Boxed, since most requests need none of it.
            Self::Unread(body) => Box::pin(body.read(need, memory, program)).await,
            Self::Ready(_, ahead) => Ok(ahead.clone()),
        }
    }
}
