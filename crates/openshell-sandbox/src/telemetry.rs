//! Export of metrics to a collector, as OpenTelemetry's variables ask for it.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;
use openshell_proxy::denial::refusal::Refusal;
use openshell_proxy::reach::egress::dial_without_deadline;
use openshell_proxy::reach::resolve::guard::Destination;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_proxy::wire::tls::originate::UpstreamRoots;
use openshell_supervisor::command::environment::Environment;
use openshell_telemetry::export::{Collector, Connect, Connection, Exporter};
use openshell_telemetry::metrics::Metrics;

use openshell_telemetry::logging;

/// Variables that name the collector, the one of metrics alone first.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Variables with headers, which may be secrets.
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];

/// Returns the collector that the variables of the OpenTelemetry specification ("SDK Environment
/// Variables", "OTLP Exporter Configuration") name, if one is named, for the sandbox `name`. Its
/// headers are taken out of `environment`; the rest stays, as it may be the command's too. A
/// protocol other than HTTP with Protocol Buffers is a warning.
///
/// # Errors
/// A variable is invalid.
pub(crate) fn collector(
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
    // Taken whether they are used or not: they are meant for that collector.
    let headers = HEADERS.map(|name| {
        environment
            .take(name)
            .map(OsString::into_vec)
            .map(Secret::new)
    });
    let headers = headers
        .into_iter()
        .flatten()
        .find(|value| !value.expose().is_empty());
    let headers = headers.unwrap_or_else(|| Secret::new(Vec::new()));
    let text = |name: &str| {
        environment
            .get(name)
            .and_then(|value| value.to_str())
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let first = |names: &[&str]| {
        names
            .iter()
            .map(|name| ((*name).to_owned(), text(name)))
            .find(|(_, text)| !text.is_empty())
    };
    let Some((variable, mut url)) = first(&ENDPOINTS) else {
        bail!("{} is blank, or not UTF-8", ENDPOINTS.join(" or "));
    };
    if text("OTEL_SDK_DISABLED").eq_ignore_ascii_case("true")
        || text("OTEL_METRICS_EXPORTER") == "none"
    {
        return Ok(None);
    }
    if let Some((variable, protocol)) = first(&[
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    ])
    .filter(|(_, text)| text != "http/protobuf")
    {
        warnings.push(format!(
            "{variable} is {protocol}, so the sandbox's own metrics are not exported; \
             http/protobuf is what it can do"
        ));
        return Ok(None);
    }
    // The general one is that of all signals (specification, "Endpoint URLs for OTLP/HTTP").
    if variable == "OTEL_EXPORTER_OTLP_ENDPOINT" {
        url = format!("{}/v1/metrics", url.trim_end_matches('/'));
    }
    let milliseconds = |names: &[&str], usual: u64| match first(names) {
        Some((variable, text)) => match text.parse() {
            Ok(number @ 1..) => Ok(Duration::from_millis(number)),
            _ => Err(anyhow!("{variable} is no number of milliseconds")),
        },
        None => Ok(Duration::from_millis(usual)),
    };
    let every = milliseconds(&["OTEL_METRIC_EXPORT_INTERVAL"], 60_000)?;
    let timeout = milliseconds(
        &[
            "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
        ],
        10_000,
    )?;
    let service = text("OTEL_SERVICE_NAME");
    let attributes = text("OTEL_RESOURCE_ATTRIBUTES");
    let mut collector =
        Collector::parse(&url, &headers).map_err(|why| anyhow!("{variable}: {why}"))?;
    (collector.every, collector.timeout) = (every, timeout);
    let mut named = vec![(
        "service.name".to_owned(),
        if service.is_empty() {
            "openshell-sandbox".to_owned()
        } else {
            service
        },
    )];
    named.push((
        "service.version".to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    ));
    named.push(("service.instance.id".to_owned(), name.to_owned()));
    for pair in attributes
        .split(',')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
    {
        let Some((key, value)) = pair.split_once('=') else {
            bail!("OTEL_RESOURCE_ATTRIBUTES is not of the form KEY=VALUE,…")
        };
        if !named.iter().any(|(known, _)| known == key.trim()) {
            named.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    collector.attributes = named;
    Ok(Some(collector))
}

/// Starts the export of `metrics`; the collector's names are looked up by `resolver`, and its
/// certificate is verified by `roots`.
///
/// # Errors
/// The system has no more threads or descriptors.
pub(crate) fn export(
    collector: Collector,
    metrics: Arc<Metrics>,
    resolver: Arc<Resolver>,
    roots: UpstreamRoots,
    start: SystemTime,
) -> anyhow::Result<Exporter> {
    let place = format!("{}:{}", collector.host(), collector.port());
    let host = collector.host().to_owned();
    let port = collector.port();
    let name = Host::parse(&host).map_err(|error| anyhow!("{host}: {error}"))?;
    let is_tls = collector.is_tls();
    let roots = Arc::new(roots);
    let connect: Connect = Box::new(move || {
        let host = host.clone();
        let name = name.clone();
        let resolver = Arc::clone(&resolver);
        let roots = Arc::clone(&roots);
        Box::pin(async move {
            let failed = |error: Refusal| io::Error::other(error.reason().to_string());
            let addresses = resolver
                .addresses(&host)
                .await
                .into_iter()
                .map(|address| SocketAddr::new(address, port));
            let dialed =
                dial_without_deadline(&Destination::configured_by_operator(addresses.collect()))
                    .await;
            let (stream, _) = dialed.map_err(failed)?;
            let stream: Box<dyn Connection> = if is_tls {
                Box::new(roots.open(&name, stream, false).await.map_err(failed)?)
            } else {
                Box::new(stream)
            };
            Ok(stream)
        })
    });
    let at = place.clone();
    let report = Box::new(move |failure: Option<&str>| match failure {
        Some(why) => log(
            ConfigState::Degraded,
            Severity::Medium,
            &format!("no metrics are exported to {place}: {why}"),
        ),
        None => log(
            ConfigState::Enabled,
            Severity::Info,
            &format!("metrics are exported to {place} again"),
        ),
    });
    let exporter = Exporter::start(collector, connect, report, metrics, start)
        .context("cannot export metrics")?;
    log(
        ConfigState::Enabled,
        Severity::Info,
        &format!("Export of metrics to {at}"),
    );
    Ok(exporter)
}

fn log(state: ConfigState, severity: Severity, message: &str) {
    logging::config_event(state, severity, message);
}
