//! A relay in front of a driver's socket. It records requests, and can refuse or hold them.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crust_proto::csi::v1::controller_server::{Controller, ControllerServer};
use crust_proto::csi::v1::identity_server::{Identity, IdentityServer};
use crust_proto::csi::v1::node_server::{Node, NodeServer};
use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest,
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest, CreateVolumeRequest,
    DeleteVolumeRequest, GetCapacityRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest,
    ListVolumesRequest, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeServiceCapability, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, ProbeRequest, ValidateVolumeCapabilitiesRequest,
    node_service_capability,
};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::calls::{CALL_TIMEOUT, CsiRequest};
use crate::grpc;
use crate::relay::{Faults, Moment, RelayServer};

/// A relay to a CSI driver. It forwards each call to the process that listens on the driver's socket at that moment.
#[derive(Debug)]
pub struct CsiRelay {
    server: RelayServer,
    shared: Arc<RelayState>,
}

impl CsiRelay {
    /// Starts a relay that listens on `socket`. The driver's socket need not exist yet.
    pub fn start(socket: &Path, driver: &Path) -> Self {
        let shared = Arc::new(RelayState {
            driver: driver.to_owned(),
            recorded: Mutex::default(),
            faults: Faults::new(),
        });
        let server = RelayServer::start(socket, |listener| {
            let service = RelayService(Arc::clone(&shared));
            Server::builder()
                .add_service(IdentityServer::new(service.clone()))
                .add_service(ControllerServer::new(service.clone()))
                .add_service(NodeServer::new(service))
                .serve_with_incoming(listener)
        });
        Self { server, shared }
    }

    pub fn socket(&self) -> &Path {
        &self.server.socket
    }

    /// Returns all requests of this type, oldest first.
    pub fn requests<C: CsiRequest>(&self) -> Vec<C> {
        let recorded = self.shared.recorded();
        let requests = recorded.requests.iter();
        requests
            .filter_map(|(_, it)| it.downcast_ref::<C>().cloned())
            .collect()
    }

    /// Returns the names of all requests that change a volume on the node, oldest first.
    pub fn steps(&self) -> Vec<&'static str> {
        const CHANGES: [&str; 5] = [
            NodeStageVolumeRequest::NAME,
            NodePublishVolumeRequest::NAME,
            NodeExpandVolumeRequest::NAME,
            NodeUnpublishVolumeRequest::NAME,
            NodeUnstageVolumeRequest::NAME,
        ];
        let recorded = self.shared.recorded();
        let names = recorded.requests.iter().map(|(name, _)| *name);
        names.filter(|name| CHANGES.contains(name)).collect()
    }

    /// Forgets the recorded requests.
    pub fn clear_requests(&self) {
        self.shared.recorded().requests.clear();
    }

    /// Answers requests of this type with an error, without forwarding them, until [`Self::clear_faults`].
    pub fn refuse<C: CsiRequest>(&self, status: Status) {
        self.shared.faults.refuse(Some(C::NAME), status);
    }

    /// Holds requests of this type until [`Self::clear_faults`]. A request that is held at the other moment continues.
    pub fn hold<C: CsiRequest>(&self, moment: Moment) {
        self.shared.faults.hold(C::NAME, moment);
    }

    /// Adds node capabilities, by number, to the driver's response until [`Self::clear_faults`], whether or not the
    /// driver has them.
    pub fn claim_capabilities(&self, capabilities: &[i32]) {
        self.shared.recorded().claimed = capabilities.to_vec();
    }

    /// Waits until a call is held at this moment.
    #[track_caller]
    pub fn wait_held(&self, moment: Moment) {
        self.shared.faults.wait_held(Some(moment));
    }

    /// Removes all faults and the claimed capabilities, and releases the calls that are held.
    pub fn clear_faults(&self) {
        self.shared.recorded().claimed.clear();
        self.shared.faults.clear_faults();
    }
}

#[derive(Debug)]
struct RelayState {
    driver: PathBuf,
    recorded: Mutex<RecordedCalls>,
    faults: Faults,
}

#[derive(Debug, Default)]
struct RecordedCalls {
    requests: Vec<(&'static str, Box<dyn Any + Send>)>,
    /// Node capabilities that are added to the driver's own.
    claimed: Vec<i32>,
}

impl RelayState {
    fn recorded(&self) -> MutexGuard<'_, RecordedCalls> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the claimed capabilities if the answer is the list of node capabilities.
    fn claim(&self, answer: &mut dyn Any) {
        use node_service_capability::{Rpc, Type};
        if let Some(response) = answer.downcast_mut::<NodeGetCapabilitiesResponse>() {
            let claimed = self.recorded().claimed.clone().into_iter();
            let claimed = claimed.map(|number| NodeServiceCapability {
                r#type: Some(Type::Rpc(Rpc { r#type: number })),
            });
            response.capabilities.extend(claimed);
        }
    }
}

#[derive(Debug, Clone)]
struct RelayService(Arc<RelayState>);

impl RelayService {
    async fn forward<C: CsiRequest>(
        &self,
        request: Request<C>,
    ) -> Result<Response<C::Response>, Status> {
        let request = request.into_inner();
        let shared = &self.0;
        let recorded: Box<dyn Any + Send> = Box::new(request.clone());
        shared.recorded().requests.push((C::NAME, recorded));
        if let Some(status) = shared.faults.refusal(C::NAME) {
            return Err(status);
        }
        shared.faults.pass(C::NAME, Moment::Before).await;
        // A new connection for each call, because the driver may have been replaced.
        let channel = grpc::channel(&shared.driver, CALL_TIMEOUT);
        let mut answer = grpc::into_result(request.on(channel).await);
        if let Ok(answer) = &mut answer {
            shared.claim(answer);
        }
        shared.faults.pass(C::NAME, Moment::After).await;
        answer.map(Response::new)
    }
}

macro_rules! forward_calls {
    ($service:ident: $($method:ident $request:ident),+ $(,)?) => {
        #[tonic::async_trait]
        impl $service for RelayService {$(
            async fn $method(
                &self,
                request: Request<$request>,
            ) -> Result<Response<<$request as CsiRequest>::Response>, Status> {
                self.forward(request).await
            }
        )+}
    };
}

forward_calls! {
    Identity:
    get_plugin_info GetPluginInfoRequest,
    get_plugin_capabilities GetPluginCapabilitiesRequest,
    probe ProbeRequest,
}

forward_calls! {
    Controller:
    create_volume CreateVolumeRequest,
    delete_volume DeleteVolumeRequest,
    validate_volume_capabilities ValidateVolumeCapabilitiesRequest,
    list_volumes ListVolumesRequest,
    get_capacity GetCapacityRequest,
    controller_get_capabilities ControllerGetCapabilitiesRequest,
    controller_list_volume_health ControllerListVolumeHealthRequest,
    controller_get_volume_health ControllerGetVolumeHealthRequest,
    controller_expand_volume ControllerExpandVolumeRequest,
}

forward_calls! {
    Node:
    node_stage_volume NodeStageVolumeRequest,
    node_unstage_volume NodeUnstageVolumeRequest,
    node_publish_volume NodePublishVolumeRequest,
    node_unpublish_volume NodeUnpublishVolumeRequest,
    node_get_volume_stats NodeGetVolumeStatsRequest,
    node_get_volume_health NodeGetVolumeHealthRequest,
    node_get_storage_health NodeGetStorageHealthRequest,
    node_expand_volume NodeExpandVolumeRequest,
    node_get_capabilities NodeGetCapabilitiesRequest,
    node_get_info NodeGetInfoRequest,
}
