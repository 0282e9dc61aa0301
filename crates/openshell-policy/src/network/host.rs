//! Normalised host names, and the patterns over them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::network::binary::glob;
use crate::violation::ViolationKind;

/// Why a text is not a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum InvalidHost {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than 253 characters, or has a label longer than 63")]
    TooLong,
    #[error("it has an empty label")]
    EmptyLabel,
    #[error("a host name holds letters, digits, `-`, `_` and `.` only")]
    Character,
    #[error("it ends in a number and is no IP address in canonical notation")]
    NumericNotAddress,
}

/// A DNS name in one spelling: lower case, no trailing dot, no IP address in any notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    /// Normalises `text`.
    ///
    /// # Errors
    /// Whatever is not a name: empty or overlong labels, other characters than `[A-Za-z0-9_.-]`, and anything whose last
    /// label is a number (`127.1`, `0x7f.1`, `2130706433`), which some resolvers would read as an address (URL
    /// Standard, "ends in a number checker").
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() {
            return Err(InvalidHost::Empty);
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')) {
            return Err(InvalidHost::Character);
        }
        if name.split('.').any(str::is_empty) {
            return Err(InvalidHost::EmptyLabel);
        }
        if name.len() > 253 || name.split('.').any(|label| label.len() > 63) {
            return Err(InvalidHost::TooLong);
        }
        if name.rsplit('.').next().is_some_and(is_number) {
            return Err(InvalidHost::NumericNotAddress);
        }
        Ok(Self(name))
    }

    /// The normalised name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x");
    label.bytes().all(|byte| byte.is_ascii_digit())
        || hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Where a client wants to go: a name, or an address in canonical notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// To be resolved.
    Name(HostName),
    /// Written out by the client; an IPv4-mapped one is the IPv4 address that it stands for.
    Address(IpAddr),
}

impl Host {
    /// Reads a host as it stands in a request: a name, an IPv4 address, an IPv6 address with or without brackets.
    ///
    /// # Errors
    /// As [`HostName::parse`].
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(inner) = bare {
            return match inner.parse::<Ipv6Addr>() {
                Ok(address) => Ok(Self::Address(IpAddr::from(address).to_canonical())),
                Err(_) => Err(InvalidHost::Character),
            };
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Ok(Self::Address(address.to_canonical())),
            Err(_) => HostName::parse(text).map(Self::Name),
        }
    }
}

impl fmt::Display for Host {
    /// As policies, log lines and refusals write it; IPv6 without brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Which hosts an endpoint speaks about: a name, an IP address, or a glob that begins `*.` (one label) or `**.` (one or
/// more). Lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPattern(String);

impl HostPattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// A wildcard that matches every host or every host of a top-level domain, one in another place than the front, a
    /// glob that does not compile, or a text that is neither a name nor an address.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        if !text.contains('*') {
            return match Host::parse(text) {
                Ok(host) => Ok(Self(host.to_string())),
                Err(invalid) => Err(ViolationKind::HostInvalid { host: text.to_owned(), problem: invalid.to_string() }),
            };
        }
        if text.bytes().all(|byte| matches!(byte, b'*' | b'.')) {
            return Err(ViolationKind::HostMatchesAll(text.to_owned()));
        }
        if !text.starts_with("*.") && !text.starts_with("**.") {
            return Err(ViolationKind::HostWildcardPosition(text.to_owned()));
        }
        let labels: Vec<_> = text.split('.').filter(|label| !label.is_empty()).collect();
        if labels.len() <= 2 {
            return Err(ViolationKind::HostTldWildcard(text.to_owned()));
        }
        // A pattern that could match an IP address would make it an address that the policy names.
        if labels.last().is_some_and(|last| is_number(last) || last.contains(['*', '?', '[', '{'])) {
            let problem = "its last label must be written out, and be no number".to_owned();
            return Err(ViolationKind::HostInvalid { host: text.to_owned(), problem });
        }
        glob(text)?;
        Ok(Self(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()))
    }
}

impl HostPattern {
    /// Whether a wildcard, if there is one, stands for whole labels in front alone.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        !self.parts().1.contains(['*', '?', '[', ']', '{', '}', '\\'])
    }

    /// Whether `host` is meant by a pattern that [is simple](Self::is_simple).
    #[must_use]
    pub fn is_simple_match(&self, host: &Host) -> bool {
        let (wildcard, rest) = self.parts();
        match (wildcard, host) {
            ("", host) => host.to_string() == rest,
            (_, Host::Address(_)) => false,
            (wildcard, Host::Name(name)) => {
                let labels = name.as_str().strip_suffix(rest).and_then(|labels| labels.strip_suffix('.'));
                labels.is_some_and(|labels| wildcard == "**." || !labels.contains('.'))
            }
        }
    }

    /// The wildcard in front, with its dot, and the rest.
    fn parts(&self) -> (&str, &str) {
        let wildcard = ["**.", "*."].into_iter().find(|wildcard| self.0.starts_with(wildcard)).unwrap_or_default();
        self.0.split_at(wildcard.len())
    }

    /// Whether the pattern is `address`, written out.
    #[must_use]
    pub fn is_address(&self, address: IpAddr) -> bool {
        self.0.parse() == Ok(address)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
