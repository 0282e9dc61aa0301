//! Conversion of the configuration of a sandbox.

use std::collections::BTreeMap;

use crate::convert::policy::{self, GatewayPolicy, PolicyMalformed};
use crate::proto::sandbox::v1::setting_value::Value;
use crate::proto::sandbox::v1::{
    EffectiveSetting, GetSandboxConfigResponse, PolicySource, SettingScope,
};

/// Everything that is in force for a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// The sandbox's policy, if it has one.
    pub policy: Option<GatewayPolicy>,
    /// Version number of the policy.
    pub version: u32,
    /// Hash of the policy, as the gateway computes it.
    pub hash: String,
    /// A number that changes with any part of the configuration.
    pub revision: u64,
    /// A number that changes with the credentials; 0 if the gateway does not count them.
    pub provider_revision: u64,
    /// Version number of the policy for all sandboxes, if that is in force.
    pub global_version: Option<u32>,
    /// The sandbox's workspace, if the gateway has workspaces.
    pub workspace: String,
    /// Handling of an invalid policy.
    pub on_invalid: OnInvalid,
    /// Settings in force.
    pub settings: BTreeMap<String, Setting>,
    /// True if the response has something that gateways of the first generation do not send.
    pub is_later: bool,
}

/// Handling of an invalid policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnInvalid {
    /// The policy in force stays.
    Retain,
    /// Nothing is permitted until a valid policy arrives.
    Refuse,
    /// The gateway does not say, so its generation decides.
    Unsaid,
}

/// A setting in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its value, as text.
    pub value: String,
    /// The level at which it was set.
    pub scope: &'static str,
}

/// Converts the response to a call for the configuration.
///
/// # Errors
/// Fails if the policy is not an encoded message.
pub(crate) fn read(response: GetSandboxConfigResponse) -> Result<SandboxConfig, PolicyMalformed> {
    let is_global = response.policy_source == i32::from(PolicySource::Global);
    let mode = response.policy_validation_failure_mode.as_str();
    let is_later = response.provider_env_revision != 0
        || !response.workspace.is_empty()
        || !mode.is_empty()
        || !response.supervisor_middleware_services.is_empty()
        || response.extension_authentication_enabled;
    Ok(SandboxConfig {
        on_invalid: match mode {
            "retain_last_valid" => OnInvalid::Retain,
            "" => OnInvalid::Unsaid,
            // A word that this build does not know must not permit anything.
            _ => OnInvalid::Refuse,
        },
        policy: response.policy.as_deref().map(policy::decode).transpose()?,
        version: response.version,
        hash: response.policy_hash,
        revision: response.config_revision,
        provider_revision: response.provider_env_revision,
        global_version: is_global.then_some(response.global_policy_version),
        workspace: response.workspace,
        settings: response
            .settings
            .into_iter()
            .map(|(key, setting)| (key, setting_of(setting)))
            .collect(),
        is_later,
    })
}

fn setting_of(EffectiveSetting { value, scope }: EffectiveSetting) -> Setting {
    let value = match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(value)) => value.to_string(),
        Some(Value::IntValue(value)) => value.to_string(),
        Some(Value::BytesValue(bytes)) => format!("{} bytes", bytes.len()),
        None => String::new(),
    };
    let scope = match SettingScope::try_from(scope) {
        Ok(SettingScope::Sandbox) => "sandbox",
        Ok(SettingScope::Global) => "global",
        Ok(SettingScope::Unspecified) | Err(_) => "unknown",
    };
    Setting { value, scope }
}
