//! Credentials: placeholders, sources of secrets, and the hosts and paths that secrets are bound
//! to.

use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;

use crate::network::endpoint::Endpoint;
use crate::network::host::{Host, HostPattern};
use crate::secret::Secret;
use crate::violation::ViolationKind;

/// Prefix of every placeholder; the credential's name follows.
pub const MARKER: &str = "openshell:resolve:env:";

/// Name of a credential and of the variable that holds its placeholder:
/// `[A-Za-z_][A-Za-z0-9_]{0,127}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CredentialName(String);

impl CredentialName {
    /// Length limit in characters.
    pub const MAX: usize = 128;

    /// Parses a name.
    ///
    /// # Errors
    /// Fails if the text is not a valid name.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let is_word = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let begins = text.starts_with(|c: char| !c.is_ascii_digit());
        if is_word && begins && text.len() <= Self::MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(ViolationKind::CredentialName)
        }
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the placeholder that stands for the secret in the sandbox.
    #[must_use]
    pub fn placeholder(&self) -> String {
        format!("{MARKER}{}", self.0)
    }
}

impl fmt::Display for CredentialName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Longest secret in bytes.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;

/// Limit of credentials per sandbox.
pub const MAX_CREDENTIALS: usize = 1_000;

/// Length in bytes below which a secret causes a warning: it can be guessed, and responses contain
/// it by chance.
pub const SHORT_SECRET_BYTES: usize = 8;

/// Checks that `secret` is neither empty nor too long, and contains neither a byte that could end a
/// header line (CWE-113) nor a placeholder.
///
/// # Errors
/// Fails with the first of these conditions that `secret` violates.
pub fn check_secret(secret: &[u8]) -> Result<(), ViolationKind> {
    if secret.is_empty() {
        return Err(ViolationKind::SecretEmpty);
    }
    if secret.len() > MAX_SECRET_BYTES {
        return Err(ViolationKind::SecretTooLong {
            bytes: secret.len(),
            limit: MAX_SECRET_BYTES,
        });
    }
    if secret.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err(ViolationKind::SecretControl);
    }
    if secret
        .windows(MARKER.len())
        .any(|part| part == MARKER.as_bytes())
    {
        return Err(ViolationKind::SecretPlaceholder);
    }
    Ok(())
}

/// Source of a secret.
#[derive(Debug)]
pub enum Source {
    /// A variable of the supervisor that the workload does not get.
    Variable(String),
    /// A file; a newline at its end is not part of the secret.
    File(PathBuf),
    /// The document itself.
    Value(Secret),
}

/// Hosts and paths that a credential may be sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// Permitted hosts and ports; `None` means all that the policy permits.
    pub hosts: Option<Vec<BoundHost>>,
    /// Permitted paths of every host; `None` means all.
    pub path: Option<PathPrefix>,
}

impl Binding {
    /// Returns true if the credential may be sent to `host` at some port.
    #[must_use]
    pub fn includes_host(&self, host: &Host) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| {
            hosts
                .iter()
                .any(|bound| bound.pattern.is_simple_match(host))
        })
    }

    /// Returns true if the credential may be sent to `host` at `port`.
    #[must_use]
    pub fn includes(&self, host: &Host, port: u16) -> bool {
        self.hosts
            .as_ref()
            .is_none_or(|hosts| hosts.iter().any(|bound| bound.includes(host, port)))
    }

    /// Returns true if the credential may be sent to `host` at `port` without TLS: at port 80, or
    /// if it is bound there with `http://`. A credential that is not bound to hosts may be sent
    /// without TLS to every port except 443.
    #[must_use]
    pub fn permits_clear(&self, host: &Host, port: u16) -> bool {
        match &self.hosts {
            Some(hosts) => {
                port == 80
                    || hosts
                        .iter()
                        .any(|bound| bound.is_clear && bound.includes(host, port))
            }
            None => port != 443,
        }
    }

    /// Returns the path prefixes that are permitted at `host` and `port`, of which a request must
    /// have one; `None` if it may have any path.
    #[must_use]
    pub fn prefixes(&self, host: &Host, port: u16) -> Option<Vec<&PathPrefix>> {
        if let Some(path) = &self.path {
            return Some(vec![path]);
        }
        self.hosts
            .iter()
            .flatten()
            .filter(|bound| bound.includes(host, port))
            .map(|bound| bound.path.as_ref())
            .collect::<Option<Vec<_>>>()
            .filter(|prefixes| !prefixes.is_empty())
    }
}

/// Host and port that a credential may be sent to. The host is a name, an IP address, `*.NAME` (one
/// more label) or `**.NAME` (one or more).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundHost {
    pattern: HostPattern,
    port: NonZeroU16,
    path: Option<PathPrefix>,
    /// True if the secret may be sent there without TLS.
    is_clear: bool,
}

impl BoundHost {
    /// The port that applies if none is written.
    const DEFAULT_PORT: NonZeroU16 = NonZeroU16::new(443).unwrap();

    /// Parses `[http://|https://]PATTERN[:PORT]`. An IPv6 address must be in brackets if a port
    /// follows.
    ///
    /// # Errors
    /// Fails as [`HostPattern::parse`] does, and also for another wildcard than `*` and `**` or an
    /// invalid port.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let (is_clear, text) = match text.strip_prefix("http://") {
            Some(text) => (true, text),
            None => (false, text.strip_prefix("https://").unwrap_or(text)),
        };
        let is_bare_address = text.parse::<std::net::Ipv6Addr>().is_ok();
        let (host, port) = match text
            .rsplit_once(':')
            .filter(|_| !is_bare_address && !text.ends_with(']'))
        {
            Some((host, port)) => (host, port.parse().map_err(|_| ViolationKind::PortInvalid)?),
            None => (text, Self::DEFAULT_PORT),
        };
        let pattern = HostPattern::parse(host)?;
        if !pattern.is_simple() {
            return Err(ViolationKind::HostInvalid {
                host: host.to_owned(),
                problem: "the only wildcards are `*` and `**`".to_owned(),
            });
        }
        Ok(Self {
            pattern,
            port,
            path: None,
            is_clear,
        })
    }

    /// Returns the same host and port, restricted to paths with a prefix.
    #[must_use]
    pub fn with_path(self, path: PathPrefix) -> Self {
        Self {
            path: Some(path),
            ..self
        }
    }

    /// Returns true if `endpoint` may permit a host and port that match this one.
    #[must_use]
    pub fn meets(&self, endpoint: &Endpoint) -> bool {
        let Some(permitted) = endpoint.host() else {
            return true;
        };
        endpoint.ports().contains(&self.port)
            && match (self.pattern.host(), permitted.host()) {
                (Some(bound), _) => permitted.matcher().is_match(&bound),
                (None, Some(permitted)) => self.pattern.is_simple_match(&permitted),
                (None, None) => true,
            }
    }

    /// Returns true if `host` and `port` match.
    #[must_use]
    pub fn includes(&self, host: &Host, port: u16) -> bool {
        self.port.get() == port && self.pattern.is_simple_match(host)
    }
}

impl fmt::Display for BoundHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pattern, self.port)
    }
}

/// A prefix of permitted paths, which ends at the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPrefix(String);

impl PathPrefix {
    /// Parses a path, which must be in the canonical form in which requests are judged.
    ///
    /// # Errors
    /// Fails if the text is not such a path.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@/".contains(&byte);
        let Some(rest) = text
            .strip_prefix('/')
            .filter(|_| text.bytes().all(is_plain))
        else {
            return Err(ViolationKind::PathPrefix);
        };
        let mut segments = rest.strip_suffix('/').unwrap_or(rest).split('/');
        if !rest.is_empty() && segments.any(|segment| matches!(segment, "" | "." | "..")) {
            return Err(ViolationKind::PathPrefix);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns true if `path`, in canonical form, begins with the prefix.
    #[must_use]
    pub fn includes(&self, path: &str) -> bool {
        path.strip_prefix(&self.0)
            .is_some_and(|rest| rest.is_empty() || self.0.ends_with('/') || rest.starts_with('/'))
    }
}

/// Configuration of a credential.
#[derive(Debug)]
pub struct CredentialSpec {
    /// The credential's name.
    pub name: CredentialName,
    /// Source of the secret.
    pub source: Source,
    /// Hosts and paths that it may be sent to.
    pub binding: Binding,
}

#[cfg(test)]
mod tests {
    use super::{Binding, BoundHost, PathPrefix, check_secret};
    use crate::network::host::Host;

    #[test]
    fn a_credential_leaves_without_tls_only_where_its_binding_says_so() {
        let host = Host::parse("api.test").unwrap();
        let permits = |bound: Option<&str>, port| {
            let hosts = bound.map(|bound| vec![BoundHost::parse(bound).unwrap()]);
            Binding { hosts, path: None }.permits_clear(&host, port)
        };
        assert!(
            !permits(Some("api.test:8443"), 8443) && !permits(Some("https://api.test:8443"), 8443)
        );
        assert!(!permits(Some("api.test"), 443) && permits(Some("api.test:80"), 80));
        assert!(
            permits(Some("http://api.test:8080"), 8080)
                && !permits(Some("http://api.test:8080"), 8081)
        );
        assert!(permits(None, 8080) && !permits(None, 443));
    }

    #[test]
    fn a_credential_goes_to_its_hosts_and_ports_alone() {
        let includes = |bound: &str, host: &str, port| {
            BoundHost::parse(bound)
                .unwrap()
                .includes(&Host::parse(host).unwrap(), port)
        };
        assert!(includes("api.test", "API.test.", 443) && !includes("api.test", "api.test", 80));
        assert!(
            !includes("api.test", "x.api.test", 443) && !includes("api.test", "evilapi.test", 443)
        );
        assert!(
            includes("*.up.test:8443", "a.up.test", 8443)
                && !includes("*.up.test:8443", "a.up.test", 443)
        );
        assert!(
            !includes("*.up.test", "up.test", 443) && !includes("*.up.test", "a.b.up.test", 443)
        );
        assert!(
            includes("**.up.test", "a.b.up.test", 443) && !includes("**.up.test", "aup.test", 443)
        );
        assert!(
            includes("10.0.0.1:80", "10.0.0.1", 80)
                && includes("[2001:db8::1]:80", "2001:db8::1", 80)
        );
        assert!(
            includes("2001:db8::1", "[2001:db8::1]", 443)
                && includes("[2001:db8::1]", "2001:db8::1", 443)
        );
        for none in [
            "",
            "*",
            "*.test",
            "a?.*.up.test",
            "*.a.*.test",
            "a.test:",
            "a.test:0",
            "a.test:65536",
            "a b",
            "::1:x",
        ] {
            assert!(BoundHost::parse(none).is_err(), "{none}");
        }
    }

    #[test]
    fn a_path_prefix_ends_where_a_segment_does() {
        let includes = |prefix: &str, path: &str| PathPrefix::parse(prefix).unwrap().includes(path);
        assert!(
            includes("/repos/", "/repos/x")
                && !includes("/repos/", "/repos")
                && !includes("/repos/", "/reposx")
        );
        assert!(
            includes("/repos", "/repos")
                && includes("/repos", "/repos/x")
                && !includes("/repos", "/reposx")
        );
        assert!(includes("/", "/anything") && !includes("/", "*"));
        for none in [
            "", "repos", "/a/../b", "/a//b", "/a/.", "/a%2fb", "/a;b", "/a?b", "/ä", "//",
        ] {
            assert!(PathPrefix::parse(none).is_err(), "{none}");
        }
    }

    // Conformance: SEC-10.
    #[test]
    fn what_would_end_a_line_is_no_secret() {
        for none in [
            &b""[..],
            b"a\rb",
            b"a\nb",
            b"a\0",
            b"x openshell:resolve:env:A",
            &[b'a'; 64 * 1024 + 1],
        ] {
            assert!(check_secret(none).is_err());
        }
        for secret in [&b"x"[..], b"a b\tc", b"\xff", &[b'a'; 64 * 1024]] {
            assert_eq!(check_secret(secret), Ok(()));
        }
    }
}
