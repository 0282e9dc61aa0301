//! The tests of `main.rs` with sandboxes that a user without capabilities starts.

#[path = "main.rs"]
mod e2e;
