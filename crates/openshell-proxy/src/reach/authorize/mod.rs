//! Authorization of connections and of the messages inside them, by the policy in force.

pub mod authorizer;
pub mod connection;
pub mod hold;
mod places;
pub mod revocation;
