//! Credentials: secrets that exist only outside the sandbox, and their placeholders inside.
//!
//! A placeholder in the head of a request is replaced by its secret on the way to a target that the
//! secret is bound to; the result is an [`inject::CredentialedRequest`]. A request with a
//! placeholder in any other place, or in disguise, is refused. Secrets in responses are masked.

pub mod inject;
pub mod leaks;
pub mod redact;
pub mod searchable;
pub mod vault;
pub mod watched;
