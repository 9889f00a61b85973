//! The service `csi.v1.Controller`: runs each call on the driver.

use crust_proto::csi::v1::controller_server::Controller;
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
use crate::csi_driver::CsiDriver;

#[derive(Debug)]
pub(crate) struct ControllerService<D>(pub(crate) ServiceState<D>);

#[tonic::async_trait]
impl<D: CsiDriver> Controller for ControllerService<D> {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = self.0.driver.id_to_create(&request);
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
        let all = self.0.driver.controller_capabilities().into_iter();
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
