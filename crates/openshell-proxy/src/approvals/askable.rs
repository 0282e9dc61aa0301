//! What is asked: the closed list of reasons that a person may undo.

use openshell_events::reason::ReasonCode;

/// What is held of something that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A connection, or a request that is not in a tunnel.
    Connection,
    /// A request, or one message in it.
    Request,
    /// A connection whose name is permitted, but not its addresses.
    Addresses,
}

/// Returns what is held of something that is refused with `code`; `None` if it is never asked.
#[must_use]
pub const fn held(code: ReasonCode) -> Option<Held> {
    match code {
        ReasonCode::EndpointNotInPolicy
        | ReasonCode::BinaryNotInPolicy
        | ReasonCode::NoNetworkPolicies => Some(Held::Connection),
        ReasonCode::RequestNotInRules => Some(Held::Request),
        ReasonCode::InternalAddress | ReasonCode::AddressNotInAllowedIps => Some(Held::Addresses),
        ReasonCode::PolicyChanged
        | ReasonCode::NotInThisBuild
        | ReasonCode::PolicyInvalid
        | ReasonCode::CallerUnknown
        | ReasonCode::CallerChanged
        | ReasonCode::CallerModified
        | ReasonCode::AlwaysBlockedAddress
        | ReasonCode::ControlPlanePort
        | ReasonCode::DnsFailed
        | ReasonCode::AuthorityUnavailable
        | ReasonCode::ClientTlsFailed
        | ReasonCode::UpstreamTlsInvalid
        | ReasonCode::AuthorityMismatch
        | ReasonCode::RequestInDenyRules
        | ReasonCode::EndpointsAmbiguous
        | ReasonCode::BadRequest
        | ReasonCode::MessageInvalid
        | ReasonCode::UnsupportedL7Protocol
        | ReasonCode::UnsolicitedUpgrade
        | ReasonCode::CredentialUnknown
        | ReasonCode::CredentialUnsafe
        | ReasonCode::CredentialNotReplaceable
        | ReasonCode::CredentialEndpointMismatch
        | ReasonCode::SecretInRequest
        | ReasonCode::InferenceNotConfigured
        | ReasonCode::InferencePathNotAllowed
        | ReasonCode::InferenceNoRoute
        | ReasonCode::InferenceBudgetExhausted
        | ReasonCode::InferenceUnavailable
        | ReasonCode::InferenceError
        | ReasonCode::UnsupportedEncoding
        | ReasonCode::UpgradeRefused
        | ReasonCode::RequestTooLarge
        | ReasonCode::PolicyEngineError
        | ReasonCode::LimitReached
        | ReasonCode::UpstreamUnreachable
        | ReasonCode::UpstreamTimeout
        | ReasonCode::UpstreamWantsCertificate
        | ReasonCode::DirectConnection => None,
    }
}

#[cfg(test)]
mod tests {
    use openshell_events::reason::ReasonCode;

    use super::held;

    #[test]
    fn of_all_reasons_exactly_those_that_a_line_of_policy_could_undo_are_asked() {
        let asked: Vec<_> = ReasonCode::ALL
            .iter()
            .filter(|code| held(**code).is_some())
            .map(|code| code.as_str())
            .collect();
        assert_eq!(
            asked,
            [
                "endpoint_not_in_policy",
                "binary_not_in_policy",
                "no_network_policies",
                "internal_address",
                "address_not_in_allowed_ips",
                "request_not_in_rules",
            ]
        );
    }
}
