//! Normalised host names and patterns of hosts.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use globset::{GlobBuilder, GlobMatcher};

use crate::network::binary::glob;
use crate::violation::ViolationKind;

/// Reason why a text is not a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum InvalidHost {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than 253 characters, or has a label longer than 63")]
    TooLong,
    #[error("it has an empty label")]
    EmptyLabel,
    #[error("a host name has only letters, digits, `-`, `_` and `.`")]
    Character,
    #[error("it ends in a number but is not an IP address in canonical notation")]
    NumericNotAddress,
}

/// A DNS name in normal form: lower case, no trailing dot, and not an IP address in any notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    /// Normalises `text`.
    ///
    /// # Errors
    /// Fails for an empty or overlong label or name, a character outside `[A-Za-z0-9_.-]`, or a
    /// last label that is a number (`127.1`, `0x7f.1`, `2130706433`). Some resolvers read such a
    /// name as an address (URL Standard, "ends in a number checker").
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() {
            return Err(InvalidHost::Empty);
        }
        if !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        {
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

    /// Returns the normalised name.
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

/// Destination host of a client: a name, or an address in canonical notation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A name to resolve.
    Name(HostName),
    /// An address; an IPv4-mapped one is converted to IPv4.
    Address(IpAddr),
}

impl Host {
    /// Parses the host of a request: a name, an IPv4 address, or an IPv6 address with or without
    /// brackets.
    ///
    /// # Errors
    /// Fails as [`HostName::parse`] does.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
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
    /// Writes the host as policies and log lines do: IPv6 without brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A pattern of hosts: a name, an IP address, or a glob that begins with `*.` (one label) or `**.`
/// (one or more). It is in ASCII (UTS 46) and lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPattern(String);

impl HostPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Fails if a wildcard matches every host or every host of a top-level domain, or is not at the
    /// front; if a glob does not compile; or if the text is neither a name nor an address, or
    /// contains a port, a path or a blank.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let invalid = |problem: String| ViolationKind::HostInvalid {
            host: text.to_owned(),
            problem,
        };
        if let Some(problem) = misplaced(text) {
            return Err(invalid(problem));
        }
        let ascii = in_ascii(text).map_err(invalid)?;
        if !text.contains('*') {
            return match Host::parse(&ascii) {
                Ok(host) => Ok(Self(host.to_string())),
                Err(problem) => Err(invalid(problem.to_string())),
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
        // If a glob matched an IP address, the address would count as listed by the policy.
        if labels
            .last()
            .is_some_and(|last| is_number(last) || last.contains(['*', '?', '[', '{']))
        {
            return Err(invalid(
                "its last label must be written out and must not be a number".to_owned(),
            ));
        }
        glob(&ascii)?;
        Ok(Self(
            ascii
                .strip_suffix('.')
                .unwrap_or(&ascii)
                .to_ascii_lowercase(),
        ))
    }
}

/// Returns what is wrong with a pattern that contains more than a host, and what to write instead.
fn misplaced(text: &str) -> Option<String> {
    if text.contains(char::is_whitespace) {
        return Some(
            "a host name has only letters, digits, `-`, `_` and `.`; remove the blank".to_owned(),
        );
    }
    if let Some((_, rest)) = text.split_once("://") {
        let host = rest.split_once('/').map_or(rest, |(host, _)| host);
        return Some(format!("a scheme is not part of a host; write `{host}`"));
    }
    if let Some((host, _)) = text.split_once('/') {
        return Some(format!(
            "a path is not part of a host; write `{host}`, and paths in `rules`"
        ));
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':');
    is_port
        .then(|| format!("a port is not part of a host; write `host: {host}` and `port: {port}`"))
}

/// Returns the pattern in ASCII, with names in other scripts as the DNS writes them (UTS 46).
///
/// # Errors
/// Fails if the DNS has no such form.
fn in_ascii(pattern: &str) -> Result<Cow<'_, str>, String> {
    if pattern.is_ascii() {
        return Ok(Cow::Borrowed(pattern));
    }
    let start = pattern.rfind('*').map_or(0, |star| star + 1);
    let (wildcards, name) = pattern.split_at(start);
    match idna::domain_to_ascii(name) {
        Ok(ascii) => Ok(Cow::Owned(format!("{wildcards}{ascii}"))),
        Err(_) => Err("it cannot be converted to a DNS name (UTS 46)".to_owned()),
    }
}

impl HostPattern {
    /// Returns true if the pattern has no wildcard except `*.` or `**.` at its beginning.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        !self
            .parts()
            .1
            .contains(['*', '?', '[', ']', '{', '}', '\\'])
    }

    /// Returns true if `host` matches. The pattern must be [simple](Self::is_simple).
    #[must_use]
    pub fn is_simple_match(&self, host: &Host) -> bool {
        let (wildcard, rest) = self.parts();
        match (wildcard, host) {
            ("", host) => host.to_string() == rest,
            (_, Host::Address(_)) => false,
            (wildcard, Host::Name(name)) => {
                let labels = name
                    .as_str()
                    .strip_suffix(rest)
                    .and_then(|labels| labels.strip_suffix('.'));
                labels.is_some_and(|labels| wildcard == "**." || !labels.contains('.'))
            }
        }
    }

    /// Returns the one host that the pattern stands for; `None` if it has a wildcard.
    #[must_use]
    pub fn host(&self) -> Option<Host> {
        Some(&self.0)
            .filter(|text| !text.contains('*'))
            .and_then(|text| Host::parse(text).ok())
    }

    /// Compiles the pattern with the meaning that patterns have in rules. Only the rules decide,
    /// though.
    #[must_use]
    pub fn matcher(&self) -> HostMatcher {
        // A glob treats labels as it does the segments of a path.
        let glob = || {
            GlobBuilder::new(&path(&self.0))
                .literal_separator(true)
                .build()
                .ok()
        };
        let glob = if self.is_simple() {
            None
        } else {
            glob().map(|glob| glob.compile_matcher())
        };
        HostMatcher {
            pattern: self.clone(),
            glob,
        }
    }

    /// Splits off the leading wildcard together with its dot.
    fn parts(&self) -> (&str, &str) {
        let wildcard = ["**.", "*."]
            .into_iter()
            .find(|wildcard| self.0.starts_with(wildcard))
            .unwrap_or_default();
        self.0.split_at(wildcard.len())
    }

    /// Returns true if the pattern is exactly this address.
    #[must_use]
    pub fn is_address(&self, address: IpAddr) -> bool {
        self.0.parse() == Ok(address)
    }
}

/// Returns the name with its labels as segments of a path.
fn path(name: &str) -> String {
    name.replace('.', "/")
}

/// A compiled pattern of hosts.
#[derive(Clone, Debug)]
pub struct HostMatcher {
    pattern: HostPattern,
    /// `None` for a simple pattern.
    glob: Option<GlobMatcher>,
}

impl HostMatcher {
    /// Returns true if `host` matches.
    #[must_use]
    pub fn is_match(&self, host: &Host) -> bool {
        match (&self.glob, host) {
            (Some(glob), Host::Name(name)) => glob.is_match(path(name.as_str())),
            (Some(_), Host::Address(_)) => false,
            (None, host) => self.pattern.is_simple() && self.pattern.is_simple_match(host),
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::HostPattern;

    #[test]
    fn a_host_in_its_own_script_means_the_name_that_the_dns_has() {
        for (text, ascii) in [
            ("bücher.example", "xn--bcher-kva.example"),
            ("Bücher.example", "xn--bcher-kva.example"),
            ("bu\u{308}cher.example", "xn--bcher-kva.example"),
            ("*.россия.рф", "*.xn--h1alffa9f.xn--p1ai"),
            ("**.例え.テスト", "**.xn--r8jz45g.xn--zckzah"),
        ] {
            assert_eq!(
                HostPattern::parse(text).unwrap().to_string(),
                ascii,
                "{text}"
            );
        }
        assert!(
            HostPattern::parse("a\u{200d}b.example").is_err(),
            "a joiner between letters"
        );
    }

    #[test]
    fn a_port_path_or_blank_in_a_host_is_an_error_with_the_form_to_write() {
        for (text, remedy) in [
            (
                "example.com:443",
                "write `host: example.com` and `port: 443`",
            ),
            (
                "*.example.com:443",
                "write `host: *.example.com` and `port: 443`",
            ),
            (
                "*.example.com/x",
                "write `*.example.com`, and paths in `rules`",
            ),
            ("https://example.com/x", "write `example.com`"),
            ("*.exa mple.com", "remove the blank"),
            ("example.com ", "remove the blank"),
        ] {
            let error = HostPattern::parse(text).unwrap_err().to_string();
            assert!(error.contains(remedy), "{text}: {error}");
        }
        for address in ["::1", "2001:db8::443", "10.0.0.1"] {
            assert!(HostPattern::parse(address).is_ok(), "{address}");
        }
    }
}
