//! Conditions on the arguments of a tool.

use crate::network::rpc::argument::{ArgumentPath, Arguments, Condition, Scalar};
use crate::network::rpc::decimal::Decimal;
use crate::network::rpc::glob::NameGlob;
use crate::violation::ViolationKind;
use crate::yaml::node::Value;
use crate::yaml::reader::{At, Fields, Reader};

/// Reads the conditions of a rule in its fields `arguments` and `other_arguments`.
pub(super) fn arguments(reader: &mut Reader, fields: &mut Fields<'_>) -> Arguments {
    let mut arguments = Arguments::default();
    if let Some(at) = fields.take("arguments") {
        for (key, at) in reader.entries(&at).unwrap_or_default() {
            let path = reader.check(&at, ArgumentPath::parse(key));
            let condition = condition(reader, &at);
            arguments.conditions.extend(path.zip(condition));
        }
        arguments
            .conditions
            .sort_by_cached_key(|(path, _)| path.to_string());
    }
    if let Some(at) = fields.take("other_arguments") {
        arguments.denies_others = reader
            .text(&at, |word| match word {
                "deny" => Ok(()),
                _ => Err(ViolationKind::OtherArguments),
            })
            .is_some();
    }
    arguments
}

const CONDITION_KEYS: &[&str] = &[
    "equals",
    "in",
    "glob",
    "any",
    "range",
    "max_length",
    "absent",
    "optional",
];

fn condition(reader: &mut Reader, at: &At<'_>) -> Option<Condition> {
    let before = reader.violation_count();
    let mut fields = reader.mapping(at, CONDITION_KEYS)?;
    let mut flag = |reader: &mut Reader, key: &str| {
        let at = fields.take(key);
        at.and_then(|at| reader.boolean(&at)).unwrap_or(false)
    };
    let absent = flag(reader, "absent");
    let optional = flag(reader, "optional");
    let condition = Condition {
        equals: fields.take("equals").and_then(|at| scalar(reader, &at)),
        one_of: fields.take("in").and_then(|at| {
            let items = reader.sequence(&at)?;
            if items.is_empty() {
                reader.reject(&at, ViolationKind::ArgumentInEmpty);
            }
            Some(items.iter().filter_map(|at| scalar(reader, at)).collect())
        }),
        glob: fields
            .take("glob")
            .and_then(|at| reader.text(&at, NameGlob::parse)),
        any: fields.take("any").and_then(|at| globs(reader, &at)),
        range: fields.take("range").and_then(|at| range(reader, &at)),
        max_length: fields.take("max_length").and_then(|at| length(reader, &at)),
        absent,
        optional,
    };
    let alone = Condition {
        absent: true,
        ..Condition::default()
    };
    if absent && condition != alone {
        reader.reject(at, ViolationKind::ArgumentAbsent);
    }
    (reader.violation_count() == before).then_some(condition)
}

fn scalar(reader: &mut Reader, at: &At<'_>) -> Option<Scalar> {
    match at.node.value() {
        Value::Null => Some(Scalar::Null),
        Value::Boolean(value) => Some(Scalar::Boolean(*value)),
        Value::Text(text) => Some(Scalar::Text(text.clone())),
        Value::Integer(_) | Value::Float(_) => number(reader, at).map(Scalar::Number),
        Value::Sequence(_) | Value::Mapping(_) => {
            reader.check(at, Err(ViolationKind::ArgumentValue))
        }
    }
}

/// The digits that a decimal number keeps as a double, however it was written.
const EXACT_DIGITS: usize = 15;

fn number(reader: &mut Reader, at: &At<'_>) -> Option<Decimal> {
    let (text, most) = match at.node.value() {
        Value::Integer(number) => (number.to_string(), usize::MAX),
        Value::Float(number) => (number.to_string(), EXACT_DIGITS),
        _ => return reader.check(at, Err(ViolationKind::ArgumentValue)),
    };
    let number = Decimal::parse(&text).ok_or(ViolationKind::ArgumentValue);
    let number = reader.check(at, number)?;
    if number.precision() > most {
        return reader.check(at, Err(ViolationKind::ArgumentDigits));
    }
    Some(number)
}

fn range(reader: &mut Reader, at: &At<'_>) -> Option<[Option<Decimal>; 2]> {
    let items = reader.sequence(at)?;
    let [low, high] = items.as_slice() else {
        return reader.check(at, Err(ViolationKind::ArgumentRange));
    };
    let mut bound = |at: &At<'_>| match at.node.value() {
        Value::Null => Some(None),
        _ => number(reader, at).map(Some),
    };
    let range = [bound(low)?, bound(high)?];
    let is_range = match &range {
        [Some(low), Some(high)] => low <= high,
        [None, None] => false,
        _ => true,
    };
    reader.check(
        at,
        is_range
            .then_some(range)
            .ok_or(ViolationKind::ArgumentRange),
    )
}

fn length(reader: &mut Reader, at: &At<'_>) -> Option<usize> {
    let length = match at.node.value() {
        Value::Integer(number) => usize::try_from(*number).ok(),
        _ => None,
    };
    reader.check(at, length.ok_or(ViolationKind::Count))
}

/// Reads a list of globs, at least one.
pub(super) fn globs(reader: &mut Reader, at: &At<'_>) -> Option<Vec<NameGlob>> {
    let globs = reader.texts(at, NameGlob::parse);
    if matches!(at.node.value(), Value::Sequence(items) if items.is_empty()) {
        reader.reject(at, ViolationKind::MatcherAnyEmpty);
        return None;
    }
    Some(globs)
}
