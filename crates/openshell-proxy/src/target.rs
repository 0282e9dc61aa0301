//! Hosts, ports and schemes that clients ask for.

use std::fmt;

use openshell_policy::network::host::Host;

/// How a request reaches its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// As it is.
    Http,
    /// Inside TLS.
    Https,
}

impl Scheme {
    /// The word in URLs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that a URL means which says none (RFC 9110 §4.2).
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Where a client wants to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Normalised.
    pub host: Host,
    /// Never 0.
    pub port: u16,
}

impl Target {
    /// The host as it stands in a URL.
    #[must_use]
    pub fn without_port(&self) -> String {
        match &self.host {
            Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
            host => host.to_string(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.without_port(), self.port)
    }
}

/// Where an HTTP request goes: the server that a URL names (RFC 9110 §4.3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The scheme of its URLs.
    pub scheme: Scheme,
    /// Its host and port.
    pub target: Target,
}

/// A port from 1 on, as digits without sign or leading zero.
pub(crate) fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port: &u16| *port != 0 && port.to_string() == text)
}
