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

use std::time::{Duration, Instant};

pub use host::Lab;
pub use sandbox::{Finished, Sandbox};
pub use upstream::Upstream;

/// The longest time that a test waits for something.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// Waits until `is_so`. The processor is free for the other tests in between.
///
/// # Panics
/// After two minutes, with the text of `otherwise`.
#[track_caller]
pub fn wait_until(mut is_so: impl FnMut() -> bool, otherwise: impl Fn() -> String) {
    wait_for(|| is_so().then_some(()), otherwise);
}

/// Waits until `find` finds something, and returns it.
///
/// # Panics
/// As [`wait_until`] does.
#[track_caller]
pub fn wait_for<T>(mut find: impl FnMut() -> Option<T>, otherwise: impl Fn() -> String) -> T {
    let deadline = Instant::now() + LONGEST_WAIT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "{}", otherwise());
        pause();
    }
}

/// Leaves the processor to others before another look.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}
