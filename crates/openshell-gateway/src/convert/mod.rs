//! Conversion between the gateway's messages and the types of the supervisor. No other code sees a
//! message.

pub mod config;
pub mod denials;
pub mod drafts;
pub mod environment;
mod json;
pub mod logs;
pub mod policy;
pub mod routes;
mod rpc;
mod unknown;

#[cfg(test)]
mod tests {
    use openshell_policy::yaml;
    use prost::Message;

    use super::{config, environment, policy, routes};
    use crate::proto::inference::v1::{GetInferenceBundleResponse, ResolvedRoute};
    use crate::proto::sandbox::v1::{
        EffectiveSetting, FilesystemPolicy, GetSandboxConfigResponse, GraphqlOperation, L7Allow,
        L7QueryMatcher, L7Rule, LandlockPolicy, McpOptions, NetworkBinary,
        NetworkCredentialBinding, NetworkEndpoint, NetworkPolicyRule, ProcessPolicy, SandboxPolicy,
    };
    use crate::proto::v1::{
        GetSandboxProviderEnvironmentResponse, ProviderProfileCredential, StaticCredentialBinding,
        StaticCredentialEndpointBinding,
    };

    fn text(text: &str) -> String {
        text.to_owned()
    }

    /// Returns an endpoint with something in every field that is a message, a list or a map.
    fn endpoint() -> NetworkEndpoint {
        let matcher = L7QueryMatcher {
            any: vec![text("1*"), text("2")],
            ..L7QueryMatcher::default()
        };
        let allow = L7Allow {
            method: text("GET"),
            path: text("/a/**"),
            query: [(text("k"), matcher)].into(),
            ..L7Allow::default()
        };
        NetworkEndpoint {
            host: text("*.api.test"),
            ports: vec![443, 8443],
            protocol: text("rest"),
            enforcement: text("enforce"),
            rules: vec![L7Rule { allow: Some(allow) }],
            allowed_ips: vec![text("10.0.0.0/8")],
            graphql_persisted_queries: [(text("q"), GraphqlOperation::default())].into(),
            mcp: Some(McpOptions::default()),
            credential_binding: Some(NetworkCredentialBinding {
                provider: text("p"),
            }),
            ..NetworkEndpoint::default()
        }
    }

    fn policy_message() -> SandboxPolicy {
        let plain = NetworkEndpoint {
            mcp: None,
            graphql_persisted_queries: [].into(),
            ..endpoint()
        };
        let rule = NetworkPolicyRule {
            name: text("web"),
            endpoints: vec![plain, endpoint()],
            binaries: vec![NetworkBinary {
                path: text("/usr/bin/curl"),
                ..NetworkBinary::default()
            }],
        };
        let filesystem = FilesystemPolicy {
            include_workdir: true,
            read_only: vec![text("/usr")],
            read_write: vec![text("/tmp")],
        };
        SandboxPolicy {
            version: 1,
            filesystem: Some(filesystem),
            landlock: Some(LandlockPolicy {
                compatibility: text("best_effort"),
            }),
            process: Some(ProcessPolicy {
                run_as_user: text("app"),
                run_as_group: text("998"),
            }),
            network_policies: [(text("web"), rule)].into(),
            ..SandboxPolicy::default()
        }
    }

    #[test]
    fn fuzzed_messages_of_a_gateway_are_refused_or_read_and_what_is_read_is_valid() {
        let config = GetSandboxConfigResponse {
            policy: Some(policy_message().encode_to_vec()),
            version: 3,
            settings: [(text("ocsf_json_enabled"), EffectiveSetting::default())].into(),
            ..GetSandboxConfigResponse::default()
        };
        let bound = StaticCredentialEndpointBinding {
            host: text("api.test"),
            ..Default::default()
        };
        let binding = StaticCredentialBinding {
            endpoints: vec![bound],
            ..Default::default()
        };
        let credentials = GetSandboxProviderEnvironmentResponse {
            environment: [(text("API_KEY"), text("value"))].into(),
            credential_expires_at_ms: [(text("API_KEY"), -1)].into(),
            dynamic_credentials: [(text("d"), ProviderProfileCredential::default())].into(),
            static_credential_bindings: [(text("API_KEY"), binding)].into(),
            non_secret_environment_keys: vec![text("REGION")],
            ..GetSandboxProviderEnvironmentResponse::default()
        };
        let route = ResolvedRoute {
            name: text("r"),
            base_url: text("https://a.test/v1"),
            ..ResolvedRoute::default()
        };
        let bundle = GetInferenceBundleResponse {
            routes: vec![route],
            ..GetInferenceBundleResponse::default()
        };
        let samples = [
            config.encode_to_vec(),
            credentials.encode_to_vec(),
            bundle.encode_to_vec(),
        ];
        let words = [
            endpoint().encode_to_vec(),
            policy_message().encode_to_vec(),
            vec![0xff; 9],
            vec![0x80; 12],
        ];
        let sample = policy::decode(&policy_message().encode_to_vec()).unwrap();
        yaml::policy_of_gateway(&sample.document).unwrap();
        let mut decoded = 0;
        let mut valid = 0;
        fuzz::fuzz(
            "messages",
            &samples.each_ref().map(Vec::as_slice),
            &words.each_ref().map(Vec::as_slice),
            |bytes| {
                if let Ok(response) = GetSandboxConfigResponse::decode(bytes) {
                    decoded += 1;
                    let sent = response.policy.as_deref().map(policy::decode);
                    if let Some(Ok(sent)) = sent
                        && let Ok((read, _)) = yaml::policy_of_gateway(&sent.document)
                    {
                        valid += 1;
                        // What is sent back is also a valid policy.
                        let sent = policy::decode(&policy::encoded(&read)).unwrap();
                        assert!(yaml::policy_of_gateway(&sent.document).is_ok());
                    }
                    let _: Result<_, _> = config::read(response);
                }
                let _ = GetSandboxProviderEnvironmentResponse::decode(bytes).map(environment::read);
                let _ = GetInferenceBundleResponse::decode(bytes).map(routes::read);
            },
        );
        assert!(decoded > 100 && valid > 20, "{decoded} {valid}");
    }
}
