//! Copies of files into a sandbox and out of it, as a tar stream (POSIX.1-2024, pax). One half of a
//! copy runs inside, confined like any command; the other half trusts nothing in the stream.

pub mod outcome;
pub mod pack;
pub mod unpack;

#[cfg(test)]
mod tests;
