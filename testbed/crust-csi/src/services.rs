//! The gRPC services. Each call runs on a blocking thread, unless another call for its volume is in progress.

mod controller;
mod node;

use std::sync::Arc;

use crust_proto::csi::v1::identity_server::Identity;
use crust_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use crust_serve::KeyedLocks;
use tonic::{Request, Response, Status};

use crate::csi_driver::CsiDriver;
use crate::refusal::Refusal;

pub(crate) use controller::ControllerService;
pub(crate) use node::NodeService;

/// The driver, and the locks that serialise the calls for a volume.
#[derive(Debug)]
pub(crate) struct ServiceState<D> {
    driver: Arc<D>,
    /// Locks for calls that change a volume.
    change_locks: KeyedLocks<String>,
    /// Locks for calls for statistics. If a volume hangs, only one thread waits for it.
    stats_locks: KeyedLocks<String>,
    /// Locks for calls for health. They can run at the same time as calls for statistics.
    health_locks: KeyedLocks<String>,
}

impl<D> Clone for ServiceState<D> {
    fn clone(&self) -> Self {
        Self {
            driver: Arc::clone(&self.driver),
            change_locks: self.change_locks.clone(),
            stats_locks: self.stats_locks.clone(),
            health_locks: self.health_locks.clone(),
        }
    }
}

impl<D: CsiDriver> ServiceState<D> {
    pub(crate) fn new(driver: D) -> Self {
        Self {
            driver: Arc::new(driver),
            change_locks: KeyedLocks::default(),
            stats_locks: KeyedLocks::default(),
            health_locks: KeyedLocks::default(),
        }
    }

    /// Runs a call that changes a volume. If another one is in progress, fails with `ABORTED` as CSI specifies, and the
    /// orchestrator retries.
    async fn change<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&D) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run_exclusive(&self.change_locks, volume, work).await
    }

    /// Runs a call for a volume's statistics.
    async fn measure<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&D) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run_exclusive(&self.stats_locks, volume, work).await
    }

    /// Runs a call for a volume's health.
    async fn examine<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&D) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run_exclusive(&self.health_locks, volume, work).await
    }

    async fn run_exclusive<T: Send + 'static>(
        &self,
        locks: &KeyedLocks<String>,
        volume: &str,
        work: impl FnOnce(&D) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let guard = locks.try_lock(&volume.to_owned());
        let guard = guard.ok_or_else(|| Refusal::Pending(volume.to_owned()).into_status())?;
        self.run(Some(volume), move |driver| {
            // The guard is held here because the work may outlast its caller.
            let _guard = guard;
            work(driver)
        })
        .await
    }

    /// Runs a call that only reads the state of a volume. It needs no lock.
    async fn ask<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&D) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run(Some(volume), work).await
    }

    /// Runs work on a blocking thread. `volume` is the volume that the call names, for errors.
    async fn run<T: Send + 'static>(
        &self,
        volume: Option<&str>,
        work: impl FnOnce(&D) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let driver = Arc::clone(&self.driver);
        let span = tracing::Span::current();
        let done = tokio::task::spawn_blocking(move || span.in_scope(|| work(&driver))).await;
        let done = done.map_err(|error| Status::internal(format!("crust-csi: {error}")))?;
        done.map(Response::new).map_err(|refusal| match volume {
            Some(volume) => refusal.into_status_for(volume),
            None => refusal.into_status(),
        })
    }
}

/// The service `csi.v1.Identity`.
#[derive(Debug)]
pub(crate) struct IdentityService<D>(pub(crate) ServiceState<D>);

#[tonic::async_trait]
impl<D: CsiDriver> Identity for IdentityService<D> {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.driver.context().settings.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let capabilities = self.0.driver.plugin_capabilities().into_iter();
        let capabilities = capabilities.map(|it| PluginCapability { r#type: Some(it) });
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let probe = |driver: &D| {
            driver.probe()?;
            Ok(ProbeResponse { ready: Some(true) })
        };
        self.0.run(None, probe).await
    }
}
