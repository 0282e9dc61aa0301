//! Policies of sandboxes, as validated data.
//!
//! Takes the text of policies, credentials and routes. Gives valid types or every violation with
//! its line, what one policy permits beyond another, and rules that would permit what was refused.
//! The crate contains no I/O, async code or clock. Other crates do not validate again what is
//! parsed here.

#![forbid(unsafe_code)]

pub mod yaml;

pub mod policy;

pub mod credential;
pub mod document;
pub mod filesystem;
pub mod inference;
pub mod issuers;
pub mod network;
pub mod process;
pub mod proposal;

pub mod comparison;

pub mod address;
pub mod approvals;
pub mod secret;
pub mod variable;
pub mod violation;
