//! Origins of the policy, the credentials and the inference routes, and the way of a change into
//! force.

pub(crate) mod activation;
pub(crate) mod composed;
pub(crate) mod credential_file;
pub(crate) mod environment_secrets;
pub(crate) mod files;
pub(crate) mod gateway;
pub(crate) mod input;
pub(crate) mod origin;
pub(crate) mod policy_file;
pub(crate) mod presets;
pub(crate) mod registries;
pub(crate) mod route_file;
pub(crate) mod secret_file;
pub(crate) mod update;
pub(crate) mod variables;
pub(crate) mod watch;

#[cfg(test)]
mod tests;
