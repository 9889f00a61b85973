//! The interface between the gRPC services and the two drivers.

use std::fmt::Debug;

use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use crust_proto::csi::v1::plugin_capability::Type as PluginCapability;
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

use crate::driver_context::DriverContext;
use crate::refusal::Refusal;

/// A driver that the gRPC services run.
///
/// Calls block, and run on threads of their own. The services lock the volume of a call that changes it. A call without
/// an implementation is refused; its capability isn't reported.
pub(crate) trait CsiDriver: Debug + Send + Sync + 'static {
    fn context(&self) -> &DriverContext;

    fn plugin_capabilities(&self) -> Vec<PluginCapability>;

    fn controller_capabilities(&self) -> Vec<ControllerRpc>;

    fn node_capabilities(&self) -> Vec<NodeRpc>;

    /// Returns the part of the cluster that can use this node's volumes. `None` if every node can.
    fn accessible_topology(&self) -> Option<Topology> {
        None
    }

    /// Succeeds if the driver is ready. `crust_ops` is needed only for some volumes.
    fn probe(&self) -> Result<(), Refusal>;

    /// Returns the id of the volume that a request creates, to lock it. If the request is invalid, any text will do.
    fn id_to_create(&self, request: &CreateVolumeRequest) -> String;

    fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, Refusal>;

    fn delete(&self, request: &DeleteVolumeRequest) -> Result<DeleteVolumeResponse, Refusal>;

    fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Refusal>;

    fn list(&self, _: &ListVolumesRequest) -> Result<ListVolumesResponse, Refusal> {
        Err(Refusal::Unimplemented("ListVolumes"))
    }

    fn list_health(
        &self,
        _: &ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, Refusal> {
        Err(Refusal::Unimplemented("ControllerListVolumeHealth"))
    }

    fn get_volume_health(
        &self,
        _: &ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse, Refusal> {
        Err(Refusal::Unimplemented("ControllerGetVolumeHealth"))
    }

    fn capacity(&self, _: &GetCapacityRequest) -> Result<GetCapacityResponse, Refusal> {
        Err(Refusal::Unimplemented("GetCapacity"))
    }

    fn grow(
        &self,
        _: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Refusal> {
        Err(Refusal::Unimplemented("ControllerExpandVolume"))
    }

    fn stage(&self, _: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Refusal> {
        Err(Refusal::Unimplemented("NodeStageVolume"))
    }

    fn unstage(&self, _: &NodeUnstageVolumeRequest) -> Result<NodeUnstageVolumeResponse, Refusal> {
        Err(Refusal::Unimplemented("NodeUnstageVolume"))
    }

    fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Refusal>;

    fn unpublish(
        &self,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Refusal>;

    fn stats(
        &self,
        request: &NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, Refusal>;

    fn health(
        &self,
        _: &NodeGetVolumeHealthRequest,
    ) -> Result<NodeGetVolumeHealthResponse, Refusal> {
        Err(Refusal::Unimplemented("NodeGetVolumeHealth"))
    }

    fn storage_health(&self) -> Result<NodeGetStorageHealthResponse, Refusal> {
        Err(Refusal::Unimplemented("NodeGetStorageHealth"))
    }

    fn expand(&self, _: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Refusal> {
        Err(Refusal::Unimplemented("NodeExpandVolume"))
    }
}
