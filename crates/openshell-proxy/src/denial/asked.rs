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
        let Facts::Addresses(_, AddressFault::Unlisted(addresses)) = self.facts() else {
            return &[];
        };
        addresses
    }
}
