//! Refusals that a person is asked about.

use std::net::IpAddr;

use crate::denial::refusal::{AddressFault, Facts, Refusal};

impl Refusal {
    /// Returns the same refusal after a person was asked, who `has_denied` it or did not answer.
    #[must_use]
    pub fn asked(mut self, has_denied: bool) -> Self {
        self.asked = Some(if has_denied { "denied" } else { "expired" });
        self
    }

    /// Returns the addresses of the host that the policy does not list.
    #[must_use]
    pub fn unlisted_addresses(&self) -> &[IpAddr] {
        match self.facts() {
            Facts::Addresses(_, AddressFault::Unlisted(addresses)) => addresses,
            Facts::Addresses(_, AddressFault::NeverReachable | AddressFault::Other)
            | Facts::None
            | Facts::Nearest(_)
            | Facts::Policy(_)
            | Facts::Request(_)
            | Facts::Authority(_)
            | Facts::NoCredential(_)
            | Facts::CredentialHost(_)
            | Facts::CredentialPath(_)
            | Facts::Leak(_)
            | Facts::Placeholder
            | Facts::Program(..)
            | Facts::Model(_) => &[],
        }
    }
}
