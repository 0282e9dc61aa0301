//! Namespaces, servers and sandboxes for the tests: real kernel, real peers, nothing left behind.
//!
//! A [`Lab`] is a private host: its own network and mount namespaces, with its own hosts file, logs
//! and run directory, and arbitrary addresses. Its processes and files end with it, even if a test
//! fails.

#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    reason = "tests start programs, and show what they printed"
)]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

pub mod container;
pub mod host;
pub mod sandbox;
pub mod upstream;

pub use host::Lab;
pub use sandbox::{Finished, Sandbox};
pub use upstream::Upstream;
