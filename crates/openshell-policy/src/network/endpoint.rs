//! Endpoints: host pattern, ports, protocol, TLS mode, enforcement, allowed addresses.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use crate::address::AddressRange;
use crate::network::host::HostPattern;
use crate::network::preset::Access;
use crate::network::rpc::RpcRules;
use crate::network::rule::{DenyRule, Glob, HttpRule};
use crate::violation::ViolationKind;

/// A permitted destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    host: Option<HostPattern>,
    ports: BTreeSet<NonZeroU16>,
    path: Option<Glob>,
    l7: Option<L7>,
    tls: TlsMode,
    allowed_ips: Vec<AddressRange>,
    resolve: Vec<HostPattern>,
    allow_encoded_slash: bool,
    upgrades: BTreeSet<UpgradeProtocol>,
    allows_leaks: bool,
    is_tcp: bool,
    unsupported: Option<String>,
}

/// Rules for the requests of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct L7 {
    /// Protocol of the connection.
    pub protocol: Protocol,
    /// Handling of requests that no rule allows.
    pub enforcement: Enforcement,
    /// Allow rules for HTTP requests, of which at least one must match.
    pub rules: Vec<HttpRule>,
    /// Deny rules for HTTP requests, of which none may match.
    pub deny_rules: Vec<DenyRule>,
    /// Rules for the messages of JSON-RPC and MCP in place of those for HTTP requests.
    pub rpc: Option<RpcRules>,
}

impl L7 {
    /// Returns true if there are deny rules.
    #[must_use]
    pub fn has_deny_rules(&self) -> bool {
        let of_rpc = self
            .rpc
            .as_ref()
            .is_some_and(|rpc| !rpc.deny_rules.is_empty());
        !self.deny_rules.is_empty() || of_rpc
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn count(&self) -> usize {
        let of_rpc = self.rpc.as_ref().map_or(0, |rpc| {
            rpc.rules.as_ref().map_or(0, Vec::len) + rpc.deny_rules.len()
        });
        self.rules.len() + self.deny_rules.len() + of_rpc
    }
}

/// Protocol of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP; every request is judged.
    Rest,
    /// JSON-RPC 2.0 over HTTP; every message is judged.
    JsonRpc,
    /// The Model Context Protocol over HTTP; every message is judged.
    Mcp,
    /// SQL, relayed as bytes and audited per connection.
    Sql,
    /// Bytes that are never inspected, TLS included.
    Tcp,
}

impl Protocol {
    /// Parses the word of a policy, case-insensitively.
    ///
    /// # Errors
    /// Fails for any other word.
    pub fn parse(word: &str) -> Result<Self, ViolationKind> {
        match word.to_ascii_lowercase().as_str() {
            "rest" => Ok(Self::Rest),
            "json-rpc" => Ok(Self::JsonRpc),
            "mcp" => Ok(Self::Mcp),
            "sql" => Ok(Self::Sql),
            "tcp" => Ok(Self::Tcp),
            _ => Err(ViolationKind::UnknownWord {
                word: word.to_owned(),
                known: "rest, json-rpc, mcp, sql, tcp",
            }),
        }
    }

    /// Returns the word that policies use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::JsonRpc => "json-rpc",
            Self::Mcp => "mcp",
            Self::Sql => "sql",
            Self::Tcp => "tcp",
        }
    }

    /// Returns true if messages in the bodies of requests are judged.
    #[must_use]
    pub fn is_rpc(self) -> bool {
        matches!(self, Self::JsonRpc | Self::Mcp)
    }
}

/// A protocol that requests may switch to (RFC 9110 §7.8), in lower case. The bytes after the
/// switch are not judged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UpgradeProtocol(String);

impl UpgradeProtocol {
    /// Parses a name with or without a version, case-insensitively.
    ///
    /// # Errors
    /// Fails if the text is not such a name; for WebSocket, which needs no permission; and for HTTP
    /// and TLS, because their requests would pass unseen.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let word = text.to_ascii_lowercase();
        let (name, version) = word
            .split_once('/')
            .map_or((word.as_str(), None), |(name, version)| {
                (name, Some(version))
            });
        let is_token = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte))
        };
        let is_judged = name == "websocket"
            || ["http", "h2", "tls"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
        if is_token(name) && version.is_none_or(is_token) && !is_judged {
            Ok(Self(word))
        } else {
            Err(ViolationKind::UpgradeInvalid(text.to_owned()))
        }
    }

    /// Returns the word that policies use.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Handling of requests that no rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Record and pass them.
    Audit,
    /// Refuse them.
    Enforce,
}

impl Enforcement {
    /// Parses the word of a policy.
    ///
    /// # Errors
    /// Fails for any other word.
    pub fn parse(word: &str) -> Result<Self, ViolationKind> {
        match word {
            "audit" => Ok(Self::Audit),
            "enforce" => Ok(Self::Enforce),
            _ => Err(ViolationKind::UnknownWord {
                word: word.to_owned(),
                known: "enforce, audit",
            }),
        }
    }

    /// Returns the word that policies use.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Audit => "audit",
            Self::Enforce => "enforce",
        }
    }
}

/// Handling of TLS in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Terminate TLS if its content must be inspected.
    Automatic,
    /// Never terminate TLS.
    Skip,
}

/// Parts of an endpoint, each valid by itself.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the names are those of the policy document")]
pub struct EndpointParts {
    pub host: Option<HostPattern>,
    pub port: Option<NonZeroU16>,
    pub ports: Option<Vec<NonZeroU16>>,
    pub path: Option<Glob>,
    pub protocol: Option<Protocol>,
    pub enforcement: Option<Enforcement>,
    pub tls_skip: bool,
    pub access: Option<Access>,
    pub rules: Option<Vec<HttpRule>>,
    pub deny_rules: Option<Vec<DenyRule>>,
    pub rpc: Option<RpcRules>,
    pub allowed_ips: Vec<AddressRange>,
    pub resolve: Vec<HostPattern>,
    pub allow_encoded_slash: bool,
    pub upgrades: Option<BTreeSet<UpgradeProtocol>>,
    pub allows_leaks: bool,
    pub unsupported: Option<String>,
}

impl Endpoint {
    /// Builds an endpoint from its parts.
    ///
    /// # Errors
    /// Fails with every contradiction between the parts.
    pub fn new(mut parts: EndpointParts) -> Result<Self, Vec<ViolationKind>> {
        let mut violations = contradictions(&parts);
        let l7 = l7(&mut parts, &mut violations);
        if !violations.is_empty() {
            return Err(violations);
        }
        Ok(Self {
            ports: parts
                .port
                .into_iter()
                .chain(parts.ports.unwrap_or_default())
                .collect(),
            host: parts.host,
            path: parts.path,
            l7,
            tls: if parts.tls_skip {
                TlsMode::Skip
            } else {
                TlsMode::Automatic
            },
            allowed_ips: parts.allowed_ips,
            resolve: parts.resolve,
            allow_encoded_slash: parts.allow_encoded_slash,
            upgrades: parts.upgrades.unwrap_or_default(),
            allows_leaks: parts.allows_leaks,
            is_tcp: parts.protocol == Some(Protocol::Tcp),
            unsupported: parts.unsupported,
        })
    }

    /// Returns the host pattern; `None` means any host whose addresses are all in
    /// [`Self::allowed_ips`].
    #[must_use]
    pub fn host(&self) -> Option<&HostPattern> {
        self.host.as_ref()
    }

    /// Returns the ports, at least one.
    #[must_use]
    pub fn ports(&self) -> &BTreeSet<NonZeroU16> {
        &self.ports
    }

    /// Returns the glob over the canonical paths of the requests for which the endpoint counts;
    /// `None` means all requests.
    #[must_use]
    pub fn path(&self) -> Option<&Glob> {
        self.path.as_ref()
    }

    /// Returns the rules for requests; `None` means that connections are relayed as bytes.
    #[must_use]
    pub fn l7(&self) -> Option<&L7> {
        self.l7.as_ref()
    }

    /// Returns the handling of TLS.
    #[must_use]
    pub fn tls(&self) -> TlsMode {
        self.tls
    }

    /// Returns the permitted addresses of the host; empty means public ones.
    #[must_use]
    pub fn allowed_ips(&self) -> &[AddressRange] {
        &self.allowed_ips
    }

    /// Returns the patterns of names that may be looked up if there is no host, to check whether
    /// their addresses are permitted.
    #[must_use]
    pub fn resolve(&self) -> &[HostPattern] {
        &self.resolve
    }

    /// Returns true if the policy explicitly permits `%2F` in paths.
    #[must_use]
    pub fn allow_encoded_slash(&self) -> bool {
        self.allow_encoded_slash
    }

    /// Returns the protocols that requests may switch to, besides WebSocket.
    #[must_use]
    pub fn upgrades(&self) -> &BTreeSet<UpgradeProtocol> {
        &self.upgrades
    }

    /// Returns true if requests may contain secrets (`leaks: allow`).
    #[must_use]
    pub fn allows_leaks(&self) -> bool {
        self.allows_leaks
    }

    /// Returns true if `%2F` may occur in a path: either the policy permits it, or neither the
    /// endpoint nor a rule has a path pattern that could match one reading of the path and not the
    /// other.
    #[must_use]
    pub fn takes_encoded_slash(&self) -> bool {
        let rules = |l7: &L7| {
            l7.rules
                .iter()
                .chain(l7.deny_rules.iter().map(|deny| &deny.rule))
                .all(|rule| rule.path.is_everything())
        };
        self.allow_encoded_slash || self.path.is_none() && self.l7.as_ref().is_some_and(rules)
    }

    /// Returns what a gateway demands of this endpoint that this build does not have, for which
    /// every connection is refused; `None` if the build has everything.
    #[must_use]
    pub fn unsupported(&self) -> Option<&str> {
        self.unsupported.as_deref()
    }

    /// Returns true if connections are relayed as bytes that are never inspected.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.is_tcp
    }
}

/// Returns the contradictions between parts that do not concern the rules of a protocol.
fn contradictions(parts: &EndpointParts) -> Vec<ViolationKind> {
    let has_ports = parts.ports.as_ref().is_some_and(|ports| !ports.is_empty());
    let rpc_rules = parts.rpc.as_ref().and_then(|rpc| rpc.rules.as_ref());
    let has_empty_rules =
        parts.rules.as_ref().is_some_and(Vec::is_empty) || rpc_rules.is_some_and(Vec::is_empty);
    let is_rpc = parts.protocol.is_some_and(Protocol::is_rpc);
    let is_tcp = parts.protocol == Some(Protocol::Tcp);
    let is_narrowed = parts.rules.is_some()
        || parts.upgrades.is_some()
        || parts.deny_rules.is_some()
        || parts.access.is_some_and(|access| access != Access::Full);
    let checks = [
        (
            parts.host.is_none() && parts.allowed_ips.is_empty(),
            ViolationKind::EndpointWithoutHost,
        ),
        (
            parts.port.is_some() && parts.ports.is_some(),
            ViolationKind::PortAndPorts,
        ),
        (
            parts.port.is_none() && !has_ports,
            ViolationKind::PortMissing,
        ),
        (has_empty_rules, ViolationKind::RulesEmpty),
        (
            !has_empty_rules && parts.rules.is_some() && parts.access.is_some(),
            ViolationKind::RulesAndAccess,
        ),
        (
            parts.tls_skip && parts.protocol.is_some(),
            ViolationKind::TlsSkipWithL7,
        ),
        (
            parts.host.is_some() && !parts.resolve.is_empty(),
            ViolationKind::ResolveWithHost,
        ),
        (
            is_tcp && parts.host.is_none(),
            ViolationKind::TcpWithoutHost,
        ),
        (is_tcp && is_narrowed, ViolationKind::TcpWithRules),
        (
            is_rpc && parts.access.is_some(),
            ViolationKind::RpcWith("access"),
        ),
        (
            is_rpc && parts.upgrades.is_some(),
            ViolationKind::RpcWith("upgrades"),
        ),
        (
            parts.protocol == Some(Protocol::Mcp) && parts.host.is_none(),
            ViolationKind::McpWithoutHost,
        ),
        (
            parts.path.is_some() && matches!(parts.protocol, Some(Protocol::Sql | Protocol::Tcp)),
            ViolationKind::PathWithoutRequests,
        ),
    ];
    checks
        .into_iter()
        .filter_map(|(is_violated, kind)| is_violated.then_some(kind))
        .collect()
}

/// Takes the rules of the protocol out of `parts`, and adds their contradictions to `violations`.
fn l7(parts: &mut EndpointParts, violations: &mut Vec<ViolationKind>) -> Option<L7> {
    let rules = parts
        .rules
        .take()
        .or_else(|| parts.access.map(Access::rules));
    match (parts.protocol, rules) {
        (Some(Protocol::Tcp), _) => None,
        (Some(protocol), _) if protocol.is_rpc() => {
            let rpc = parts.rpc.take()?;
            let mcp = rpc.mcp.as_ref();
            let allows_all = mcp.is_some_and(|mcp| mcp.allow_all_known_methods);
            if rpc.rules.is_none() && !allows_all {
                violations.push(ViolationKind::RpcWithoutRules);
            }
            violations.extend(rpc.contradictions());
            Some(L7 {
                protocol,
                enforcement: parts.enforcement.unwrap_or(Enforcement::Audit),
                rules: Vec::new(),
                deny_rules: Vec::new(),
                rpc: Some(rpc),
            })
        }
        (Some(protocol), Some(rules)) => {
            let enforcement = parts.enforcement.unwrap_or(Enforcement::Audit);
            if (protocol, enforcement) == (Protocol::Sql, Enforcement::Enforce) {
                violations.push(ViolationKind::SqlEnforce);
            }
            Some(L7 {
                protocol,
                enforcement,
                rules,
                deny_rules: parts.deny_rules.take().unwrap_or_default(),
                rpc: None,
            })
        }
        (Some(_), None) => {
            violations.push(ViolationKind::ProtocolWithoutRules);
            None
        }
        (None, rules) => {
            let strays = [
                ("path", parts.path.is_some()),
                ("rules` or `access", rules.is_some()),
                ("deny_rules", parts.deny_rules.is_some()),
                ("enforcement", parts.enforcement.is_some()),
                ("upgrades", parts.upgrades.is_some()),
            ];
            violations.extend(
                strays
                    .iter()
                    .filter(|(_, stray)| *stray)
                    .map(|(key, _)| ViolationKind::NeedsProtocol(key)),
            );
            None
        }
    }
}
