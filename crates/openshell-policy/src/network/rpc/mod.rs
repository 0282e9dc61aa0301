//! Rules for the messages of JSON-RPC 2.0 and of the Model Context Protocol (MCP) over HTTP.

pub mod argument;
pub mod decimal;
pub mod glob;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use crate::network::rpc::argument::Arguments;
use crate::network::rpc::glob::{Effect, NameGlob};
use crate::network::rule::Glob;
use crate::violation::ViolationKind;

/// The rules of an endpoint for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRules {
    /// The largest body of a request, in bytes, as it is received and decoded.
    pub max_body_bytes: usize,
    /// What is known of MCP; `None` for another protocol over JSON-RPC.
    pub mcp: Option<Mcp>,
    /// Allow rules, of which at least one must match; `None` allows every method of
    /// [`KNOWN_METHODS`] and every tool.
    pub rules: Option<Vec<RpcRule>>,
    /// Deny rules, of which none may match.
    pub deny_rules: Vec<RpcRule>,
}

/// The settings of an endpoint for MCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mcp {
    /// True if the name of a tool must have the form [`is_strict_name`].
    pub strict_tool_names: bool,
    /// True if rules may leave out the method.
    pub allow_all_known_methods: bool,
    /// The revisions that may be spoken, at least one.
    pub versions: BTreeSet<Revision>,
    /// True if lists of tools, resources and prompts lose the entries that no rule permits.
    pub filters_lists: bool,
}

impl Default for Mcp {
    fn default() -> Self {
        Self {
            strict_tool_names: true,
            allow_all_known_methods: false,
            versions: Revision::ALL.into(),
            filters_lists: true,
        }
    }
}

/// A rule for messages; all parts must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcRule {
    /// The methods; `None` means those of [`KNOWN_METHODS`].
    pub method: Option<RpcMethod>,
    /// The tools, of which one must match; `None` means every tool.
    pub tools: Option<Vec<NameGlob>>,
    /// The arguments of a tool.
    pub arguments: Arguments,
    /// The URIs of resources.
    pub uri: Option<Glob>,
    /// The names of prompts.
    pub name: Option<NameGlob>,
}

impl RpcRule {
    /// Returns true if the rule matches every call of a tool.
    #[must_use]
    pub fn is_every_call(&self) -> bool {
        let is_call = self
            .method
            .as_ref()
            .is_none_or(|method| method.matches(CALL));
        is_call && self.tools.is_none() && self.arguments.is_empty()
    }
}

impl fmt::Display for RpcRule {
    /// Writes the rule for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.method
                .as_ref()
                .map_or("every known method", RpcMethod::as_str),
        )?;
        if let Some(tools) = &self.tools {
            let tools: Vec<_> = tools.iter().map(NameGlob::as_str).collect();
            write!(f, " {}", tools.join("|"))?;
        }
        if let Some(uri) = &self.uri {
            write!(f, " {}", uri.as_str())?;
        }
        if let Some(name) = &self.name {
            write!(f, " {}", name.as_str())?;
        }
        let conditions = self.arguments.conditions.iter();
        let mut conditions: Vec<_> = conditions.map(|(path, _)| path.to_string()).collect();
        if self.arguments.denies_others {
            conditions.push("no other arguments".to_owned());
        }
        if conditions.is_empty() {
            return Ok(());
        }
        write!(f, " if {}", conditions.join(", "))
    }
}

/// The method of a rule: one method, `*`, or a glob inside `tools/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcMethod(String);

/// The method that calls a tool.
pub const CALL: &str = "tools/call";

/// The methods of MCP that this build knows.
pub const KNOWN_METHODS: [&str; 24] = [
    "initialize",
    "ping",
    "server/discover",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "tools/list",
    CALL,
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "subscriptions/listen",
    "tasks/list",
    "tasks/get",
    "tasks/result",
    "tasks/update",
    "tasks/cancel",
];

impl RpcMethod {
    /// Parses the method of a rule for MCP.
    ///
    /// # Errors
    /// Fails for `*`, and for a wildcard outside `tools/`.
    pub fn of_mcp(text: &str) -> Result<Self, ViolationKind> {
        if text.contains('*') && !text.starts_with("tools/") {
            return Err(ViolationKind::McpMethod(text.to_owned()));
        }
        if text.contains('*') {
            NameGlob::parse(text)?;
        }
        Self::parse(text)
    }

    /// Parses the method of a rule for another protocol over JSON-RPC.
    ///
    /// # Errors
    /// Fails for a wildcard in a longer text.
    pub fn of_json_rpc(text: &str) -> Result<Self, ViolationKind> {
        if text.contains('*') && text != "*" {
            return Err(ViolationKind::RpcMethod(text.to_owned()));
        }
        Self::parse(text)
    }

    fn parse(text: &str) -> Result<Self, ViolationKind> {
        if text.is_empty() || text.contains(char::is_control) {
            return Err(ViolationKind::RpcMethod(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the method that calls a tool.
    #[must_use]
    pub fn call() -> Self {
        Self(CALL.to_owned())
    }

    /// Returns the text of the rule.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the rule is for a method that this build knows.
    #[must_use]
    pub fn is_known(&self) -> bool {
        KNOWN_METHODS.iter().any(|known| self.matches(known))
    }

    /// Returns true if the rule is for `method`.
    #[must_use]
    pub fn matches(&self, method: &str) -> bool {
        match self.0.split_once('*') {
            None => self.0 == method,
            Some(_) if self.0 == "*" => true,
            Some(_) => NameGlob::parse(&self.0)
                .is_ok_and(|glob| glob.compiled(Effect::Deny).is_match(method)),
        }
    }
}

/// A revision of MCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the dates of the revisions")]
pub enum Revision {
    R20250326,
    R20250618,
    R20251125,
    R20260728,
}

impl Revision {
    /// All revisions that this build knows.
    pub const ALL: [Self; 4] = [
        Self::R20250326,
        Self::R20250618,
        Self::R20251125,
        Self::R20260728,
    ];

    /// Parses the name of a revision.
    ///
    /// # Errors
    /// Fails for an unknown one.
    pub fn parse(word: &str) -> Result<Self, ViolationKind> {
        let known = Self::ALL
            .into_iter()
            .find(|revision| revision.as_str() == word);
        known.ok_or_else(|| ViolationKind::UnknownWord {
            word: word.to_owned(),
            known: "2025-03-26, 2025-06-18, 2025-11-25, 2026-07-28",
        })
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::R20250326 => "2025-03-26",
            Self::R20250618 => "2025-06-18",
            Self::R20251125 => "2025-11-25",
            Self::R20260728 => "2026-07-28",
        }
    }

    /// Returns true if the revision has no sessions: each request says what it speaks.
    #[must_use]
    pub fn is_stateless(self) -> bool {
        self >= Self::R20260728
    }
}

impl RpcRules {
    /// The limits of [`Self::max_body_bytes`].
    pub const BODY_BYTES: RangeInclusive<usize> = 1024..=16 * 1024 * 1024;
    /// [`Self::max_body_bytes`] if a policy says nothing.
    pub const DEFAULT_BODY_BYTES: usize = 1024 * 1024;

    /// Returns the contradictions among the rules.
    pub(crate) fn contradictions(&self) -> Vec<ViolationKind> {
        let mut violations = Vec::new();
        let rules = self.rules.as_deref().unwrap_or_default();
        let is_strict = self.mcp.as_ref().is_none_or(|mcp| mcp.strict_tool_names);
        let mut all = rules.iter().chain(&self.deny_rules);
        let has_glob = |rule: &RpcRule| rule.tools.iter().flatten().any(NameGlob::is_pattern);
        if !is_strict && all.clone().any(has_glob) {
            violations.push(ViolationKind::ToolGlobNotStrict);
        }
        let is_narrow = |rule: &RpcRule| rule.tools.is_some();
        if rules.iter().any(is_narrow) && all.any(RpcRule::is_every_call) {
            violations.push(ViolationKind::ToolRuleWithoutEffect);
        }
        violations
    }
}

/// Returns true if the name of a tool has the form that servers should use.
#[must_use]
pub fn is_strict_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(is_plain)
}
