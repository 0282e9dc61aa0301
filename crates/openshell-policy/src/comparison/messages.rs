//! Comparison of rules for the messages of JSON-RPC and MCP.

use crate::comparison::cover::is_for;
use crate::network::endpoint::{Endpoint, Enforcement};
use crate::network::rpc::{RpcMethod, RpcRule, RpcRules};
use crate::network::rule::Glob;

/// The rules for messages of one endpoint.
#[derive(Clone, Copy)]
pub(super) struct Messages<'p> {
    path: Option<&'p Glob>,
    is_enforced: bool,
    rules: &'p RpcRules,
}

impl<'p> Messages<'p> {
    /// Returns the rules of `endpoint`, if its messages are judged.
    pub(super) fn of(endpoint: &'p Endpoint) -> Option<Self> {
        let l7 = endpoint.l7()?;
        Some(Self {
            path: endpoint.path(),
            is_enforced: l7.enforcement == Enforcement::Enforce,
            rules: l7.rpc.as_ref()?,
        })
    }

    /// Returns the messages that these rules permit, in words.
    pub(super) fn described(&self) -> Vec<String> {
        if !self.is_enforced {
            return vec![self.written("every message", None)];
        }
        match &self.rules.rules {
            None => vec![self.written("every known method of MCP", None)],
            Some(rules) => rules
                .iter()
                .map(|rule| self.written("", Some(rule)))
                .collect(),
        }
    }

    /// Returns the messages that these rules permit and those of `known` do not, in words.
    pub(super) fn beyond(&self, known: &[Self]) -> Vec<String> {
        let at_path: Vec<_> = known
            .iter()
            .filter(|known| is_for(known.path, self.path) && known.is_of(self))
            .collect();
        if at_path.iter().any(|known| !known.is_enforced) {
            return Vec::new();
        }
        if !self.is_enforced {
            return self.described();
        }
        let permits = |rule: &RpcRule| {
            let known = at_path.iter().flat_map(|known| match &known.rules.rules {
                None => std::slice::from_ref(&*EVERY_KNOWN_METHOD),
                Some(rules) => rules.as_slice(),
            });
            known.into_iter().any(|known| covers(known, rule))
        };
        let mut words: Vec<_> = match &self.rules.rules {
            None if permits(&EVERY_KNOWN_METHOD) => Vec::new(),
            None => self.described(),
            Some(rules) => {
                let new = rules.iter().filter(|rule| !permits(rule));
                new.map(|rule| self.written("", Some(rule))).collect()
            }
        };
        for known in &at_path {
            for denied in &known.rules.deny_rules {
                if !self
                    .rules
                    .deny_rules
                    .iter()
                    .any(|kept| covers(kept, denied))
                {
                    words.push(format!(
                        "{}, which was denied",
                        self.written("", Some(denied))
                    ));
                }
            }
            if let (Some(new), Some(old)) = (&self.rules.mcp, &known.rules.mcp) {
                for version in new.versions.difference(&old.versions) {
                    words.push(self.written(&format!("MCP {}", version.as_str()), None));
                }
                if old.strict_tool_names && !new.strict_tool_names {
                    words.push(self.written("tools with any name (strict_tool_names)", None));
                }
            }
        }
        words
    }

    fn is_of(&self, other: &Self) -> bool {
        self.rules.mcp.is_some() == other.rules.mcp.is_some()
    }

    fn written(&self, what: &str, rule: Option<&RpcRule>) -> String {
        let rule = rule.map(ToString::to_string).unwrap_or_default();
        let path = self.path.map(|path| format!(" (path: {})", path.as_str()));
        format!("{what}{rule}{}", path.unwrap_or_default())
    }
}

/// The rule that stands for those that a policy leaves out.
static EVERY_KNOWN_METHOD: std::sync::LazyLock<RpcRule> =
    std::sync::LazyLock::new(RpcRule::default);

/// Returns true if the rule `one` matches every message that `other` matches.
fn covers(one: &RpcRule, other: &RpcRule) -> bool {
    let is_plain =
        one.tools.is_none() && one.arguments.is_empty() && one.uri.is_none() && one.name.is_none();
    let method = match (&one.method, &other.method) {
        (Some(one), Some(other)) => one == other || one.matches(other.as_str()),
        (None, other) => other.as_ref().is_none_or(RpcMethod::is_known),
        (Some(_), None) => false,
    };
    one == other || is_plain && method
}
