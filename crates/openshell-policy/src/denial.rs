//! Why something was refused: the closed set of reasons that status lines, bodies, log lines, denials and metrics share.

/// Which part of the sandbox refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the layers of the refusal format")]
pub enum DenialStage {
    L4,
    Identity,
    Ssrf,
    L7,
    Engine,
    Limit,
    Upstream,
    Bypass,
}

impl DenialStage {
    /// The word in refusals and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::L4 => "l4",
            Self::Identity => "identity",
            Self::Ssrf => "ssrf",
            Self::L7 => "l7",
            Self::Engine => "engine",
            Self::Limit => "limit",
            Self::Upstream => "upstream",
            Self::Bypass => "bypass",
        }
    }
}

/// One reason. The variants grow with what can refuse; the words never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`as_str` is the documentation of each")]
pub enum ReasonCode {
    EndpointNotInPolicy,
    BinaryNotInPolicy,
    NoNetworkPolicies,
    NotInThisBuild,
    CallerUnknown,
    CallerChanged,
    CallerAmbiguous,
    InternalAddress,
    AddressNotInAllowedIps,
    AlwaysBlockedAddress,
    ControlPlanePort,
    DnsFailed,
    BadRequest,
    RequestTooLarge,
    PolicyEngineError,
    LimitReached,
    UpstreamUnreachable,
    UpstreamTimeout,
    DirectConnection,
}

impl ReasonCode {
    /// The word on every surface.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EndpointNotInPolicy => "endpoint_not_in_policy",
            Self::BinaryNotInPolicy => "binary_not_in_policy",
            Self::NoNetworkPolicies => "no_network_policies",
            Self::NotInThisBuild => "not_in_this_build",
            Self::CallerUnknown => "caller_unknown",
            Self::CallerChanged => "caller_changed",
            Self::CallerAmbiguous => "caller_ambiguous",
            Self::InternalAddress => "internal_address",
            Self::AddressNotInAllowedIps => "address_not_in_allowed_ips",
            Self::AlwaysBlockedAddress => "always_blocked_address",
            Self::ControlPlanePort => "control_plane_port",
            Self::DnsFailed => "dns_failed",
            Self::BadRequest => "bad_request",
            Self::RequestTooLarge => "request_too_large",
            Self::PolicyEngineError => "policy_engine_error",
            Self::LimitReached => "limit_reached",
            Self::UpstreamUnreachable => "upstream_unreachable",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::DirectConnection => "direct_connection",
        }
    }

    /// Which part of the sandbox gives this reason.
    #[must_use]
    pub fn stage(self) -> DenialStage {
        match self {
            Self::EndpointNotInPolicy | Self::BinaryNotInPolicy | Self::NoNetworkPolicies | Self::NotInThisBuild => {
                DenialStage::L4
            }
            Self::CallerUnknown | Self::CallerChanged | Self::CallerAmbiguous => DenialStage::Identity,
            Self::InternalAddress
            | Self::AddressNotInAllowedIps
            | Self::AlwaysBlockedAddress
            | Self::ControlPlanePort
            | Self::DnsFailed => DenialStage::Ssrf,
            Self::BadRequest => DenialStage::L7,
            Self::PolicyEngineError => DenialStage::Engine,
            Self::RequestTooLarge | Self::LimitReached => DenialStage::Limit,
            Self::UpstreamUnreachable | Self::UpstreamTimeout => DenialStage::Upstream,
            Self::DirectConnection => DenialStage::Bypass,
        }
    }
}
