//! Interception of TLS: a certificate authority of this sandbox towards the client, public roots
//! towards the upstream.

pub mod authority;
pub mod interceptor;
pub mod originate;
pub mod subject_hash;
pub mod terminate;
pub mod trust;
