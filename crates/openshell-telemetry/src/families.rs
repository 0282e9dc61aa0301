//! The metrics of one moment, from which all their forms are made.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use openshell_events::reason::ReasonCode;

use crate::metrics::{BOUNDS, DECISIONS, DOORS, Durations, Metrics, PROTOCOLS};

/// The prefix of every name.
pub(crate) const PREFIX: &str = "openshell_sandbox";

/// The labels of a number.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// A metric.
#[derive(Debug)]
pub(crate) struct Family {
    /// The metric's name without [`PREFIX`].
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) values: Values,
}

/// The values of a metric.
#[derive(Debug)]
pub(crate) enum Values {
    /// Numbers that only grow.
    Counter(Vec<(Labels, u64)>),
    Gauge(u64),
    /// The counts by upper bound, of which the last is infinite, and the sum of all values.
    Histogram {
        buckets: [(f64, u64); BOUNDS.len()],
        sum: f64,
    },
}

/// Returns all metrics as they are now.
pub(crate) fn now(metrics: &Metrics) -> Vec<Family> {
    let mut families = vec![decisions(metrics)];
    families.extend(traffic(metrics));
    families.extend(models(metrics));
    families.extend([
        counter(
            "credentials_injected",
            "Credentials put into requests",
            metrics.credentials.load(Relaxed),
        ),
        counter(
            "bypass_attempts",
            "Packets past the proxy that the firewall refused",
            metrics.bypasses.load(Relaxed),
        ),
        gauge(
            "ssh_sessions_open",
            "Commands of SSH and exec that run",
            metrics.sessions(),
        ),
        histogram("decision_seconds", "Time of decisions", &metrics.deciding),
        histogram(
            "upstream_connect_seconds",
            "Time of connecting to upstreams",
            &metrics.connecting,
        ),
    ]);
    families.extend(own(metrics));
    families
}

/// Returns how questions to a person ended, those that were not asked included.
fn approvals(metrics: &Metrics, limited: u64) -> Family {
    let ended = metrics.approvals().into_iter();
    let ended = ended.map(|((by, scope), count)| {
        let labels = labels([("by", by.as_str()), ("scope", scope.as_str())]);
        (labels, count)
    });
    let limited = (labels([("by", "none"), ("scope", "limit")]), limited);
    labelled(
        "approvals",
        "Questions to a person, by who answered and how",
        ended.chain([limited]).collect(),
    )
}

fn decisions(metrics: &Metrics) -> Family {
    let values = metrics.decided().map(|(layer, decision, reason, count)| {
        let reason = reason.map_or("", ReasonCode::as_str);
        (
            labels([
                ("layer", layer.as_str()),
                ("decision", decision.as_str()),
                ("reason_code", reason),
            ]),
            count,
        )
    });
    labelled("decisions", "Decisions", values.collect())
}

fn traffic(metrics: &Metrics) -> [Family; 3] {
    let requests = PROTOCOLS
        .iter()
        .zip(&metrics.requests)
        .flat_map(|(protocol, decisions)| {
            let labels = |decision: &str| labels([("protocol", protocol), ("decision", decision)]);
            DECISIONS
                .iter()
                .zip(decisions)
                .map(move |(decision, count)| (labels(decision.as_str()), count.load(Relaxed)))
        });
    let doors = DOORS.iter().zip(&metrics.connections);
    let connections =
        doors.map(|(door, count)| (labels([("door", door.as_str())]), count.load(Relaxed)));
    let direction = |name, count: &AtomicU64| (labels([("direction", name)]), count.load(Relaxed));
    let bytes = vec![
        direction("sent", &metrics.sent),
        direction("received", &metrics.received),
    ];
    [
        labelled(
            "requests",
            "Requests that were decided on",
            requests.collect(),
        ),
        labelled(
            "connections",
            "Connections to upstreams",
            connections.collect(),
        ),
        labelled("bytes", "Bytes of connections that have ended", bytes),
    ]
}

fn models(metrics: &Metrics) -> [Family; 2] {
    let models = metrics.models();
    let requests = models.iter().flat_map(|(route, counts)| {
        let labels = |status: &str| labels([("route", route), ("status", status)]);
        counts
            .requests
            .iter()
            .map(move |(status, count)| (labels(status), *count))
    });
    let tokens = models.iter().flat_map(|(route, counts)| {
        [("input", counts.input), ("output", counts.output)]
            .map(|(kind, count)| (labels([("route", route), ("kind", kind)]), count))
    });
    [
        labelled(
            "inference_requests",
            "Requests to models",
            requests.collect(),
        ),
        labelled("inference_tokens", "Tokens of models", tokens.collect()),
    ]
}

/// Returns the numbers of the supervisor itself.
fn own(metrics: &Metrics) -> Vec<Family> {
    let mut families = Vec::new();
    if let Some(readings) = metrics.readings() {
        let result = |name, count| (labels([("result", name)]), count);
        let reloads = vec![
            result("applied", readings.reloads_applied),
            result("failed", readings.reloads_failed),
        ];
        families.extend([
            gauge(
                "connections_open",
                "Connections at the proxy",
                readings.connections_open,
            ),
            gauge(
                "policy_generation",
                "Generation of the policy in force",
                readings.policy_generation,
            ),
            labelled("policy_reloads", "Reloads of the policy", reloads),
            counter(
                "denials_dropped",
                "Denials of which only the number was kept",
                readings.denials_dropped,
            ),
            counter(
                "log_lines_dropped",
                "Log lines that no output took in time",
                readings.log_lines_dropped,
            ),
            gauge(
                "approvals_held",
                "Requests that wait for a person",
                readings.approvals_held,
            ),
            approvals(metrics, readings.approvals_limited),
        ]);
    }
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    families.extend([
        gauge(
            "process_resident_memory_bytes",
            "Memory of the supervisor",
            resident_bytes().unwrap_or(0),
        ),
        gauge(
            "open_fds",
            "Descriptors of the supervisor",
            u64::try_from(open).unwrap_or(0),
        ),
    ]);
    families
}

fn labels<const N: usize>(labels: [(&'static str, &str); N]) -> Labels {
    labels.map(|(name, value)| (name, value.to_owned())).into()
}

fn labelled(name: &'static str, help: &'static str, values: Vec<(Labels, u64)>) -> Family {
    Family {
        name,
        help,
        values: Values::Counter(values),
    }
}

fn counter(name: &'static str, help: &'static str, count: u64) -> Family {
    labelled(name, help, vec![(Labels::new(), count)])
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> Family {
    Family {
        name,
        help,
        values: Values::Gauge(value),
    }
}

fn histogram(name: &'static str, help: &'static str, durations: &Durations) -> Family {
    let (buckets, sum) = durations.read();
    Family {
        name,
        help,
        values: Values::Histogram { buckets, sum },
    }
}

/// Returns the resident memory of this process, in bytes (proc_pid_status(5)).
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?
        .trim()
        .strip_suffix(" kB")?;
    Some(kibibytes.parse::<u64>().ok()? * 1024)
}
