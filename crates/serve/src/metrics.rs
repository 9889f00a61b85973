//! Metrics for Prometheus: how a daemon registers them, and the page that shows them.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Metric, Registry};

use crate::http::Page;

/// Registers a metric that counts nothing yet, and returns it. The encoder adds `_total` to a counter's name.
pub fn registered<M>(registry: &mut Registry, name: &str, help: &str) -> M
where
    M: Metric + Clone + Default,
{
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Returns the page of a registry, as Prometheus reads it.
#[must_use]
pub fn page(registry: &Registry) -> Page {
    let mut body = String::new();
    // Writing to a String doesn't fail.
    let _ = encode(&mut body, registry);
    Page {
        content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
        body,
    }
}
