//! The driver for block volumes, as the services see it. The calls are implemented in `controller` and `node`.

use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use crust_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use crust_proto::csi::v1::plugin_capability::volume_expansion::Type as ExpansionType;
use crust_proto::csi::v1::plugin_capability::{Service, Type as PluginCapability, VolumeExpansion};
use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, NodeExpandVolumeRequest,
    NodeExpandVolumeResponse, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};

use super::CsiDriver;
use crate::driver::Driver;
use crate::driver_context::DriverContext;
use crate::features::Feature;
use crate::refusal::Refusal;
use crate::store::id_of;

impl CsiDriver for Driver {
    fn context(&self) -> &DriverContext {
        &self.context
    }

    fn plugin_capabilities(&self) -> Vec<PluginCapability> {
        let service = |kind: ServiceType| {
            PluginCapability::Service(Service {
                r#type: kind.into(),
            })
        };
        let online = PluginCapability::VolumeExpansion(VolumeExpansion {
            r#type: ExpansionType::Online.into(),
        });
        let can_grow = self.context.features.has(Feature::ExpandVolume);
        let capabilities = [
            Some(service(ServiceType::ControllerService)),
            Some(service(ServiceType::VolumeAccessibilityConstraints)),
            can_grow.then_some(online),
        ];
        capabilities.into_iter().flatten().collect()
    }

    fn controller_capabilities(&self) -> Vec<ControllerRpc> {
        let always = [
            ControllerRpc::CreateDeleteVolume,
            ControllerRpc::ListVolumes,
            ControllerRpc::GetCapacity,
        ];
        let optional = self.context.features.controller_capabilities();
        always.into_iter().chain(optional).collect()
    }

    fn node_capabilities(&self) -> Vec<NodeRpc> {
        let optional = self.context.features.node_capabilities();
        std::iter::once(NodeRpc::StageUnstageVolume)
            .chain(optional)
            .collect()
    }

    fn accessible_topology(&self) -> Option<Topology> {
        Some(self.topology())
    }

    /// The driver is ready if the data directory can be read.
    fn probe(&self) -> Result<(), Refusal> {
        self.images.check()?;
        self.store.ids()?;
        Ok(())
    }

    fn id_to_create(&self, request: &CreateVolumeRequest) -> String {
        id_of(&request.name)
    }

    fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Refusal> {
        Self::create(self, request)
    }

    fn delete(&self, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Refusal> {
        Self::delete(self, request)
    }

    fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Refusal> {
        Self::validate(self, request)
    }

    fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Refusal> {
        Self::list(self, request)
    }

    fn list_health(
        &self,
        request: &ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, Refusal> {
        Self::list_health(self, request)
    }

    fn get_volume_health(
        &self,
        request: &ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse, Refusal> {
        Self::get_volume_health(self, request)
    }

    fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Refusal> {
        Self::capacity(self, request)
    }

    fn grow(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Refusal> {
        Self::grow(self, request)
    }

    fn stage(&self, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Refusal> {
        Self::stage(self, request)
    }

    fn unstage(
        &self,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Refusal> {
        Self::unstage(self, request)
    }

    fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        Self::publish(self, request)
    }

    fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal> {
        Self::unpublish(self, request)
    }

    fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal> {
        Self::stats(self, request)
    }

    fn health(
        &self,
        request: &NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Refusal> {
        Self::health(self, request)
    }

    fn expand(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Refusal> {
        Self::expand(self, request)
    }

    fn storage_health(&self) -> Result<NodeGetStorageHealthResponse, Refusal> {
        self.context
            .check_feature(Feature::GetStorageHealth, "GET_STORAGE_HEALTH")?;
        Ok(NodeGetStorageHealthResponse {
            backend_health: Self::storage_health(self),
        })
    }
}
