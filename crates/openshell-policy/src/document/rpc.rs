//! Serialisation of rules for the messages of JSON-RPC and MCP.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::network::rpc::argument::{Arguments, Condition, Scalar};
use crate::network::rpc::decimal::Decimal;
use crate::network::rpc::glob::NameGlob;
use crate::network::rpc::{Revision, RpcMethod, RpcRule, RpcRules};
use crate::network::rule::Glob;

/// The settings of an endpoint, of which `json_rpc` has only the first.
#[derive(Serialize)]
pub(super) struct SettingsPart {
    max_body_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict_tool_names: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_all_known_mcp_methods: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    versions: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_lists: Option<bool>,
}

impl SettingsPart {
    pub(super) fn of(rules: &RpcRules) -> Self {
        let mcp = rules.mcp.as_ref();
        let versions = mcp.into_iter().flat_map(|mcp| &mcp.versions);
        Self {
            max_body_bytes: rules.max_body_bytes,
            strict_tool_names: mcp.map(|mcp| mcp.strict_tool_names),
            allow_all_known_mcp_methods: mcp.map(|mcp| mcp.allow_all_known_methods),
            filter_lists: mcp.map(|mcp| mcp.filters_lists),
            versions: versions
                .map(|revision| Revision::as_str(*revision))
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct RulePart<'p> {
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<AnyPart<'p>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    arguments: BTreeMap<String, ConditionPart<'p>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_arguments: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uri: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'p str>,
}

#[derive(Serialize)]
struct AnyPart<'p> {
    any: Vec<&'p str>,
}

#[derive(Serialize)]
struct ConditionPart<'p> {
    #[serde(skip_serializing_if = "Option::is_none")]
    equals: Option<&'p Scalar>,
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    one_of: Option<&'p [Scalar]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    glob: Option<&'p str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    any: Option<Vec<&'p str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<&'p [Option<Decimal>; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_length: Option<usize>,
    #[serde(skip_serializing_if = "super::is_false")]
    absent: bool,
    #[serde(skip_serializing_if = "super::is_false")]
    optional: bool,
}

impl Serialize for RpcRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            method,
            tools,
            arguments,
            uri,
            name,
        } = self;
        let part = RulePart {
            method: method.as_ref().map(RpcMethod::as_str),
            tool: tools.as_deref().map(|tools| AnyPart { any: texts(tools) }),
            arguments: conditions(arguments),
            other_arguments: arguments.denies_others.then_some("deny"),
            uri: uri.as_ref().map(Glob::as_str),
            name: name.as_ref().map(NameGlob::as_str),
        };
        part.serialize(serializer)
    }
}

impl Serialize for Arguments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (conditions(self), self.denies_others).serialize(serializer)
    }
}

fn conditions(arguments: &Arguments) -> BTreeMap<String, ConditionPart<'_>> {
    let conditions = arguments.conditions.iter();
    conditions
        .map(|(path, condition)| (path.to_string(), ConditionPart::of(condition)))
        .collect()
}

impl<'p> ConditionPart<'p> {
    fn of(condition: &'p Condition) -> Self {
        Self {
            equals: condition.equals.as_ref(),
            one_of: condition.one_of.as_deref(),
            glob: condition.glob.as_ref().map(NameGlob::as_str),
            any: condition.any.as_deref().map(texts),
            range: condition.range.as_ref(),
            max_length: condition.max_length,
            absent: condition.absent,
            optional: condition.optional,
        }
    }
}

fn texts(globs: &[NameGlob]) -> Vec<&str> {
    globs.iter().map(NameGlob::as_str).collect()
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Boolean(value) => serializer.serialize_bool(*value),
            Self::Number(number) => number.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl Serialize for Decimal {
    /// Writes the number as the reader of policies has read it: as an integer or a double.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.to_integer() {
            Some(integer) => serializer.serialize_i64(integer),
            None => serializer.serialize_f64(self.to_double()),
        }
    }
}
