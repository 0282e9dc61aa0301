//! Secrets that exist outside alone: what stands for them inside, where they may go, and what must not come back.
//!
//! A placeholder is replaced in the head of a request on its way to where its secret may go, and nowhere else; a request
//! that holds one in another place, or in disguise, is refused. What of it leaves is a [`inject::CredentialedRequest`].

pub mod body;
pub mod inject;
pub mod matcher;
pub mod redact;
pub mod vault;
