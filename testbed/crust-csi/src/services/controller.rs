//! The service `csi.v1.Controller`: runs each call on the driver.

use crust_proto::csi::v1::controller_server::Controller;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as RpcType;
use crust_proto::csi::v1::controller_service_capability::{Rpc, Type};
use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse,
    ControllerServiceCapability, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, ListVolumesRequest,
    ListVolumesResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use tonic::{Request, Response, Status};

use super::ServiceState;
use crate::features::Feature;
use crate::store::id_of;

#[derive(Debug)]
pub(crate) struct ControllerService(pub(crate) ServiceState);

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = id_of(&request.name);
        self.0
            .change(&id, move |driver| driver.create(&request))
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.delete(&request))
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .ask(&id, move |driver| driver.validate(request))
            .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        self.0.run(None, move |driver| driver.list(&request)).await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        self.0
            .run(None, move |driver| driver.list_health(&request))
            .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .ask(&id, move |driver| driver.get_volume_health(&request))
            .await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let request = request.into_inner();
        self.0
            .run(None, move |driver| driver.capacity(&request))
            .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let features = &self.0.driver.features;
        let optional = [
            (Feature::ExpandVolume, RpcType::ExpandVolume),
            (
                Feature::SingleNodeMultiWriter,
                RpcType::SingleNodeMultiWriter,
            ),
            (Feature::GetVolumeHealth, RpcType::GetVolumeHealth),
            (Feature::GetVolumeHealth, RpcType::ListVolumeHealth),
        ];
        let there = optional
            .into_iter()
            .filter(|(feature, _)| features.has(*feature));
        let always = [
            RpcType::CreateDeleteVolume,
            RpcType::ListVolumes,
            RpcType::GetCapacity,
        ];
        let all = always.into_iter().chain(there.map(|(_, rpc)| rpc));
        let capabilities = all.map(|rpc| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.grow(&request))
            .await
    }
}
