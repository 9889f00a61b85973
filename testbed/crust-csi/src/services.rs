//! The gRPC services. Each call runs on a thread that may wait, once no other call of its volume is under way.

mod controller;
mod node;

use std::sync::Arc;

use crust_proto::csi::v1::identity_server::Identity;
use crust_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use crust_proto::csi::v1::plugin_capability::volume_expansion::Type as ExpansionType;
use crust_proto::csi::v1::plugin_capability::{Service, Type, VolumeExpansion};
use crust_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use crust_serve::KeyedLocks;
use tonic::{Request, Response, Status};

use crate::driver::Driver;
use crate::features::Feature;
use crate::refusal::Refusal;

pub(crate) use controller::ControllerService;
pub(crate) use node::NodeService;

/// The state that the services share.
#[derive(Debug, Clone)]
pub(crate) struct ServiceState {
    driver: Arc<Driver>,
    change_locks: KeyedLocks<String>,
    /// The calls for statistics. However many ask about a volume that hangs, one thread waits for it.
    stats_locks: KeyedLocks<String>,
    /// The calls for health, which come beside those for statistics.
    health_locks: KeyedLocks<String>,
}

impl ServiceState {
    pub(crate) fn new(driver: Driver) -> Self {
        Self {
            driver: Arc::new(driver),
            change_locks: KeyedLocks::default(),
            stats_locks: KeyedLocks::default(),
            health_locks: KeyedLocks::default(),
        }
    }

    /// Runs a call that changes a volume. Another call meanwhile fails with CSI's code for that (`ABORTED`), after
    /// which orchestrators try again.
    async fn change<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run_exclusive(&self.change_locks, volume, work).await
    }

    /// Runs a call for a volume's statistics.
    async fn measure<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run_exclusive(&self.stats_locks, volume, work).await
    }

    /// Runs a call for a volume's health.
    async fn examine<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run_exclusive(&self.health_locks, volume, work).await
    }

    async fn run_exclusive<T: Send + 'static>(
        &self,
        volumes: &KeyedLocks<String>,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let turn = volumes.try_lock(&volume.to_owned());
        let turn = turn.ok_or_else(|| Refusal::Pending(volume.to_owned()).into_status())?;
        self.run(Some(volume), move |driver| {
            // The work may outlast its caller.
            let _turn = turn;
            work(driver)
        })
        .await
    }

    /// Runs a call that only reads about a volume.
    async fn ask<T: Send + 'static>(
        &self,
        volume: &str,
        work: impl FnOnce(&Driver) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        crust_serve::record_volume(&volume);
        self.run(Some(volume), work).await
    }

    /// Runs a call that is about one volume or none.
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
            Some(volume) => refusal.into_status_for(volume),
            None => refusal.into_status(),
        })
    }
}

/// `csi.v1.Identity`.
#[derive(Debug)]
pub(crate) struct IdentityService(pub(crate) ServiceState);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.driver.settings.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |of: ServiceType| Type::Service(Service { r#type: of.into() });
        let online = Type::VolumeExpansion(VolumeExpansion {
            r#type: ExpansionType::Online.into(),
        });
        let can_grow = self.0.driver.features.has(Feature::ExpandVolume);
        let capabilities = [
            Some(service(ServiceType::ControllerService)),
            Some(service(ServiceType::VolumeAccessibilityConstraints)),
            can_grow.then_some(online),
        ];
        let capabilities = capabilities.into_iter().flatten();
        let capabilities = capabilities.map(|it| PluginCapability { r#type: Some(it) });
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    /// Answers as ready if the data directory can be read. `crust_ops` is needed only for some volumes.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.0
            .run(None, |driver| {
                driver.images.check()?;
                driver.store.ids()?;
                Ok(ProbeResponse { ready: Some(true) })
            })
            .await
    }
}
