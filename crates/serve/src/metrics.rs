//! Metrics for Prometheus: their registration, and the page with their values.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Metric, Registry};

use crate::http::Page;

/// Registers a new metric and returns it. The encoder appends `_total` to a counter's name.
pub fn registered<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: Metric + Clone + Default,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Returns the metrics of a registry in the OpenMetrics text format.
#[must_use]
pub fn page(registry: &Registry) -> Page {
    let mut body = String::new();
    // Writing to a String never fails.
    let _ = encode(&mut body, registry);
    Page {
        content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
        body,
    }
}
