//! Bodies of requests on their way to the upstream: read ahead for rules, searched, and sent.

pub mod ahead;
pub mod searched;

use bytes::Bytes;
use hyper::HeaderMap;

use crate::decide::message::{Ahead, Need};
use crate::denial::refusal::Refusal;
use crate::relay::body::ahead::AheadBody;
use crate::relay::body::searched::RequestBody;
use crate::wire::memory::Memory;

/// The body of a request that is not sent yet.
#[derive(Debug)]
pub enum Unsent {
    /// A client's body, which is still arriving.
    Unread(AheadBody),
    /// A body that is ready to be sent: an earlier attempt has searched it, or the proxy has made
    /// it.
    Ready(RequestBody, Ahead),
}

impl Unsent {
    /// Returns true if more of the body can be read.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        matches!(self, Self::Unread(_))
    }

    /// Returns what was read ahead of it.
    #[must_use]
    pub fn ahead(&self) -> Ahead {
        match self {
            Self::Unread(body) => body.ahead(),
            Self::Ready(_, ahead) => ahead.clone(),
        }
    }

    /// Creates a body that the proxy holds as a whole, and that is not searched.
    #[must_use]
    pub fn whole(body: Bytes) -> Self {
        let ahead = Ahead {
            bytes: body.clone(),
            is_whole: true,
            room: None,
        };
        Self::Ready(searched::whole(body), ahead)
    }

    /// Reads as much as rules `need`, into memory that is counted for `program`. Nothing more is
    /// read of a body that is ready to be sent: a permit that needs more refuses it.
    ///
    /// # Errors
    /// Fails as [`AheadBody::read`] does.
    pub async fn read(
        &mut self,
        need: Need,
        memory: &Memory,
        program: &str,
    ) -> Result<Ahead, Refusal> {
        match self {
            Self::Unread(body) if body.ahead().meets(need) => Ok(body.ahead()),
            // Boxed, because most requests do not need it.
            Self::Unread(body) => Box::pin(body.read(need, memory, program)).await,
            Self::Ready(_, ahead) => Ok(ahead.clone()),
        }
    }

    /// Replaces a body that was read as a whole by what it stands for, at most `most` bytes, and
    /// removes from `headers` what is no longer true. What is ready to be sent stays as it is.
    ///
    /// # Errors
    /// Fails as [`AheadBody::decode`] does.
    pub async fn decode(
        &mut self,
        headers: &mut HeaderMap,
        most: usize,
        memory: &Memory,
        program: &str,
    ) -> Result<Ahead, Refusal> {
        match self {
            Self::Unread(body) => Box::pin(body.decode(headers, most, memory, program)).await,
            Self::Ready(_, ahead) => Ok(ahead.clone()),
        }
    }
}
