//! The driver for block volumes (`--driver block`). A volume is an image file on a loop device.
//!
//! | module | contents |
//! |---|---|
//! | `driver`, `publications` | the state that the calls share; the publications that really exist |
//! | `controller`, `volume_size` | creates, expands, lists and deletes volumes |
//! | `volume_files` | creates and deletes records and images, and reserves space |
//! | `node` | volumes on this node: stage, publish, statistics, expand |
//! | `inline_attributes` | attributes of a volume in the spec of a pod |
//! | `record`, `images` | a record and an image file for each volume |
//! | `format` | fsck, and mkfs on empty volumes |
//! | `mounts` | mounts of file systems and device nodes on the host |
//! | `image_health` | problems of a volume's image, or of the directory of all images |
//!
//! [`crust_blockfs::loops`] attaches images to loop devices.

mod controller;
mod driver;
mod format;
mod image_health;
mod images;
mod inline_attributes;
mod mounts;
mod node;
mod publications;
mod record;
mod volume_files;
mod volume_size;

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

use crate::csi_driver::CsiDriver;
use crate::driver_context::DriverContext;
use crate::features::Feature;
use crate::refusal::Refusal;
use crate::store::{self, id_of};
pub(crate) use driver::BlockDriver;
pub(crate) use format::Fstype;

pub(crate) type Capability = crate::capability::Capability<Fstype>;
pub(crate) type MountCapability = crate::capability::MountCapability<Fstype>;
pub(crate) type Publication = store::Publication<Fstype>;

impl CsiDriver for BlockDriver {
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
