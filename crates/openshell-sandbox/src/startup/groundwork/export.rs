//! The export of metrics to a collector.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, anyhow};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::network::host::Host;
use openshell_proxy::denial::refusal::Refusal;
use openshell_proxy::reach::dial::dial_without_deadline;
use openshell_proxy::reach::resolve::guard::Destination;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_proxy::wire::tls::originate::UpstreamRoots;
use openshell_telemetry::export::{Collector, Connect, Connection, Exporter};
use openshell_telemetry::logging;
use openshell_telemetry::metrics::Metrics;

/// Starts the export of `metrics`. `resolver` looks up the collector's names, and `roots` verify
/// its certificate.
///
/// # Errors
/// Fails if the system has no more threads or descriptors.
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
        Some(why) => logging::config_event(
            ConfigState::Degraded,
            Severity::Medium,
            &format!("cannot export metrics to {place}: {why}"),
        ),
        None => logging::config_event(
            ConfigState::Enabled,
            Severity::Info,
            &format!("metrics are exported to {place} again"),
        ),
    });
    let exporter = Exporter::start(collector, connect, report, metrics, start)
        .context("cannot export metrics")?;
    logging::config_event(
        ConfigState::Enabled,
        Severity::Info,
        &format!("Export of metrics to {at}"),
    );
    Ok(exporter)
}
