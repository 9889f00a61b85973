//! `GET /metrics`, with the volumes of that moment.

use std::sync::Arc;

use crust_serve::http::{OPENMETRICS, Page, Pages};
use crust_serve::listen::ListenError;
use tokio::sync::watch;

use super::Metrics;
use super::counting::Counting;
use crate::DAEMON;
use crate::node::StagingNode;
use crate::settings::MetricsAddress;

pub(crate) use crust_serve::http::Listener;

/// Listens where metrics are told. At a port requests may give these host names, too.
pub(crate) async fn listen(
    address: &MetricsAddress,
    hosts: &[String],
) -> Result<Listener, ListenError> {
    match address {
        MetricsAddress::Unix(path) => Listener::unix(&DAEMON, path),
        MetricsAddress::Tcp(address) => Listener::tcp(address, hosts).await,
    }
}

/// Answers until the process ends.
pub(crate) async fn serve(
    listener: Listener,
    metrics: Arc<Metrics>,
    node: watch::Receiver<StagingNode>,
) {
    let volumes = Counting::new(move || {
        let node = node.borrow().clone();
        tokio::spawn(async move { node.counts().await.map_err(|error| error.to_string()) })
    });
    crust_serve::http::serve("metrics", listener, Told { metrics, volumes }).await;
}

struct Told {
    metrics: Arc<Metrics>,
    volumes: Counting,
}

impl Pages for Told {
    async fn page(&self, path: &str) -> Option<Page> {
        if path != "/metrics" {
            return None;
        }
        Some(Page {
            content_type: OPENMETRICS,
            body: self.metrics.text(self.volumes.count().await),
        })
    }
}
