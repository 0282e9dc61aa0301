//! Hosts, ports and schemes that clients ask for.

use std::fmt;

use openshell_policy::network::host::Host;

/// The scheme of a request's origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In clear text.
    Http,
    /// Inside TLS.
    Https,
}

impl Scheme {
    /// Returns the scheme as it is written in URLs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the default port of the scheme (RFC 9110 §4.2).
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The host and port that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host in normal form.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

impl Target {
    /// Returns the host as it is written in a URL.
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

/// The server of an HTTP request, as its URL names it (RFC 9110 §4.3.1).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The scheme of its URLs.
    pub scheme: Scheme,
    /// The host and port.
    pub target: Target,
}

/// Parses a port, which is at least 1, from digits without sign or leading zero.
pub(crate) fn port(text: &str) -> Option<u16> {
    text.parse()
        .ok()
        .filter(|port: &u16| *port != 0 && port.to_string() == text)
}
