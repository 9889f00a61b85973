//! The driver for shares of NFS servers (`--driver nfs`). A volume is a directory of a share.
//!
//! | module | contents |
//! |---|---|
//! | `fstype` | the file system types, `nfs` and `nfs4` |
//! | `location` | the server and directory of a volume, in parameters, contexts and volume ids |
//! | `controller`, `directory` | creates and deletes directories of volumes |
//! | `tree` | removes a directory with everything in it |
//! | `node`, `publications` | publishes volumes; the publications that really exist |
//! | `mounts` | mounts of shares on the host |
//! | `share_calls` | calls on shares with a timeout |

mod controller;
mod directory;
mod fstype;
mod location;
mod mounts;
mod node;
mod publications;
mod share_calls;
mod tree;

use std::path::PathBuf;

use crust_nfs::Share;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use crust_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use crust_proto::csi::v1::plugin_capability::{Service, Type as PluginCapability};
use crust_proto::csi::v1::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use crust_state::record::Version;
use serde::{Deserialize, Serialize};

use crate::csi_driver::CsiDriver;
use crate::driver_context::{DriverContext, StartError};
use crate::refusal::Refusal;
use crate::store::{self, ByPath, Store};
use fstype::NfsType;
use share_calls::ShareCalls;

type Capability = crate::capability::Capability<NfsType>;
type MountCapability = crate::capability::MountCapability<NfsType>;
type Publication = store::Publication<NfsType>;

/// The driver for shares of NFS servers.
#[derive(Debug)]
pub(crate) struct NfsDriver {
    context: DriverContext,
    /// The records of volumes that are published on this node. The key is [`store::id_of`] the volume's id, because
    /// the id of a volume that was written by hand can't be a file name.
    store: Store<Record>,
    calls: OutstandingCalls,
}

/// The calls on shares that haven't ended.
#[derive(Debug, Default)]
struct OutstandingCalls {
    /// New mounts, by target path.
    mounts: ShareCalls<PathBuf>,
    /// Unmounts, by the id of the mount.
    unmounts: ShareCalls<u32>,
    /// Reads of the usage, by target path.
    usage: ShareCalls<PathBuf>,
    /// Creations and deletions of directories, by the id of the volume.
    directories: ShareCalls<String>,
}

/// The publications of a volume on this node.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    version: Version<1>,
    volume: String,
    /// The directory that all publications mount.
    share: Share,
    /// The publications by target path. A publication is recorded first, so it is possible that it was never mounted or
    /// staged for the runtime.
    published: ByPath<Publication>,
}

impl NfsDriver {
    pub(crate) fn new(context: DriverContext) -> Result<Self, StartError> {
        let store = Store::open(&context.settings.data_dir)?;
        if let Err(error) = store.remove_leftovers() {
            tracing::warn!("{}", crust_state::error_message(&error));
        }
        Ok(Self {
            context,
            store,
            calls: OutstandingCalls::default(),
        })
    }
}

impl CsiDriver for NfsDriver {
    fn context(&self) -> &DriverContext {
        &self.context
    }

    fn plugin_capabilities(&self) -> Vec<PluginCapability> {
        vec![PluginCapability::Service(Service {
            r#type: ServiceType::ControllerService.into(),
        })]
    }

    fn controller_capabilities(&self) -> Vec<ControllerRpc> {
        let optional = self.context.features.controller_capabilities();
        std::iter::once(ControllerRpc::CreateDeleteVolume)
            .chain(optional)
            .collect()
    }

    fn node_capabilities(&self) -> Vec<NodeRpc> {
        self.context.features.node_capabilities().collect()
    }

    /// The driver is ready if the records can be read. Servers aren't contacted: each volume can have another one.
    fn probe(&self) -> Result<(), Refusal> {
        self.store.ids()?;
        Ok(())
    }

    fn id_to_create(&self, request: &CreateVolumeRequest) -> String {
        request.name.clone()
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
}
