//! The metrics as text (OpenMetrics 1.0).

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::families::{self, Family, PREFIX, Values};
use crate::metrics::Metrics;

/// The media type of [`text`].
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns all metrics as they are now.
///
/// # Errors
/// No error is known: the encoder writes to memory.
pub(crate) fn text(metrics: &Arc<Metrics>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Now(Arc::clone(metrics))));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// The numbers of one scrape.
#[derive(Debug)]
struct Now(Arc<Metrics>);

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        families::now(&self.0)
            .iter()
            .try_for_each(|family| add(&mut encoder, family))
    }
}

fn add(encoder: &mut DescriptorEncoder<'_>, Family { name, help, values }: &Family) -> fmt::Result {
    match values {
        Values::Counter(values) => {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (labels, count) in values {
                if labels.is_empty() {
                    family.encode_counter::<NoLabelSet, _, u64>(count, None)?
                } else {
                    family
                        .encode_family(labels)?
                        .encode_counter::<NoLabelSet, _, u64>(count, None)?
                }
            }
            Ok(())
        }
        Values::Gauge(value) => {
            let gauge = ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        }
        Values::Histogram { buckets, sum } => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
            family.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
    }
}
