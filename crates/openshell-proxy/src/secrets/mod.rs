//! Secrets in text, in each form that they take: one decoder, and three searches over it.
//!
//! `placeholder` finds what stands for a credential in a request, `needles` finds secrets of every
//! kind that leave, at the speed of a download, and `matcher` finds known values in answers, in
//! every mixture of escapes, with their places.

pub(crate) mod decode;
pub mod matcher;
pub mod needles;
pub mod placeholder;
