//! Leaks: secrets in requests, by their shapes and by the values that this run knows.
//!
//! A guard against accidents: a secret that a program sends along, plain or in a usual encoding. A
//! program that hides one on purpose (compressed, enciphered, in pieces) is stopped by the policy
//! alone, which names the hosts that it may reach.

pub mod detector;
mod own_secrets;
pub mod scan;
pub mod websocket;

#[cfg(test)]
mod tests;
