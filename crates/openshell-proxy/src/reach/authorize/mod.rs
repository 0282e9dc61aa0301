//! Authorization of connections and of the messages inside them, by the policy in force.

pub mod asker;
pub mod authorizer;
pub mod connection;
pub mod pause;
mod places;
pub mod revocation;
