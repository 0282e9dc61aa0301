//! The metrics as text (OpenMetrics 1.0).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use openshell_policy::reason::ReasonCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::metrics::{DECISIONS, DOORS, Durations, Metrics, PROTOCOLS};

/// Media type of [`text`].
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a number.
type Labels<'l> = [(&'static str, &'l str)];

/// Returns all metrics as they are now.
///
/// # Errors
/// None that is known: the encoder writes to memory.
pub(crate) fn text(metrics: &Arc<Metrics>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("openshell_sandbox");
    registry.register_collector(Box::new(Now(Arc::clone(metrics))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The numbers of one scrape.
#[derive(Debug)]
struct Now(Arc<Metrics>);

impl Collector for Now {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(metrics) = self;
        let mut page = Page(encoder);
        page.decisions(metrics)?;
        page.traffic(metrics)?;
        page.models(metrics)?;
        page.counter("credentials_injected", "Credentials put into requests", metrics.credentials.load(Relaxed))?;
        page.counter(
            "bypass_attempts",
            "Packets past the proxy that the firewall refused",
            metrics.bypasses.load(Relaxed),
        )?;
        page.gauge("ssh_sessions_open", "Commands of SSH and exec that run", metrics.sessions())?;
        page.histogram("decision_seconds", "Time of decisions", &metrics.deciding)?;
        page.histogram("upstream_connect_seconds", "Time of connecting to upstreams", &metrics.connecting)?;
        page.own(metrics)
    }
}

/// The text so far.
struct Page<'e>(DescriptorEncoder<'e>);

impl Page<'_> {
    fn decisions(&mut self, metrics: &Metrics) -> fmt::Result {
        let name = "decisions";
        let mut family = self.0.encode_descriptor(name, "Decisions", None, MetricType::Counter)?;
        for (layer, decision, reason, count) in metrics.decided() {
            let reason = reason.map_or("", ReasonCode::as_str);
            let labels: &Labels<'_> =
                &[("layer", layer.as_str()), ("decision", decision.as_str()), ("reason_code", reason)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
        Ok(())
    }

    fn traffic(&mut self, metrics: &Metrics) -> fmt::Result {
        let mut family =
            self.0.encode_descriptor("requests", "Requests that were decided on", None, MetricType::Counter)?;
        for (protocol, decisions) in PROTOCOLS.iter().zip(&metrics.requests) {
            for (decision, count) in DECISIONS.iter().zip(decisions) {
                let labels: &Labels<'_> = &[("protocol", protocol), ("decision", decision.as_str())];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count.load(Relaxed), None)?;
            }
        }
        let mut family =
            self.0.encode_descriptor("connections", "Connections to upstreams", None, MetricType::Counter)?;
        for (door, count) in DOORS.iter().zip(&metrics.connections) {
            let labels: &Labels<'_> = &[("door", door.as_str())];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count.load(Relaxed), None)?;
        }
        let help = "Bytes of connections that have ended";
        let mut family = self.0.encode_descriptor("bytes", help, None, MetricType::Counter)?;
        for (direction, count) in [("sent", &metrics.sent), ("received", &metrics.received)] {
            let labels: &Labels<'_> = &[("direction", direction)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count.load(Relaxed), None)?;
        }
        Ok(())
    }

    fn models(&mut self, metrics: &Metrics) -> fmt::Result {
        let models = metrics.models();
        let mut family =
            self.0.encode_descriptor("inference_requests", "Requests to models", None, MetricType::Counter)?;
        for (route, counts) in &models {
            for (status, count) in &counts.requests {
                let labels: &Labels<'_> = &[("route", route), ("status", status)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
            }
        }
        let mut family = self.0.encode_descriptor("inference_tokens", "Tokens of models", None, MetricType::Counter)?;
        for (route, counts) in &models {
            for (kind, count) in [("input", counts.input), ("output", counts.output)] {
                let labels: &Labels<'_> = &[("route", route), ("kind", kind)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    /// The numbers of the supervisor itself.
    fn own(&mut self, metrics: &Metrics) -> fmt::Result {
        if let Some(readings) = metrics.readings() {
            self.gauge("connections_open", "Connections at the proxy", readings.connections_open)?;
            self.gauge("policy_generation", "Generation of the policy in force", readings.policy_generation)?;
            let help = "Reloads of the policy";
            let mut family = self.0.encode_descriptor("policy_reloads", help, None, MetricType::Counter)?;
            for (result, count) in [("applied", readings.reloads_applied), ("failed", readings.reloads_failed)] {
                let labels: &Labels<'_> = &[("result", result)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
            self.counter("denials_dropped", "Denials of which only the number was kept", readings.denials_dropped)?;
            let help = "Log lines that no output took in time";
            self.counter("log_lines_dropped", help, readings.log_lines_dropped)?;
        }
        let resident = resident_bytes().unwrap_or(0);
        self.gauge("process_resident_memory_bytes", "Memory of the supervisor", resident)?;
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        self.gauge("open_fds", "Descriptors of the supervisor", u64::try_from(open).unwrap_or(0))
    }

    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let counter = ConstCounter::new(count);
        counter.encode(self.0.encode_descriptor(name, help, None, counter.metric_type())?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        gauge.encode(self.0.encode_descriptor(name, help, None, gauge.metric_type())?)
    }

    fn histogram(&mut self, name: &str, help: &str, durations: &Durations) -> fmt::Result {
        let (buckets, sum) = durations.read();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

/// Memory of this process that is resident (proc_pid_status(5)).
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().strip_suffix(" kB")?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}
