//! Finds leaks: secrets in requests, by their shapes and by the values that this run knows.
//!
//! This is a guard against accidents, in which a program sends a secret along, plain or in a usual
//! encoding. Only the policy, which names the hosts that a program may reach, stops a program that
//! hides a secret on purpose (compressed, encrypted, in pieces).

pub mod detector;
mod own_secrets;
pub mod scan;
pub mod websocket;

#[cfg(test)]
mod tests;
