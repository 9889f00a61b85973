//! The service `csi.v1.Node`: runs each call on the driver.

use crust_proto::csi::v1::node_server::Node;
use crust_proto::csi::v1::node_service_capability::{Rpc, Type};
use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use tonic::{Request, Response, Status};

use super::ServiceState;
use crate::csi_driver::CsiDriver;
use crate::features::KnownFields;

#[derive(Debug)]
pub(crate) struct NodeService<D>(pub(crate) ServiceState<D>);

impl<D: CsiDriver> NodeService<D> {
    /// Returns the request without the fields that a driver with these capabilities doesn't know.
    fn known_fields<R: KnownFields>(&self, request: Request<R>) -> R {
        let mut request = request.into_inner();
        request.clear_unknown_fields(&self.0.driver.context().features);
        request
    }
}

#[tonic::async_trait]
impl<D: CsiDriver> Node for NodeService<D> {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = self.known_fields(request);
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.stage(&request))
            .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.unstage(&request))
            .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = self.known_fields(request);
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.publish(&request))
            .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = self.known_fields(request);
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.unpublish(&request))
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = self.known_fields(request);
        let id = request.volume_id.clone();
        self.0
            .measure(&id, move |driver| driver.stats(&request))
            .await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let request = request.into_inner();
        let id = request.volume_id.clone();
        self.0
            .examine(&id, move |driver| driver.health(&request))
            .await
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        self.0.run(None, CsiDriver::storage_health).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = self.known_fields(request);
        let id = request.volume_id.clone();
        self.0
            .change(&id, move |driver| driver.expand(&request))
            .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let all = self.0.driver.node_capabilities().into_iter();
        let capabilities = all.map(|rpc| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc.into() })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let driver = &self.0.driver;
        let settings = &driver.context().settings;
        Ok(Response::new(NodeGetInfoResponse {
            node_id: settings.node_id(),
            max_volumes_per_node: settings.max_volumes,
            accessible_topology: driver.accessible_topology(),
        }))
    }
}
