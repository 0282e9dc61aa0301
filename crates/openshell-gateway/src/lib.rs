//! The client of a gateway: the server that launches sandboxes, tells them what is in force, and
//! receives reports of what they do.
//!
//! Takes an address, and sources of tokens and certificates. Gives policies as documents,
//! credentials, routes and sessions; sends logs, denials and results. The crate makes no decision,
//! and reads no file or environment variable.

#![forbid(unsafe_code)]

pub mod channel;
pub mod client;
pub mod convert;
pub mod error;
pub mod logs;
pub mod session;
mod streams;
pub mod token;

/// Messages and clients, generated from `proto/`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod proto {
    pub mod sandbox {
        pub mod v1 {
            tonic::include_proto!("openshell.sandbox.v1");
        }
    }
    pub mod inference {
        pub mod v1 {
            tonic::include_proto!("openshell.inference.v1");
        }
    }
    pub mod v1 {
        tonic::include_proto!("openshell.v1");
    }
}
