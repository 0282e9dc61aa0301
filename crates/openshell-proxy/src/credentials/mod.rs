//! Credentials: secrets that exist outside the sandbox alone, and their placeholders inside.
//!
//! A placeholder in the head of a request is replaced by its secret on the way to a target that
//! this is bound to. A request with a placeholder in any other place, or in disguise, is refused;
//! the result is a [`inject::CredentialedRequest`]. Secrets in responses are masked.

pub mod inject;
pub mod leaks;
pub mod redact;
pub mod searchable;
pub mod vault;
pub mod watched;
