//! The gRPC services: each call, once its volume has no other under way, on a thread that may wait.

mod controller;
mod identity;
mod node;

use std::sync::Arc;

use crust_serve::VolumeTurns;
use tonic::{Response, Status};

use crate::driver::Driver;
use crate::refusal::Refusal;

pub(crate) use controller::ControllerService;
pub(crate) use identity::IdentityService;
pub(crate) use node::NodeService;

/// What the services share.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    driver: Arc<Driver>,
    volumes: VolumeTurns<String>,
    /// Who asks about a volume that may hang: one thread waits for it, however often it is asked about.
    asked: VolumeTurns<String>,
    /// The same for its health, which is asked for beside its stats.
    examined: VolumeTurns<String>,
}

impl Shared {
    pub(crate) fn new(driver: Driver) -> Self {
        Self {
            driver: Arc::new(driver),
            volumes: VolumeTurns::default(),
            asked: VolumeTurns::default(),
            examined: VolumeTurns::default(),
        }
    }

    /// A call that changes a volume. Another one meanwhile is told so, and not made to wait: CSI has a code
    /// for it, and orchestrators try again.
    async fn change<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::about(&volume);
        self.in_turn(&self.volumes, volume, work).await
    }

    /// A call that asks about what is mounted.
    async fn measure<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::about(&volume);
        self.in_turn(&self.asked, volume, work).await
    }

    /// A call that asks how it fares.
    async fn examine<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::about(&volume);
        self.in_turn(&self.examined, volume, work).await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        volumes: &VolumeTurns<String>,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = volumes.try_turn(&volume.to_owned());
        let turn = turn.ok_or_else(|| Refusal::Pending(volume.to_owned()).into_status())?;
        self.run(Some(volume), move |driver| {
            // The work may outlast its caller.
            let _turn = turn;
            work(driver)
        })
        .await
    }

    /// A call that only asks about a volume.
    async fn ask<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::about(&volume);
        self.run(Some(volume), work).await
    }

    /// A call, about one volume or none.
    async fn run<T: Send + 'static>(
        &self,
        volume: Option<&str>,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let driver = Arc::clone(&self.driver);
        let span = tracing::Span::current();
        let done = tokio::task::spawn_blocking(move || span.in_scope(|| work(&driver))).await;
        let done = done.map_err(|error| Status::internal(format!("crust-csi: {error}")))?;
        done.map(Response::new).map_err(|refusal| match volume {
            Some(volume) => refusal.into_status_about(volume),
            None => refusal.into_status(),
        })
    }
}
