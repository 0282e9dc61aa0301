//! Finds secrets in text, in every form that they take: one decoder, and three searches that use
//! it.
//!
//! `placeholder` finds what stands for a credential in a request. `needles` finds secrets of every
//! kind that leave the sandbox, at the speed of a download. `matcher` finds known values in
//! responses, in every mixture of escapes, and where they stand.

pub(crate) mod decode;
pub mod matcher;
pub mod needles;
pub mod placeholder;
