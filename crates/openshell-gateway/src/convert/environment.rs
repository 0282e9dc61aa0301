//! Conversion of the credentials of a sandbox.

use std::fmt;

use openshell_policy::secret::Secret;

use crate::proto::v1::{GetSandboxProviderEnvironmentResponse, StaticCredentialEndpointBinding};

/// Credentials of a sandbox, and variables that are not secret.
#[derive(Debug, Default)]
pub struct ProviderEnvironment {
    /// A number that changes with the credentials; 0 if the gateway does not count.
    pub revision: u64,
    /// Secrets, by the names of their variables.
    pub credentials: Vec<ProviderCredential>,
    /// Variables that are not secret.
    pub variables: Vec<(String, String)>,
    /// Names of credentials that the gateway would make only when they are needed, which this build
    /// does not support.
    pub dynamic: Vec<String>,
}

/// A secret, with what the gateway says about it.
pub struct ProviderCredential {
    /// Name of its variable.
    pub name: String,
    /// The secret.
    pub secret: Secret,
    /// When it expires, in milliseconds since 1970, if it does.
    pub expires_at_ms: Option<u64>,
    /// Where it may be sent; `None` if the gateway does not say.
    pub binding: Option<StaticBinding>,
}

impl fmt::Debug for ProviderCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderCredential")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Where a credential may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticBinding {
    /// Host, port and path prefix of each endpoint; an empty path means all.
    pub endpoints: Vec<(String, u32, String)>,
    /// The identity to which the credential belongs.
    pub identity: String,
    /// The word that its placeholders use; empty if it has none.
    pub handle: String,
}

pub(crate) fn read(response: GetSandboxProviderEnvironmentResponse) -> ProviderEnvironment {
    let mut read = ProviderEnvironment {
        revision: response.provider_env_revision,
        dynamic: response.dynamic_credentials.into_keys().collect(),
        ..ProviderEnvironment::default()
    };
    let expiries = response.credential_expires_at_ms;
    let mut bindings = response.static_credential_bindings;
    for (name, value) in response.environment {
        if response.non_secret_environment_keys.contains(&name) {
            read.variables.push((name, value));
            continue;
        }
        let binding = bindings.remove(&name).map(|binding| StaticBinding {
            endpoints: binding.endpoints.into_iter().map(endpoint).collect(),
            identity: binding.credential_identity,
            handle: binding.workload_credential_handle,
        });
        let expires_at_ms = expiries
            .get(&name)
            .and_then(|expires| u64::try_from(*expires).ok());
        let expires_at_ms = expires_at_ms.filter(|expires| *expires != 0);
        read.credentials.push(ProviderCredential {
            name,
            secret: Secret::new(value.into_bytes()),
            expires_at_ms,
            binding,
        });
    }
    read
}

fn endpoint(
    StaticCredentialEndpointBinding { host, port, path }: StaticCredentialEndpointBinding,
) -> (String, u32, String) {
    (host, port, path)
}
