//! Streams, bodies and tasks of connections, beneath any protocol.

pub mod complete_body;
pub(crate) mod coop;
pub mod decoded;
pub(crate) mod delegate;
pub mod lingering;
pub mod metered;
pub(crate) mod pace;
pub mod prefixed;
pub mod read_ahead;
pub mod tasks;
pub mod upstream_stream;
