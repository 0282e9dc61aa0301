//! Conditions on the arguments of a call, compiled, and decided exactly: numbers as decimals, texts
//! byte for byte. The rules are told which of them hold.

use std::collections::BTreeSet;

use openshell_policy::network::rpc::argument::{Arguments, Condition, Scalar, Step};
use openshell_policy::network::rpc::decimal::Decimal;
use openshell_policy::network::rpc::glob::{CompiledNameGlob, Effect, NameGlob};
use openshell_policy::network::rpc::{RpcRule, RpcRules};

use crate::wire::json::{Json, KeyInAnotherCase};

/// The conditions of the rules of a connection.
#[derive(Debug, Default)]
pub(in crate::decide) struct Conditions(Vec<CompiledConditions>);

/// The conditions of one rule.
#[derive(Debug)]
struct CompiledConditions {
    /// Their name in the data and in the input of the rules.
    key: String,
    effect: Effect,
    /// The tools of the rule; `None` means all.
    tools: Option<Vec<CompiledNameGlob>>,
    conditions: Vec<CompiledCondition>,
    /// The arguments that may be there, if no others may.
    only: Option<BTreeSet<String>>,
}

#[derive(Debug)]
struct CompiledCondition {
    steps: Vec<Step>,
    condition: Condition,
    /// The globs of `glob` and `any`; a text must match one of each.
    globs: Vec<Vec<CompiledNameGlob>>,
}

/// Returns the name of the conditions of a rule; `None` if it has none. Equal conditions of rules
/// with the same tools have equal names.
pub(in crate::decide) fn name(rule: &RpcRule, effect: Effect) -> Option<String> {
    if rule.arguments.is_empty() {
        return None;
    }
    let prefix = match effect {
        Effect::Allow => "allow",
        Effect::Deny => "deny",
    };
    // Rules always have a JSON form.
    let rule = serde_json::to_string(rule).unwrap_or_default();
    Some(format!("{prefix} {rule}"))
}

impl Conditions {
    /// Compiles the conditions of `rules`.
    pub(in crate::decide) fn of<'r>(rules: impl Iterator<Item = &'r RpcRules>) -> Self {
        let mut all = Vec::new();
        for rules in rules {
            let allowing = rules.rules.iter().flatten();
            all.extend(allowing.filter_map(|rule| CompiledConditions::of(rule, Effect::Allow)));
            let denying = rules.deny_rules.iter();
            all.extend(denying.filter_map(|rule| CompiledConditions::of(rule, Effect::Deny)));
        }
        Self(all)
    }

    /// Returns the names of the conditions of allow rules.
    pub(super) fn names_of_allowing(&self) -> impl Iterator<Item = &str> {
        let allowing = self.0.iter().filter(|rule| rule.effect == Effect::Allow);
        allowing.map(|rule| rule.key.as_str())
    }

    /// Returns true if allow rules for `tool` have conditions.
    pub(super) fn limit(&self, tool: &str) -> bool {
        let mut allowing = self.0.iter().filter(|rule| rule.effect == Effect::Allow);
        allowing.any(|rule| rule.are_for(tool))
    }

    /// Returns the names of the conditions that hold for a call of `tool` with `arguments`.
    ///
    /// # Errors
    /// Fails if a key differs only in the case of its letters from one that a condition names.
    pub(super) fn that_hold(
        &self,
        tool: &str,
        arguments: Option<Json<'_>>,
    ) -> Result<BTreeSet<String>, KeyInAnotherCase> {
        let mut held = BTreeSet::new();
        for conditions in &self.0 {
            if conditions.are_for(tool) && conditions.hold(arguments)? {
                held.insert(conditions.key.clone());
            }
        }
        Ok(held)
    }
}

impl CompiledConditions {
    fn of(rule: &RpcRule, effect: Effect) -> Option<Self> {
        let compiled =
            |globs: &[NameGlob]| globs.iter().map(|glob| glob.compiled(effect)).collect();
        let Arguments {
            conditions,
            denies_others,
        } = &rule.arguments;
        let first = |step: &Step| match step {
            Step::Key(key) => Some(key.clone()),
            Step::Items => None,
        };
        let names = conditions.iter();
        let names = names.filter_map(|(path, _)| path.steps().first().and_then(first));
        Some(Self {
            key: name(rule, effect)?,
            effect,
            tools: rule.tools.as_deref().map(compiled),
            only: denies_others.then(|| names.collect()),
            conditions: conditions
                .iter()
                .map(|(path, condition)| CompiledCondition {
                    steps: path.steps().to_vec(),
                    globs: [
                        condition.glob.as_slice(),
                        condition.any.as_deref().unwrap_or_default(),
                    ]
                    .into_iter()
                    .filter(|globs| !globs.is_empty())
                    .map(compiled)
                    .collect(),
                    condition: condition.clone(),
                })
                .collect(),
        })
    }

    fn are_for(&self, tool: &str) -> bool {
        let is_match = |globs: &Vec<CompiledNameGlob>| globs.iter().any(|glob| glob.is_match(tool));
        self.tools.as_ref().is_none_or(is_match)
    }

    fn hold(&self, arguments: Option<Json<'_>>) -> Result<bool, KeyInAnotherCase> {
        let mut all = true;
        // Each is looked at, because each may find a key in another case.
        for condition in &self.conditions {
            all &= condition.holds(&condition.steps, arguments, self.effect)?;
        }
        let is_listed = |only: &BTreeSet<String>| {
            let mut keys = arguments.into_iter().flat_map(Json::entries);
            keys.all(|(key, _)| only.contains(key.as_ref()))
        };
        Ok(all && self.only.as_ref().is_none_or(is_listed))
    }
}

impl CompiledCondition {
    /// Returns true if the condition holds for the value to which `steps` lead from `value`. Where it
    /// denies, what cannot be decided holds.
    fn holds(
        &self,
        steps: &[Step],
        value: Option<Json<'_>>,
        effect: Effect,
    ) -> Result<bool, KeyInAnotherCase> {
        let undecided = effect == Effect::Deny;
        let Some(value) = value else {
            return Ok(self.condition.absent || self.condition.optional);
        };
        match steps.split_first() {
            None => Ok(self.is_met(value, effect)),
            Some((Step::Key(key), steps)) if value.is_object() => {
                self.holds(steps, value.field(key)?, effect)
            }
            Some((Step::Items, steps)) if value.is_array() => {
                let mut met = Vec::new();
                for item in value.items() {
                    met.push(self.holds(steps, Some(item), effect)?);
                }
                Ok(match effect {
                    Effect::Allow => met.iter().all(|met| *met),
                    Effect::Deny => met.iter().any(|met| *met),
                })
            }
            Some(_) => Ok(undecided),
        }
    }

    /// Returns true if `value` meets all operators.
    fn is_met(&self, value: Json<'_>, effect: Effect) -> bool {
        let Condition {
            equals,
            one_of,
            range,
            max_length,
            absent,
            ..
        } = &self.condition;
        let undecided = effect == Effect::Deny;
        let is_one_of = |scalars: &[Scalar]| {
            let is_same = |scalar| is_same(scalar, value, effect).unwrap_or(undecided);
            scalars.iter().any(is_same)
        };
        let matches = |globs: &Vec<CompiledNameGlob>| {
            let is_match = |text: &str| globs.iter().any(|glob| glob.is_match(text));
            value.text().map_or(undecided, |text| is_match(&text))
        };
        let is_within = |range: &[Option<Decimal>; 2]| is_within(range, value, effect);
        let is_short = |most: &usize| {
            let length = match value.text() {
                Some(text) => Some(text.chars().count()),
                None => value.is_array().then(|| value.items().count()),
            };
            length.map_or(undecided, |length| length <= *most)
        };
        !absent
            && equals
                .as_ref()
                .is_none_or(|scalar| is_one_of(std::slice::from_ref(scalar)))
            && one_of.as_deref().is_none_or(is_one_of)
            && self.globs.iter().all(matches)
            && range.as_ref().is_none_or(is_within)
            && max_length.as_ref().is_none_or(is_short)
    }
}

/// Returns true if `value` is `scalar`; `None` if they have different types.
fn is_same(scalar: &Scalar, value: Json<'_>, effect: Effect) -> Option<bool> {
    match scalar {
        Scalar::Null => value.is_null().then_some(true),
        Scalar::Boolean(known) => value.boolean().map(|value| value == *known),
        Scalar::Text(known) => value.text().map(|text| text == known.as_str()),
        Scalar::Number(known) => {
            let number = value.number()?;
            match Decimal::parse(number) {
                Some(decimal) => Some(decimal == *known || may_be_same(&decimal, known, effect)),
                None => Some(effect == Effect::Deny),
            }
        }
    }
}

/// Returns true if a rule with this `effect` takes the numbers for the same because they are the same
/// double.
#[expect(clippy::float_cmp, reason = "servers compare doubles exactly too")]
fn may_be_same(one: &Decimal, other: &Decimal, effect: Effect) -> bool {
    effect == Effect::Deny && one.to_double() == other.to_double()
}

fn is_within(range: &[Option<Decimal>; 2], value: Json<'_>, effect: Effect) -> bool {
    let Some(number) = value.number().and_then(Decimal::parse) else {
        return effect == Effect::Deny;
    };
    let [low, high] = range;
    let is_above = |low: &Decimal| number >= *low || may_be_same(&number, low, effect);
    let is_below = |high: &Decimal| number <= *high || may_be_same(&number, high, effect);
    low.as_ref().is_none_or(is_above) && high.as_ref().is_none_or(is_below)
}
