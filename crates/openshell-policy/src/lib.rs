//! Policies of sandboxes as validated data.
//!
//! No I/O, no async, no clock. Text is parsed into types here once; other crates never validate it
//! again.

#![forbid(unsafe_code)]

pub mod yaml;

pub mod policy;

pub mod credential;
pub mod filesystem;
pub mod inference;
pub mod issuers;
pub mod network;
pub mod process;
pub mod proposal;

pub mod comparison;

pub mod address;
pub mod secret;
pub mod variable;
pub mod violation;
