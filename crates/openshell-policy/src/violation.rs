//! Violations and warnings of policy documents, with their path and line.

use crate::approvals::NoHold;
use std::fmt;

/// Path of a value in a document, such as `network_policies.github.endpoints[0].port`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldPath(String);

impl FieldPath {
    /// Returns the root of the document.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// Returns the path of the value of `key` in this mapping.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        if self.0.is_empty() {
            return Self(key.to_owned());
        }
        Self(format!("{}.{key}", self.0))
    }

    /// Returns the path of the element `index` of this sequence.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reason why a document is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path of the value.
    pub path: FieldPath,
    /// Line in the text, from 1; `None` if the policy was not read from text.
    pub line: Option<u64>,
    /// Kind of violation, which displays as the message.
    pub kind: ViolationKind,
}

/// A doubtful value in a valid document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Path of the value.
    pub path: FieldPath,
    /// Line in the text, from 1; `None` if the policy was not read from text.
    pub line: Option<u64>,
    /// Kind of warning, which displays as the message.
    pub kind: WarningKind,
}

/// All violations of a document, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(pub Vec<Violation>);

impl std::error::Error for Violations {}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about_l7 = self.0.iter().any(|violation| violation.kind.is_about_l7());
        f.write_str(if about_l7 {
            "L7 policy validation failed:"
        } else {
            "policy validation failed:"
        })?;
        self.0
            .iter()
            .try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        located(f, &self.path, self.line)?;
        write!(f, "{}", self.kind)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        located(f, &self.path, self.line)?;
        write!(f, "{}", self.kind)
    }
}

fn located(f: &mut fmt::Formatter<'_>, path: &FieldPath, line: Option<u64>) -> fmt::Result {
    if let Some(line) = line {
        write!(f, "line {line}: ")?;
    }
    if *path == FieldPath::root() {
        Ok(())
    } else {
        write!(f, "{path}: ")
    }
}

/// Kind of violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum ViolationKind {
    #[error("{0}")]
    Syntax(String),
    #[error("the document has {bytes} bytes; at most {limit} are allowed")]
    DocumentTooLarge { bytes: usize, limit: usize },
    #[error("the policy has {count} endpoints; at most {limit} are allowed")]
    TooManyEndpoints { count: usize, limit: usize },
    #[error("the text has {bytes} bytes; at most {limit} are allowed")]
    TextTooLong { bytes: usize, limit: usize },
    #[error("unknown key `{key}`{} known here: {}{}", meant(key, known), known.join(", "), hint(key, known))]
    UnknownKey { key: String, known: Vec<String> },
    #[error("expected {expected}, found {found}")]
    WrongType {
        expected: &'static str,
        found: &'static str,
    },
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("`{word}` is not one of {known}")]
    UnknownWord { word: String, known: &'static str },
    #[error(transparent)]
    NoHold(#[from] NoHold),
    #[error("version {0} is unknown; 1 is the only one")]
    UnknownVersion(String),
    #[error("a policy name is 1 to 128 characters of A-Z a-z 0-9 _ . -")]
    PolicyName,
    #[error("`{0}` is not an absolute path")]
    PathNotAbsolute(String),
    #[error("`{0}` contains `..`")]
    PathTraversal(String),
    #[error("`{0}` is a pattern; name each folder that is to be written")]
    PathPattern(String),
    #[error("`{0}` cannot be hidden: every program needs it")]
    PathNeeded(String),
    #[error("`{hidden}` is hidden, and `{granted}` is granted; list only one of them")]
    HiddenGrant { hidden: String, granted: String },
    #[error("the workload never runs as root; name an unprivileged user or group")]
    RunAsRoot,
    #[error(
        "a user or group is a number below 4294967295, or a name without `:`, `/`, blanks and \
         control characters that does not begin with `-`"
    )]
    RunAsName,
    #[error("host `{0}` matches all hosts; name the hosts that are needed")]
    HostMatchesAll(String),
    #[error("host `{0}`: `**` may only be the whole first label")]
    HostWildcardPosition(String),
    #[error(
        "host `{0}`: TLD wildcard is not allowed; a wildcard needs at least two labels behind it"
    )]
    HostTldWildcard(String),
    #[error("host `{host}`: {problem}")]
    HostInvalid { host: String, problem: String },
    #[error(
        "an endpoint needs a `host`, or `allowed_ips` that say which addresses any host may have"
    )]
    EndpointWithoutHost,
    #[error("`port` and `ports` are mutually exclusive")]
    PortAndPorts,
    #[error("an endpoint needs `port` or `ports`")]
    PortMissing,
    #[error("a port is a whole number from 1 to 65535")]
    PortInvalid,
    #[error("`rules` and `access` are mutually exclusive")]
    RulesAndAccess,
    #[error("`protocol` needs `rules` or `access`, else every request would be refused")]
    ProtocolWithoutRules,
    #[error("`{0}` needs a `protocol`")]
    NeedsProtocol(&'static str),
    #[error("SQL enforcement is not supported; use `enforcement: audit`")]
    SqlEnforce,
    #[error("an empty list would refuse every request; leave `rules` out or add one")]
    RulesEmpty,
    #[error("`path` needs a protocol whose requests have paths; write `protocol: rest`")]
    PathWithoutRequests,
    #[error(
        "it has the host and port of `{other}`, and one of them has a `path`; so both need the same \
         {key}, because no path is known when a connection begins"
    )]
    EndpointsDiffer { other: String, key: &'static str },
    #[error("`{0}` cannot stand beside this protocol; write `rules`")]
    RpcWith(&'static str),
    #[error("`protocol: mcp` needs a `host`")]
    McpWithoutHost,
    #[error(
        "the protocol needs `rules`, else every message would be refused; with `mcp: \
         {{allow_all_known_mcp_methods: true}}` MCP needs none"
    )]
    RpcWithoutRules,
    #[error("`{key}` belongs to `protocol: {protocol}`")]
    OfProtocol {
        key: &'static str,
        protocol: &'static str,
    },
    #[error("`{0}` is not a method; write one method, or `*` for all")]
    RpcMethod(String),
    #[error("`{0}`: a method of MCP is one method, or a pattern such as `tools/*`")]
    McpMethod(String),
    #[error(
        "`method` is missing; only with `mcp: {{allow_all_known_mcp_methods: true}}` may a rule \
         leave it out"
    )]
    McpMethodMissing,
    #[error("`tool` and `params` are two spellings of one thing; keep one")]
    ToolTwice,
    #[error("`{key}` stands only in a rule for {methods}")]
    NeedsMethod {
        key: &'static str,
        methods: &'static str,
    },
    #[error(
        "a pattern of tools needs names of a known form; remove `strict_tool_names: false`, or \
         list the tools"
    )]
    ToolGlobNotStrict,
    #[error(
        "a rule for every `tools/call` stands beside one with `tool`, which then has no effect; \
         remove one of them"
    )]
    ToolRuleWithoutEffect,
    #[error("an empty list would refuse every message; leave `versions` out or add one")]
    VersionsEmpty,
    #[error("expected a whole number of bytes, from 1024 to 16777216")]
    BodyBytes,
    #[error(
        "`{0}` is not a place in arguments; write `key`, `key.key` or `key[*]`, and a key with \
         `.`, `[` or `\"` in double quotes"
    )]
    ArgumentPath(String),
    #[error("`in` needs at least one value")]
    ArgumentInEmpty,
    #[error(
        "`{0}`: a URI has no blanks and no letters of other scripts; write its escapes, such as `%20`"
    )]
    UriGlob(String),
    #[error("a condition compares texts, numbers, true, false and null")]
    ArgumentValue,
    #[error("the number has more than 15 digits, and could be read in several ways")]
    ArgumentDigits,
    #[error("expected `[LOW, HIGH]`, two numbers, of which one may be null, the lower one first")]
    ArgumentRange,
    #[error("what is `absent` has no other conditions; remove them")]
    ArgumentAbsent,
    #[error("`other_arguments` is `deny` or left out, and stands in allow rules")]
    OtherArguments,
    #[error(
        "it has the host, port and path of `{0}`, and another `protocol`; so no request could be \
         judged; give one of them a `path` of its own"
    )]
    ProtocolsDiffer(String),
    #[error("`tls: skip` hides the requests that `protocol` asks to judge; remove one of them")]
    TlsSkipWithL7,
    #[error(
        "the proxy never inspects `protocol: tcp`; remove `rules`, `deny_rules`, `upgrades` and \
         any `access` but `full`"
    )]
    TcpWithRules,
    #[error(
        "`{0}` cannot be listed here; name a protocol such as `tcp` or `spdy/3.1`; WebSocket needs \
         no entry, and HTTP/2 and TLS are never permitted"
    )]
    UpgradeInvalid(String),
    #[error("{0} is the sandbox's own, and no policy decides about it")]
    OwnHost(&'static str),
    #[error("`protocol: tcp` needs a `host`")]
    TcpWithoutHost,
    #[error(
        "`resolve` says which names an endpoint without `host` may look up; remove one of them"
    )]
    ResolveWithHost,
    #[error("expected a map of query keys to matchers")]
    QueryNotMap,
    #[error("a query matcher is a glob, `{{glob: …}}` or `{{any: [glob, …]}}`")]
    MatcherShape,
    #[error("`glob` and `any` are mutually exclusive")]
    MatcherGlobAndAny,
    #[error("`any` needs at least one glob")]
    MatcherAnyEmpty,
    #[error(
        "`{method}` is not an HTTP method; a method is `*` or letters, digits and !#$%&'*+-.^_`|~"
    )]
    MethodInvalid { method: String },
    #[error("glob `{glob}`: {problem}")]
    GlobInvalid { glob: String, problem: String },
    #[error("`{0}` is not an IP address or CIDR range")]
    AddressInvalid(String),
    #[error("the name of a credential is a letter or `_`, then up to 127 letters, digits and `_`")]
    CredentialName,
    #[error(
        "`{0}` is a variable that the sandbox sets or removes itself; a credential needs another \
         name"
    )]
    CredentialNameTaken(String),
    #[error("exactly one of `env`, `file` and `value` says where the secret is")]
    CredentialSource,
    #[error("there are {count} credentials; at most {limit} are allowed")]
    TooManyCredentials { count: usize, limit: usize },
    #[error("an empty list would refuse the credential everywhere; name the hosts it is for")]
    HostsEmpty,
    #[error(
        "a path begins with `/`, and has neither escapes, nor a query, nor empty or dot segments"
    )]
    PathPrefix,
    #[error("the name of a variable is not empty, and has neither `=` nor NUL")]
    VariableName,
    #[error("`{0}` is not http://HOST[:PORT][/PATH], https://HOST[:PORT][/PATH] or mock://NAME")]
    EndpointInvalid(String),
    #[error("there are {count} routes; at most {limit} are allowed")]
    TooManyRoutes { count: usize, limit: usize },
    #[error("the text is empty or has control characters")]
    WordEmpty,
    #[error("the route has no protocols; list at least one")]
    NoInterfaces,
    #[error("`{0}` is not one of any, local, which say who runs tools")]
    ToolsUnknown(String),
    #[error("exactly one of `api_key`, `api_key_env` and `api_key_file` says where the key is")]
    KeySource,
    #[error("expected a whole number of seconds, from 1 to 86400")]
    Seconds,
    #[error("expected a whole number, from 1 on")]
    Count,
    #[error("at most {0} bytes are allowed")]
    RequestBytes(usize),
    #[error("the secret is empty")]
    SecretEmpty,
    #[error("the secret has {bytes} bytes; at most {limit} are allowed")]
    SecretTooLong { bytes: usize, limit: usize },
    #[error("the secret holds CR, LF or NUL, which a header cannot carry")]
    SecretControl,
    #[error("the secret holds a placeholder; give the secret itself")]
    SecretPlaceholder,
    #[error("{0}")]
    ReadOnlyWritable(ReadOnlyWritable),
    #[error(
        "`{0}` overlaps addresses that are never reachable (loopback, link-local, unspecified, \
         metadata, multicast)"
    )]
    AddressAlwaysBlocked(String),
}

/// Returns a suggestion of the known key that is most like `key`, if one is similar enough.
fn meant(key: &str, known: &[String]) -> String {
    let likeness = |known: &String| strsim::jaro_winkler(key, known);
    let nearest = known
        .iter()
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    let is_like = |known: &&String| likeness(known) >= LIKENESS;
    nearest.filter(is_like).map_or_else(
        || ";".to_owned(),
        |known| format!(": did you mean `{known}`?"),
    )
}

/// Jaro-Winkler similarity, at most 1, from which one word may be meant by the other.
const LIKENESS: f64 = 0.85;

/// Returns a hint for a key that other kinds of documents have.
fn hint(key: &str, known: &[String]) -> &'static str {
    let is_known = |other: &str| known.iter().any(|known| known == other);
    match key {
        "route" => " (the name of a route is its `name`)",
        "tool" if is_known("method") => " (rules for tools need `protocol: mcp`)",
        _ => "",
    }
}

impl ViolationKind {
    /// Returns true if the violation concerns the inspection of connections.
    fn is_about_l7(&self) -> bool {
        matches!(
            self,
            Self::HostMatchesAll(_)
                | Self::HostWildcardPosition(_)
                | Self::HostTldWildcard(_)
                | Self::PortAndPorts
                | Self::RulesAndAccess
                | Self::ProtocolWithoutRules
                | Self::NeedsProtocol(_)
                | Self::SqlEnforce
                | Self::RulesEmpty
                | Self::TlsSkipWithL7
                | Self::TcpWithRules
                | Self::QueryNotMap
                | Self::MatcherShape
                | Self::MatcherGlobAndAny
                | Self::MatcherAnyEmpty
        )
    }
}

/// A path of `read_only` that is also granted for writing. Grants of one path add up, so it would
/// be writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOnlyWritable {
    /// The path of `read_only`.
    pub path: String,
    /// The same path, as it is granted for writing.
    pub writable: String,
    /// Line of that path in `read_write`; `None` if it is writable in every sandbox.
    pub line: Option<u64>,
}

impl fmt::Display for ReadOnlyWritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            writable,
            line,
        } = self;
        write!(f, "`{path}` is not read-only: ")?;
        match line {
            Some(line) => write!(
                f,
                "`read_write` lists `{writable}` too (line {line}); list it once"
            ),
            None => write!(
                f,
                "every sandbox may write in `{writable}`; keep it elsewhere"
            ),
        }
    }
}

/// Kind of warning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum WarningKind {
    #[error(
        "`enforcement` is left out, so the rules refuse nothing at {0} and violations are only \
         recorded; write `enforcement: enforce` or `audit`"
    )]
    EnforcementDefaults(String),
    #[error("{0}")]
    ReadOnlyWritable(ReadOnlyWritable),
    #[error("`tls: {0}` is deprecated and means automatic; leave it out")]
    TlsWordDeprecated(String),
    #[error("the proxy relays `protocol: sql` as bytes and does not inspect its statements")]
    SqlNotInspected,
    #[error("{0} is not in this build: every connection is refused")]
    Unsupported(String),
    #[error(
        "it has the host and port of `{other}`, one of them has a `path`, and they differ in {key}: \
         every connection is refused"
    )]
    EndpointsDiffer { other: String, key: &'static str },
    #[error(
        "it has the host, port and path of `{0}`, and another `protocol`: every request of that \
         path is refused"
    )]
    ProtocolsDiffer(String),
    #[error(
        "without `host`, the endpoint permits only connections to IP addresses; `resolve: \
         [\"*.corp.example\"]` names the domains whose names may be looked up"
    )]
    NamesNotResolved,
    #[error("Unknown HTTP method `{0}`")]
    UnknownMethod(String),
    #[error("this build knows no method `{0}` of MCP")]
    UnknownMcpMethod(String),
    #[error(
        "`{0}` looks like a regular expression, but tools are globs: write `get_*` for the names \
         that begin with `get_`"
    )]
    RegexInGlob(String),
    #[error(
        "`{0}` looks like the name of a tool as an agent calls it; write the name that the server \
         gives it, which follows `mcp__SERVER__`"
    )]
    ToolOfAgent(String),
    #[error(
        "it has no `hosts`, so it works at every host that the policy permits; name the hosts it \
         is for"
    )]
    CredentialUnbound,
    #[error(
        "the secret has less than 8 bytes: it can be guessed, and the proxy alters answers \
         wherever they contain it; use a longer one"
    )]
    SecretShort,
    #[error("`{0}` is a very broad range; list the networks that are needed")]
    BroadRange(String),
}
