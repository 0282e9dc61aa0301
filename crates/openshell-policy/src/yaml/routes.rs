//! Reader of inference route documents.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use crate::credential::check_secret;
use crate::inference::interface::Interface;
use crate::inference::{
    Backend, Budget, DEFAULT_REQUEST_BYTES, KeySource, MAX_REQUEST_BYTES, MAX_ROUTES, Provider,
    RouteFile, RouteSpec, Timeouts, Tools,
};
use crate::secret::Secret;
use crate::violation::ViolationKind;
use crate::yaml::credentials::variable;
use crate::yaml::node::Value;
use crate::yaml::reader::{At, Fields, Reader};

pub(super) fn routes(reader: &mut Reader, at: &At<'_>) -> Option<RouteFile> {
    let mut fields = reader.mapping(at, &["routes", "max_request_bytes"])?;
    let max_request_bytes = fields.take("max_request_bytes").and_then(|at| {
        let bytes = number(reader, &at)?.get();
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= MAX_REQUEST_BYTES);
        reader.check(
            &at,
            bytes.ok_or(ViolationKind::RequestBytes(MAX_REQUEST_BYTES)),
        )
    });
    let Some(list) = fields.take("routes") else {
        reader.reject(at, ViolationKind::Missing("routes"));
        return None;
    };
    let items = reader.sequence(&list)?;
    if items.len() > MAX_ROUTES {
        reader.reject(
            &list,
            ViolationKind::TooManyRoutes {
                count: items.len(),
                limit: MAX_ROUTES,
            },
        );
        return None;
    }
    let routes = items
        .iter()
        .filter_map(|item| route(reader, item))
        .collect();
    Some(RouteFile {
        routes,
        max_request_bytes: max_request_bytes.unwrap_or(DEFAULT_REQUEST_BYTES),
    })
}

const KEYS: &[&str] = &[
    "name",
    "endpoint",
    "model",
    "provider_type",
    "protocols",
    "tools",
    "api_key",
    "api_key_env",
    "api_key_file",
    "timeouts",
    "budget",
];

fn route(reader: &mut Reader, at: &At<'_>) -> Option<RouteSpec> {
    let mut fields = reader.mapping(at, KEYS)?;
    let mut required = |reader: &mut Reader, key: &'static str| match fields.take(key) {
        Some(at) => Some(at),
        None => {
            reader.reject(at, ViolationKind::Missing(key));
            None
        }
    };
    let name = required(reader, "name").and_then(|at| reader.text(&at, word));
    let backend = required(reader, "endpoint").and_then(|at| reader.text(&at, Backend::parse));
    let model = required(reader, "model").and_then(|at| reader.text(&at, word));
    let interfaces = required(reader, "protocols").and_then(|at| interfaces(reader, &at));
    let provider = fields
        .take("provider_type")
        .and_then(|at| reader.text(&at, |text| Ok(Provider::named(text))));
    let key = key(reader, at, &mut fields, backend == Some(Backend::Mock));
    let tools = fields.take("tools").and_then(|at| reader.text(&at, tools));
    let timeouts = fields
        .take("timeouts")
        .and_then(|at| timeouts(reader, &at))
        .unwrap_or_default();
    let budget = fields
        .take("budget")
        .and_then(|at| budget(reader, &at))
        .unwrap_or_default();
    Some(RouteSpec {
        name: name?,
        backend: backend?,
        model: model?,
        provider: provider.unwrap_or_default(),
        interfaces: interfaces?,
        tools: tools.unwrap_or_default(),
        key: key?,
        timeouts,
        budget,
    })
}

fn tools(word: &str) -> Result<Tools, ViolationKind> {
    match word {
        "any" => Ok(Tools::Any),
        "local" => Ok(Tools::Local),
        other => Err(ViolationKind::ToolsUnknown(other.to_owned())),
    }
}

fn word(text: &str) -> Result<String, ViolationKind> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        Err(ViolationKind::WordEmpty)
    } else {
        Ok(text.to_owned())
    }
}

fn interfaces(reader: &mut Reader, at: &At<'_>) -> Option<BTreeSet<Interface>> {
    let items = reader.sequence(at)?;
    let is_blank =
        |item: &&At<'_>| matches!(item.node.value(), Value::Text(text) if text.trim().is_empty());
    let before = reader.violation_count();
    let items = items.iter().filter(|item| !is_blank(item));
    let interfaces: BTreeSet<_> = items
        .filter_map(|item| reader.text(item, Interface::parse))
        .collect();
    if interfaces.is_empty() && reader.violation_count() == before {
        reader.reject(at, ViolationKind::NoInterfaces);
    }
    Some(interfaces)
}

fn key(
    reader: &mut Reader,
    at: &At<'_>,
    fields: &mut Fields<'_>,
    is_mock: bool,
) -> Option<KeySource> {
    let value = |text: &str| {
        check_secret(text.as_bytes())?;
        Ok(KeySource::Value(Secret::new(text.as_bytes().to_vec())))
    };
    let sources = [
        fields.take("api_key").map(|at| reader.text(&at, value)),
        fields
            .take("api_key_env")
            .map(|at| reader.text(&at, variable).map(KeySource::Variable)),
        fields
            .take("api_key_file")
            .map(|at| reader.text(&at, |path| Ok(KeySource::File(path.into())))),
    ];
    let mut sources = sources.into_iter().flatten();
    match (sources.next(), sources.next()) {
        (Some(source), None) => source,
        (None, _) if is_mock => Some(KeySource::None),
        _ => {
            reader.reject(at, ViolationKind::KeySource);
            None
        }
    }
}

fn timeouts(reader: &mut Reader, at: &At<'_>) -> Option<Timeouts> {
    let mut fields = reader.mapping(at, &["connect", "first_byte", "idle"])?;
    let defaults = Timeouts::default();
    let mut seconds = |reader: &mut Reader, key, default| {
        let Some(at) = fields.take(key) else {
            return default;
        };
        let seconds = number(reader, &at).filter(|seconds| seconds.get() <= 86_400);
        reader
            .check(&at, seconds.ok_or(ViolationKind::Seconds))
            .map_or(default, NonZeroU64::get)
    };
    Some(Timeouts {
        connect: seconds(reader, "connect", defaults.connect),
        first_byte: seconds(reader, "first_byte", defaults.first_byte),
        idle: seconds(reader, "idle", defaults.idle),
    })
}

fn budget(reader: &mut Reader, at: &At<'_>) -> Option<Budget> {
    let mut fields = reader.mapping(at, &["max_requests", "max_tokens"])?;
    let mut count = |reader: &mut Reader, key| fields.take(key).and_then(|at| number(reader, &at));
    Some(Budget {
        max_requests: count(reader, "max_requests"),
        max_tokens: count(reader, "max_tokens"),
    })
}

/// Reads a whole number of at least 1.
fn number(reader: &mut Reader, at: &At<'_>) -> Option<NonZeroU64> {
    let number = match at.node.value() {
        Value::Integer(number) => u64::try_from(*number).ok().and_then(NonZeroU64::new),
        _ => None,
    };
    reader.check(at, number.ok_or(ViolationKind::Count))
}
