//! The collector of metrics that OpenTelemetry's variables name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::{anyhow, bail};
use openshell_policy::secret::Secret;
use openshell_supervisor::command::environment::Environment;
use openshell_telemetry::export::Collector;

/// Variables that name the collector; the one for metrics only comes first.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Variables that name the protocol, in the same order.
const PROTOCOLS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];

/// Variables with the time that an export may take, in the same order.
const TIMEOUTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];

/// Variables with headers, which may be secrets.
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];

/// Returns the collector for the sandbox `name`, if variables of the OpenTelemetry specification
/// ("SDK Environment Variables", "OTLP Exporter Configuration") name one. Takes the headers out of
/// `environment`; the other variables stay, because the command may use them too. A protocol other
/// than HTTP with Protocol Buffers causes a warning.
///
/// # Errors
/// Fails if a variable is invalid.
pub(super) fn collector(
    environment: &mut Environment,
    name: &str,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Option<Collector>> {
    if ENDPOINTS
        .iter()
        .all(|name| environment.get(name).is_none_or(|value| value.is_empty()))
    {
        return Ok(None);
    }
    // Taken even if they are not used: they are secrets for that collector.
    let taken = HEADERS.map(|name| environment.take(name));
    let taken = taken.map(|value| value.map(OsString::into_vec).map(Secret::new));
    let mut headers = taken.into_iter().flatten();
    let headers = headers.find(|value| !value.expose().is_empty());
    let headers = headers.unwrap_or_else(|| Secret::new(Vec::new()));
    let variables = Variables(environment);
    let Some((variable, mut url)) = variables.first(&ENDPOINTS) else {
        bail!(
            "{} is blank, or not UTF-8; set it to a URL, or unset it",
            ENDPOINTS.join(" or ")
        );
    };
    let is_disabled = variables
        .text("OTEL_SDK_DISABLED")
        .eq_ignore_ascii_case("true");
    if is_disabled || variables.text("OTEL_METRICS_EXPORTER") == "none" {
        return Ok(None);
    }
    if let Some((variable, protocol)) = variables.first(&PROTOCOLS)
        && protocol != "http/protobuf"
    {
        warnings.push(format!(
            "{variable} is {protocol}, so the sandbox does not export its own metrics; it can only \
             use http/protobuf"
        ));
        return Ok(None);
    }
    // The general variable is for all signals (specification, "Endpoint URLs for OTLP/HTTP").
    if variable == "OTEL_EXPORTER_OTLP_ENDPOINT" {
        url = format!("{}/v1/metrics", url.trim_end_matches('/'));
    }
    let every = variables.milliseconds(&["OTEL_METRIC_EXPORT_INTERVAL"], 60_000)?;
    let timeout = variables.milliseconds(&TIMEOUTS, 10_000)?;
    let attributes = variables.attributes(name)?;
    let mut collector =
        Collector::parse(&url, &headers).map_err(|why| anyhow!("{variable}: {why}"))?;
    collector.every = every;
    collector.timeout = timeout;
    collector.attributes = attributes;
    Ok(Some(collector))
}

/// Reads the variables of the specification.
struct Variables<'e>(&'e Environment);

impl Variables<'_> {
    /// Returns the value of `name`; empty if it is not set, or not UTF-8.
    fn text(&self, name: &str) -> String {
        let value = self.0.get(name).and_then(|value| value.to_str());
        value.unwrap_or_default().trim().to_owned()
    }

    /// Returns the first of `names` that has a value, and that value.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        let mut values = names.iter().map(|name| (*name, self.text(name)));
        values.find(|(_, text)| !text.is_empty())
    }

    /// Returns the time that the first of `names` with a value gives, or `usual`, both in
    /// milliseconds.
    ///
    /// # Errors
    /// Fails if the value is not a positive number.
    fn milliseconds(&self, names: &[&'static str], usual: u64) -> anyhow::Result<Duration> {
        let Some((variable, text)) = self.first(names) else {
            return Ok(Duration::from_millis(usual));
        };
        match text.parse() {
            Ok(number @ 1..) => Ok(Duration::from_millis(number)),
            _ => bail!("{variable} is not a whole number of milliseconds above 0"),
        }
    }

    /// Returns the attributes of the sandbox `name` as a resource. The attributes that variables
    /// give come after its own.
    ///
    /// # Errors
    /// Fails if they are not pairs.
    fn attributes(&self, name: &str) -> anyhow::Result<Vec<(String, String)>> {
        let mut service = self.text("OTEL_SERVICE_NAME");
        if service.is_empty() {
            service.push_str("openshell-sandbox");
        }
        let version = env!("CARGO_PKG_VERSION");
        let mut named = vec![
            ("service.name".to_owned(), service),
            ("service.version".to_owned(), version.to_owned()),
            ("service.instance.id".to_owned(), name.to_owned()),
        ];
        let given = self.text("OTEL_RESOURCE_ATTRIBUTES");
        let pairs = given.split(',').map(str::trim);
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("OTEL_RESOURCE_ATTRIBUTES is not of the form KEY=VALUE,…")
            };
            if !named.iter().any(|(known, _)| known == key.trim()) {
                named.push((key.trim().to_owned(), value.trim().to_owned()));
            }
        }
        Ok(named)
    }
}
