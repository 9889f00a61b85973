//! The gRPC servers: one a socket, each with its health and its description.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::call::Calls;
use crate::listen::Connections;
use crate::metrics::Metrics;
use crate::settings::Settings;

/// What clients are given to close their connections at the end; one that is stopped never does.
const PARTING: Duration = Duration::from_secs(1);

/// Those that serve.
pub(super) struct Servers {
    tasks: JoinSet<Result<()>>,
    /// With the names that their health is asked by.
    reporters: Vec<(HealthReporter, &'static str)>,
    calls: Calls,
    max_streams: u32,
    end: watch::Sender<bool>,
}

impl Servers {
    pub(super) fn new(settings: &Settings, metrics: &Arc<Metrics>) -> Self {
        Self {
            tasks: JoinSet::new(),
            reporters: Vec::new(),
            calls: Calls::new(Arc::clone(metrics), settings.max_calls),
            max_streams: settings.max_streams,
            end: watch::Sender::new(false),
        }
    }

    /// Serves a service on a socket.
    pub(super) async fn add(
        &mut self,
        name: &'static str,
        routes: Routes,
        connections: Connections<UnixListener>,
    ) -> Result<()> {
        let routes = self.described(name, routes).await?;
        let mut end = self.end.subscribe();
        let ended = async move {
            // Whoever would say so is gone.
            let _ = end.wait_for(|end| *end).await;
        };
        let server = Server::builder()
            .max_concurrent_streams(self.max_streams)
            .layer(self.calls.clone())
            .add_routes(routes)
            .serve_with_incoming_shutdown(connections, ended);
        self.tasks
            .spawn(async move { server.await.context("gRPC server") });
        Ok(())
    }

    async fn described(&mut self, name: &'static str, routes: Routes) -> Result<Routes> {
        let (reporter, health) = tonic_health::server::health_reporter();
        for service in [name, ""] {
            reporter
                .set_service_status(service, ServingStatus::Serving)
                .await;
            self.reporters.push((reporter.clone(), service));
        }
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crust_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(name)
            .with_service_name("grpc.health.v1.Health")
            .build_v1()
            .context("reflection")?;
        Ok(routes.add_service(health).add_service(reflection))
    }

    /// Waits for one that can't go on.
    pub(super) async fn failed(&mut self) -> Result<()> {
        match self.tasks.join_next().await {
            Some(ended) => flat(ended).and_then(|()| anyhow::bail!("a gRPC server has ended")),
            None => std::future::pending().await,
        }
    }

    /// Lets calls under way come to their end, no longer than `drain`, and their callers hear of it.
    pub(super) async fn end(mut self, drain: Duration) -> Result<()> {
        for (reporter, service) in &mut self.reporters {
            let not = ServingStatus::NotServing;
            reporter.set_service_status(*service, not).await;
            // Whoever watches is told so and no more, for a watch is no call to wait for.
            reporter.clear_service_status(service).await;
            reporter.set_service_status(*service, not).await;
        }
        // Connections are there until then: whoever calls is told.
        if timeout(drain, self.calls.end()).await.is_err() {
            tracing::warn!("calls under way were cut off after {} s", drain.as_secs());
        }
        self.end.send_replace(true);
        let parted = async {
            while let Some(ended) = self.tasks.join_next().await {
                flat(ended)?;
            }
            Ok(())
        };
        // One that is stopped never hears of it.
        timeout(PARTING, parted).await.unwrap_or(Ok(()))
    }
}

fn flat(ended: Result<Result<()>, JoinError>) -> Result<()> {
    ended.context("gRPC server")?
}
