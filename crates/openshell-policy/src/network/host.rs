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

/// A pattern of hosts: a name, an IP address, or a name with wildcards. As a label `*` stands for one
/// label, and inside a label for one or more characters; `**` as the first label stands for one or
/// more labels. It is in ASCII (UTS 46) and lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPattern(String);

impl HostPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Fails if a wildcard matches every host or every host of a top-level domain, or if `**` is not
    /// the whole first label; if a glob does not compile; or if the text is neither a name nor an
    /// address, or contains a port, a path or a blank.
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
        let name = ascii
            .strip_suffix('.')
            .unwrap_or(&ascii)
            .to_ascii_lowercase();
        let mut labels = name.split('.');
        let first = labels.next().unwrap_or_default();
        if labels.any(|label| label.contains("**")) || first.contains("**") && first != "**" {
            return Err(ViolationKind::HostWildcardPosition(text.to_owned()));
        }
        let mut last = name.rsplit('.');
        let [last, second] = [last.next(), last.next()].map(Option::unwrap_or_default);
        if last.contains('*') || second.contains('*') {
            return Err(ViolationKind::HostTldWildcard(text.to_owned()));
        }
        if name.split('.').any(str::is_empty) {
            return Err(invalid(InvalidHost::EmptyLabel.to_string()));
        }
        // If a glob matched an IP address, the address would count as listed by the policy.
        let is_glob = |label: &str| label.contains(['?', '[', ']', '{', '}', ',', '\\']);
        if is_number(last) || is_glob(last) || is_glob(second) {
            return Err(invalid(
                "its last two labels must be written out and the last must not be a number"
                    .to_owned(),
            ));
        }
        glob(&name)?;
        Ok(Self(name))
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
    let mut labels = Vec::new();
    for label in pattern.split('.') {
        if label.is_ascii() {
            labels.push(label.to_owned());
        } else if label.contains('*') {
            return Err("a label with `*` must be in ASCII".to_owned());
        } else {
            let ascii = idna::domain_to_ascii(label);
            labels.push(
                ascii.map_err(|_| "it cannot be converted to a DNS name (UTS 46)".to_owned())?,
            );
        }
    }
    Ok(Cow::Owned(labels.join(".")))
}

impl HostPattern {
    /// Returns true if the pattern has no wildcard but `*` and `**`.
    #[must_use]
    pub fn is_simple(&self) -> bool {
        !self.0.contains(['?', '[', ']', '{', '}', '\\'])
    }

    /// Returns true if `host` matches. The pattern must be [simple](Self::is_simple).
    #[must_use]
    pub fn is_simple_match(&self, host: &Host) -> bool {
        match host {
            host if !self.0.contains('*') => host.to_string() == self.0,
            Host::Address(_) => false,
            Host::Name(name) => is_name_match(&self.0, name.as_str()),
        }
    }

    /// Returns the pattern as a glob, whose `*` may stand for no character.
    pub(crate) fn glob(&self) -> String {
        let label = |label: &str| match label {
            "*" | "**" => label.to_owned(),
            label => label.replace('*', "?*"),
        };
        self.0.split('.').map(label).collect::<Vec<_>>().join(".")
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
            GlobBuilder::new(&path(&self.glob()))
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

    /// Returns true if the pattern is exactly this address.
    #[must_use]
    pub fn is_address(&self, address: IpAddr) -> bool {
        self.0.parse() == Ok(address)
    }
}

/// Returns true if the simple `pattern` matches `name`.
fn is_name_match(pattern: &str, name: &str) -> bool {
    let (pattern, name) = match pattern.strip_prefix("**.") {
        None => (pattern, name),
        Some(rest) => {
            let count = rest.split('.').count();
            let mut labels = name.rmatch_indices('.');
            let Some((dot, _)) = labels.nth(count - 1) else {
                return false;
            };
            (rest, name.get(dot + 1..).unwrap_or_default())
        }
    };
    let mut labels = name.split('.');
    let is_match = |wanted| {
        labels
            .next()
            .is_some_and(|label| is_label_match(wanted, label))
    };
    pattern.split('.').all(is_match) && labels.next().is_none()
}

/// Returns true if `pattern`, in which each `*` stands for one or more characters, matches `label`.
fn is_label_match(pattern: &str, label: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == label;
    };
    let Some(mut left) = label.strip_prefix(start) else {
        return false;
    };
    let (middle, end) = rest
        .rsplit_once('*')
        .map_or((None, rest), |(middle, end)| (Some(middle), end));
    for part in middle.into_iter().flat_map(|middle| middle.split('*')) {
        let Some((_, behind)) = left.get(1..).and_then(|behind| behind.split_once(part)) else {
            return false;
        };
        left = behind;
    }
    left.len() > end.len() && left.ends_with(end)
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
    use super::{Host, HostPattern};

    #[test]
    fn a_star_is_one_label_or_one_or_more_characters_of_one() {
        for (pattern, matching, other) in [
            ("*.a.test", "x.a.test", "a.test x.y.a.test x.b.test"),
            ("**.a.test", "x.a.test x.y.a.test", "a.test xa.test"),
            ("**.b.*.a.test", "x.b.c.a.test x.y.b.c.a.test", "b.c.a.test"),
            (
                "*-ai.a.test",
                "eu-ai.a.test x-y-ai.a.test",
                "-ai.a.test eu-ai.b.a.test eu.a.test",
            ),
            ("s3*.a.test", "s3x.a.test", "s3.a.test s.a.test"),
            (
                "s3.*.a.test",
                "s3.eu.a.test",
                "s3.a.test s3.eu.x.a.test s4.eu.a.test",
            ),
            ("*.s3.*.a.test", "b.s3.eu.a.test", "s3.eu.a.test"),
            (
                "a*b*c.a.test",
                "axbxc.a.test axbbc.a.test",
                "abc.a.test axbc.a.test abxc.a.test",
            ),
            ("a.test", "a.test", "b.test"),
        ] {
            let pattern = HostPattern::parse(pattern).unwrap();
            let hosts =
                |names: &'static str| names.split(' ').map(|name| Host::parse(name).unwrap());
            let glob = pattern.clone().matcher();
            for host in hosts(matching) {
                assert!(
                    pattern.is_simple_match(&host) && glob.is_match(&host),
                    "{pattern} {host}"
                );
            }
            for host in hosts(other) {
                assert!(
                    !pattern.is_simple_match(&host) && !glob.is_match(&host),
                    "{pattern} {host}"
                );
            }
        }
    }

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
