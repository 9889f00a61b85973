//! `GET /metrics` and `GET /healthz`.

use std::sync::Arc;

use crust_serve::http::{self, Listener, OPENMETRICS, Page, Pages};

use super::Metrics;

/// Answers until the process ends.
pub(crate) async fn serve(listener: Listener, metrics: Arc<Metrics>) {
    http::serve("metrics", listener, Told(metrics)).await;
}

/// What is known by then.
pub(super) struct Told(pub(super) Arc<Metrics>);

impl Pages for Told {
    async fn page(&self, path: &str) -> Option<Page> {
        match path {
            "/metrics" => Some(Page {
                content_type: OPENMETRICS,
                body: self.0.text(),
            }),
            // Whoever answers here is well.
            "/healthz" => Some(Page {
                content_type: "text/plain; charset=utf-8",
                body: "ok".to_owned(),
            }),
            _ => None,
        }
    }
}
