//! The metrics in the form of OpenTelemetry: those parts of its protocol's messages that are used
//! here (OTLP 1.5, opentelemetry/proto/collector/metrics/v1).

use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use crate::families::{Family, Labels, PREFIX, Values};

/// Totals since the start (AGGREGATION_TEMPORALITY_CUMULATIVE).
const CUMULATIVE: i32 = 2;

/// `ExportMetricsServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string_value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Gauge>,
    #[prost(message, optional, tag = "7")]
    sum: Option<Sum>,
    #[prost(message, optional, tag = "9")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<HistogramDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct NumberDataPoint {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(sfixed64, optional, tag = "6")]
    as_int: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramDataPoint {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    explicit_bounds: Vec<f64>,
}

/// Returns `families`, counted from `start` until `now`, as the metrics of a program with
/// `attributes`.
pub(crate) fn export(
    families: &[Family],
    attributes: &[(String, String)],
    start: SystemTime,
    now: SystemTime,
) -> Export {
    let start = nanoseconds(start);
    let now = nanoseconds(now);
    let metrics = families
        .iter()
        .map(|family| metric(family, start, now))
        .collect();
    let attributes = attributes
        .iter()
        .map(|(key, value)| attribute(key, value))
        .collect();
    let scope = Some(Scope {
        name: PREFIX.to_owned(),
    });
    let resource = Some(Resource { attributes });
    Export {
        resource_metrics: vec![ResourceMetrics {
            resource,
            scope_metrics: vec![ScopeMetrics { scope, metrics }],
        }],
    }
}

fn metric(Family { name, help, values }: &Family, start: u64, now: u64) -> Metric {
    let number = |labels: &Labels, value: u64| NumberDataPoint {
        start_time_unix_nano: start,
        time_unix_nano: now,
        as_int: Some(i64::try_from(value).unwrap_or(i64::MAX)),
        attributes: labels
            .iter()
            .map(|(key, value)| attribute(key, value))
            .collect(),
    };
    let unit = if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("bytes") {
        "By"
    } else {
        ""
    };
    let mut metric = Metric {
        name: format!("{PREFIX}_{name}"),
        description: (*help).to_owned(),
        unit: unit.to_owned(),
        ..Metric::default()
    };
    match values {
        Values::Counter(values) => {
            let data_points = values
                .iter()
                .map(|(labels, count)| number(labels, *count))
                .collect();
            metric.sum = Some(Sum {
                data_points,
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            });
        }
        Values::Gauge(value) => {
            metric.gauge = Some(Gauge {
                data_points: vec![number(&Labels::new(), *value)],
            })
        }
        Values::Histogram { buckets, sum } => {
            let bucket_counts: Vec<_> = buckets.iter().map(|(_, count)| *count).collect();
            let data_point = HistogramDataPoint {
                start_time_unix_nano: start,
                time_unix_nano: now,
                count: bucket_counts.iter().sum(),
                sum: Some(*sum),
                bucket_counts,
                // The last bound is infinite, and OTLP implies it.
                explicit_bounds: buckets
                    .iter()
                    .map(|(bound, _)| *bound)
                    .filter(|bound| bound.is_finite())
                    .collect(),
            };
            metric.histogram = Some(Histogram {
                data_points: vec![data_point],
                aggregation_temporality: CUMULATIVE,
            });
        }
    }
    metric
}

fn attribute(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            string_value: Some(value.to_owned()),
        }),
    }
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}
