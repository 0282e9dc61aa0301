//! Policies of sandboxes as validated data.
//!
//! Takes the text of policies, credentials and routes; gives types that are valid, every violation
//! with its line, what one policy permits beyond another, and rules that would permit a refusal.
//! Never contains I/O, async code or a clock. What is parsed here no other crate validates again.

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
pub mod secret;
pub mod variable;
pub mod violation;
