//! Blocking calls of the three CSI services.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_proto::csi::v1::controller_client::ControllerClient;
use crust_proto::csi::v1::identity_client::IdentityClient;
use crust_proto::csi::v1::node_client::NodeClient;
use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse,
    GetPluginInfoRequest, GetPluginInfoResponse, ListVolumesRequest, ListVolumesResponse,
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest,
    NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, ProbeRequest, ProbeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::grpc;

/// The timeout of one call, which is kubelet's.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A request to a CSI driver.
pub trait CsiRequest: Clone + Debug + Send + Sync + 'static {
    /// The name of the request's message.
    const NAME: &'static str;

    type Response: Debug + Send + 'static;

    /// Sends the request over a channel.
    fn on(
        self,
        channel: Channel,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;
}

macro_rules! calls {
    ($($client:ident $method:ident $request:ident $answer:ident),+ $(,)?) => {$(
        impl CsiRequest for $request {
            const NAME: &'static str = stringify!($request);

            type Response = $answer;

            async fn on(self, channel: Channel) -> Result<Response<$answer>, Status> {
                $client::new(channel).$method(self).await
            }
        }
    )+};
}

calls! {
    IdentityClient get_plugin_info GetPluginInfoRequest GetPluginInfoResponse,
    IdentityClient get_plugin_capabilities GetPluginCapabilitiesRequest GetPluginCapabilitiesResponse,
    IdentityClient probe ProbeRequest ProbeResponse,
    ControllerClient create_volume CreateVolumeRequest CreateVolumeResponse,
    ControllerClient delete_volume DeleteVolumeRequest DeleteVolumeResponse,
    ControllerClient validate_volume_capabilities ValidateVolumeCapabilitiesRequest ValidateVolumeCapabilitiesResponse,
    ControllerClient list_volumes ListVolumesRequest ListVolumesResponse,
    ControllerClient get_capacity GetCapacityRequest GetCapacityResponse,
    ControllerClient controller_get_capabilities ControllerGetCapabilitiesRequest ControllerGetCapabilitiesResponse,
    ControllerClient controller_list_volume_health ControllerListVolumeHealthRequest ControllerListVolumeHealthResponse,
    ControllerClient controller_get_volume_health ControllerGetVolumeHealthRequest ControllerGetVolumeHealthResponse,
    ControllerClient controller_expand_volume ControllerExpandVolumeRequest ControllerExpandVolumeResponse,
    NodeClient node_stage_volume NodeStageVolumeRequest NodeStageVolumeResponse,
    NodeClient node_unstage_volume NodeUnstageVolumeRequest NodeUnstageVolumeResponse,
    NodeClient node_publish_volume NodePublishVolumeRequest NodePublishVolumeResponse,
    NodeClient node_unpublish_volume NodeUnpublishVolumeRequest NodeUnpublishVolumeResponse,
    NodeClient node_get_volume_stats NodeGetVolumeStatsRequest NodeGetVolumeStatsResponse,
    NodeClient node_get_volume_health NodeGetVolumeHealthRequest NodeGetVolumeHealthResponse,
    NodeClient node_get_storage_health NodeGetStorageHealthRequest NodeGetStorageHealthResponse,
    NodeClient node_expand_volume NodeExpandVolumeRequest NodeExpandVolumeResponse,
    NodeClient node_get_capabilities NodeGetCapabilitiesRequest NodeGetCapabilitiesResponse,
    NodeClient node_get_info NodeGetInfoRequest NodeGetInfoResponse,
}

/// A client of a driver's socket. Each call makes a new connection.
#[derive(Debug)]
pub struct CsiClient {
    socket: PathBuf,
    runtime: Runtime,
}

impl CsiClient {
    /// Makes a client of the driver that listens on `socket`.
    pub fn new(socket: &Path) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build();
        Self {
            socket: socket.to_owned(),
            runtime: runtime.expect("a tokio runtime"),
        }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes one call.
    pub fn call<C: CsiRequest>(&self, call: C) -> Result<C::Response, Status> {
        let channel = self.channel();
        grpc::into_result(self.runtime.block_on(call.on(channel)))
    }

    /// Makes two calls at the same time, on separate connections.
    pub fn call_both<A: CsiRequest, B: CsiRequest>(
        &self,
        one: A,
        other: B,
    ) -> (Result<A::Response, Status>, Result<B::Response, Status>) {
        let calls = (one.on(self.channel()), other.on(self.channel()));
        let (one, other) = self
            .runtime
            .block_on(async { tokio::join!(calls.0, calls.1) });
        (grpc::into_result(one), grpc::into_result(other))
    }

    /// Makes the same call `times` times concurrently, on one connection.
    pub fn call_concurrently<C: CsiRequest>(
        &self,
        call: &C,
        times: usize,
    ) -> Vec<Result<C::Response, Status>> {
        let channel = self.channel();
        let calls = (0..times).map(|_| tokio::spawn(call.clone().on(channel.clone())));
        self.runtime.block_on(async {
            let mut answers = Vec::new();
            for call in calls.collect::<Vec<_>>() {
                let answer = call.await.expect("a client");
                answers.push(grpc::into_result(answer));
            }
            answers
        })
    }

    fn channel(&self) -> Channel {
        let _inside = self.runtime.enter();
        grpc::channel(&self.socket, CALL_TIMEOUT)
    }
}
