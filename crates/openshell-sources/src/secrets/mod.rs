//! Credentials and keys of models, with their secrets.

pub mod credential_file;
pub mod environment_secrets;
pub mod route_file;
pub mod secret_file;
