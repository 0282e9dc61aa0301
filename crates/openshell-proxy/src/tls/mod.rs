//! TLS, opened: a certificate authority for this sandbox alone towards the client, the usual roots towards the upstream.

pub mod authority;
pub mod interceptor;
pub mod originate;
pub mod terminate;
pub mod trust;
