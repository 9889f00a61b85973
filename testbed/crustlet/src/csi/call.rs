//! The CSI calls that crustlet makes.

use crust_proto::csi::v1::controller_client::ControllerClient;
use crust_proto::csi::v1::identity_client::IdentityClient;
use crust_proto::csi::v1::node_client::NodeClient;
use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, ProbeRequest,
    ProbeResponse,
};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// A CSI request. Its type determines the call. It can contain secrets, so it must not be logged.
pub(crate) trait CsiRequest: Send + Sized {
    type Response: Send;

    /// The method's path, such as `/csi.v1.Node/NodeStageVolume`.
    const METHOD: &'static str;

    /// Sends the request on a channel.
    fn send(
        channel: Channel,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;
}

macro_rules! calls {
    ($($service:literal $client:ident { $($method:ident $name:literal $request:ident $response:ident),+ $(,)? })+) => {$($(
        impl CsiRequest for $request {
            type Response = $response;

            const METHOD: &'static str = concat!("/csi.v1.", $service, "/", $name);

            async fn send(channel: Channel, request: Request<Self>) -> Result<Response<$response>, Status> {
                $client::new(channel).$method(request).await
            }
        }
    )+)+};
}

calls! {
    "Identity" IdentityClient {
        get_plugin_info "GetPluginInfo" GetPluginInfoRequest GetPluginInfoResponse,
        get_plugin_capabilities "GetPluginCapabilities" GetPluginCapabilitiesRequest GetPluginCapabilitiesResponse,
        probe "Probe" ProbeRequest ProbeResponse,
    }
    "Controller" ControllerClient {
        controller_get_capabilities "ControllerGetCapabilities" ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse,
        create_volume "CreateVolume" CreateVolumeRequest CreateVolumeResponse,
        delete_volume "DeleteVolume" DeleteVolumeRequest DeleteVolumeResponse,
        controller_expand_volume "ControllerExpandVolume" ControllerExpandVolumeRequest ControllerExpandVolumeResponse,
    }
    "Node" NodeClient {
        node_get_capabilities "NodeGetCapabilities" NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse,
        node_get_info "NodeGetInfo" NodeGetInfoRequest NodeGetInfoResponse,
        node_stage_volume "NodeStageVolume" NodeStageVolumeRequest NodeStageVolumeResponse,
        node_unstage_volume "NodeUnstageVolume" NodeUnstageVolumeRequest NodeUnstageVolumeResponse,
        node_publish_volume "NodePublishVolume" NodePublishVolumeRequest NodePublishVolumeResponse,
        node_unpublish_volume "NodeUnpublishVolume" NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse,
        node_get_volume_stats "NodeGetVolumeStats" NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse,
        node_get_volume_health "NodeGetVolumeHealth" NodeGetVolumeHealthRequest NodeGetVolumeHealthResponse,
        node_expand_volume "NodeExpandVolume" NodeExpandVolumeRequest NodeExpandVolumeResponse,
    }
}
