//! A volume as an orchestrator knows it, and what it asks about it. Tests change the requests field by
//! field.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crust_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, ValidateVolumeCapabilitiesRequest, VolumeCapability,
};

use crate::node::utf8;
use crate::volume::smallest;

/// A volume that was created.
#[derive(Debug, Clone)]
pub struct CsiVolume {
    /// `volume_id`.
    pub id: String,
    /// `volume_context`, which each call on a node is told again.
    pub context: HashMap<String, String>,
    /// `capacity_bytes`.
    pub capacity: i64,
    /// How it is used.
    pub capability: VolumeCapability,
    /// `staging_target_path`.
    pub staging: PathBuf,
}

impl CsiVolume {
    /// `NodeStageVolume`.
    pub fn stage(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: utf8(&self.staging).to_owned(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..NodeStageVolumeRequest::default()
        }
    }

    /// `NodeUnstageVolume`.
    pub fn unstage(&self) -> NodeUnstageVolumeRequest {
        NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: utf8(&self.staging).to_owned(),
        }
    }

    /// `NodePublishVolume`.
    pub fn publish(&self, target: &Path) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: utf8(&self.staging).to_owned(),
            target_path: utf8(target).to_owned(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..NodePublishVolumeRequest::default()
        }
    }

    /// `NodeUnpublishVolume`.
    pub fn unpublish(&self, target: &Path) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: utf8(target).to_owned(),
            ..NodeUnpublishVolumeRequest::default()
        }
    }

    /// `NodeGetVolumeStats`.
    pub fn stats(&self, path: &Path) -> NodeGetVolumeStatsRequest {
        NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: utf8(path).to_owned(),
            staging_target_path: utf8(&self.staging).to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        }
    }

    /// `NodeGetVolumeHealth`.
    pub fn health(&self, path: &Path) -> NodeGetVolumeHealthRequest {
        NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            volume_publish_path: utf8(path).to_owned(),
            staging_target_path: utf8(&self.staging).to_owned(),
        }
    }

    /// `ControllerExpandVolume`, to at least so many bytes.
    pub fn grow(&self, bytes: i64) -> ControllerExpandVolumeRequest {
        ControllerExpandVolumeRequest {
            volume_id: self.id.clone(),
            capacity_range: Some(at_least(bytes)),
            volume_capability: Some(self.capability.clone()),
            ..ControllerExpandVolumeRequest::default()
        }
    }

    /// `NodeExpandVolume`, to at least so many bytes.
    pub fn expand(&self, path: &Path, bytes: i64) -> NodeExpandVolumeRequest {
        NodeExpandVolumeRequest {
            volume_id: self.id.clone(),
            volume_path: utf8(path).to_owned(),
            capacity_range: Some(at_least(bytes)),
            staging_target_path: utf8(&self.staging).to_owned(),
            volume_capability: Some(self.capability.clone()),
            ..NodeExpandVolumeRequest::default()
        }
    }

    /// `ValidateVolumeCapabilities`.
    pub fn validate(&self) -> ValidateVolumeCapabilitiesRequest {
        ValidateVolumeCapabilitiesRequest {
            volume_id: self.id.clone(),
            volume_capabilities: vec![self.capability.clone()],
            volume_context: self.context.clone(),
            ..ValidateVolumeCapabilitiesRequest::default()
        }
    }

    /// `DeleteVolume`.
    pub fn delete(&self) -> DeleteVolumeRequest {
        DeleteVolumeRequest {
            volume_id: self.id.clone(),
            ..DeleteVolumeRequest::default()
        }
    }
}

/// `CreateVolume`, no smaller than the capability's file system can be.
pub fn create_request(name: &str, capability: VolumeCapability) -> CreateVolumeRequest {
    let mebibytes = match &capability.access_type {
        Some(AccessType::Mount(mount)) => smallest(&mount.fs_type),
        _ => 4,
    };
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(at_least(
            i64::try_from(mebibytes << 20).expect("it is small"),
        )),
        volume_capabilities: vec![capability],
        ..CreateVolumeRequest::default()
    }
}

fn at_least(bytes: i64) -> CapacityRange {
    CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    }
}

/// A use as a file system of a type, by the mode that older orchestrators have.
pub fn filesystem(fstype: &str) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fstype.to_owned(),
        ..MountVolume::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

/// A use as a block device.
pub fn block() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)
}

/// A use.
pub fn capability(access: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    }
}

/// What a capability says of the file system.
#[track_caller]
pub fn mount_of(capability: &mut VolumeCapability) -> &mut MountVolume {
    let Some(AccessType::Mount(mount)) = &mut capability.access_type else {
        panic!("a block volume's capability");
    };
    mount
}
