//! `csi.v1.Identity`.

use crust_proto::csi::v1::identity_server::Identity;
use crust_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use crust_proto::csi::v1::plugin_capability::volume_expansion::Type as ExpansionType;
use crust_proto::csi::v1::plugin_capability::{Service, Type, VolumeExpansion};
use crust_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use super::Shared;
use crate::features::Feature;

/// The service.
#[derive(Debug)]
pub(crate) struct IdentityService(pub(crate) Shared);

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

    /// It can work as long as its data directory can be read; `crust_ops` is needed for some volumes alone.
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
