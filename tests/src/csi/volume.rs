//! A volume as an orchestrator knows it, and the requests about it. Tests change their fields.

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

use crate::node::{digest, utf8};
use crate::volume::min_size_mib;

/// A created volume.
#[derive(Debug, Clone)]
pub struct CsiVolume {
    pub id: String,
    /// `volume_context`, which is sent again in the calls on the node.
    pub context: HashMap<String, String>,
    /// `capacity_bytes`.
    pub capacity: i64,
    /// The capability that the volume was created with.
    pub capability: VolumeCapability,
    pub staging: PathBuf,
}

impl CsiVolume {
    /// Makes a volume in the spec of a pod, with the id and the context that kubelet sends. It has no staging path, and
    /// `capacity` is 0: kubelet doesn't know the size.
    pub fn inline(
        pod: &str,
        name: &str,
        capability: VolumeCapability,
        attributes: &[(&str, &str)],
    ) -> Self {
        let of_kubelet = [
            ("csi.storage.k8s.io/pod.name", "web"),
            ("csi.storage.k8s.io/pod.namespace", "default"),
            ("csi.storage.k8s.io/pod.uid", pod),
            ("csi.storage.k8s.io/serviceAccount.name", "default"),
            ("csi.storage.k8s.io/ephemeral", "true"),
        ];
        let pairs = attributes.iter().chain(&of_kubelet);
        let pairs = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Self {
            id: format!("csi-{}", digest(&format!("{pod}{name}"))),
            context: pairs.collect(),
            capacity: 0,
            capability,
            staging: PathBuf::new(),
        }
    }

    pub fn stage(&self) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: utf8(&self.staging).to_owned(),
            volume_capability: Some(self.capability.clone()),
            volume_context: self.context.clone(),
            ..NodeStageVolumeRequest::default()
        }
    }

    pub fn unstage(&self) -> NodeUnstageVolumeRequest {
        NodeUnstageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: utf8(&self.staging).to_owned(),
        }
    }

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

    pub fn unpublish(&self, target: &Path) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: utf8(target).to_owned(),
            ..NodeUnpublishVolumeRequest::default()
        }
    }

    pub fn stats(&self, path: &Path) -> NodeGetVolumeStatsRequest {
        NodeGetVolumeStatsRequest {
            volume_id: self.id.clone(),
            volume_path: utf8(path).to_owned(),
            staging_target_path: utf8(&self.staging).to_owned(),
            ..NodeGetVolumeStatsRequest::default()
        }
    }

    pub fn health(&self, path: &Path) -> NodeGetVolumeHealthRequest {
        NodeGetVolumeHealthRequest {
            volume_id: self.id.clone(),
            volume_publish_path: utf8(path).to_owned(),
            staging_target_path: utf8(&self.staging).to_owned(),
        }
    }

    /// Makes a `ControllerExpandVolume` request for at least this many bytes.
    pub fn grow(&self, bytes: i64) -> ControllerExpandVolumeRequest {
        ControllerExpandVolumeRequest {
            volume_id: self.id.clone(),
            capacity_range: Some(at_least(bytes)),
            volume_capability: Some(self.capability.clone()),
            ..ControllerExpandVolumeRequest::default()
        }
    }

    /// Makes a `NodeExpandVolume` request for at least this many bytes.
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

    pub fn validate(&self) -> ValidateVolumeCapabilitiesRequest {
        ValidateVolumeCapabilitiesRequest {
            volume_id: self.id.clone(),
            volume_capabilities: vec![self.capability.clone()],
            volume_context: self.context.clone(),
            ..ValidateVolumeCapabilitiesRequest::default()
        }
    }

    pub fn delete(&self) -> DeleteVolumeRequest {
        DeleteVolumeRequest {
            volume_id: self.id.clone(),
            ..DeleteVolumeRequest::default()
        }
    }
}

/// Makes a `CreateVolume` request for the smallest size that the capability's file system can have.
pub fn create_request(name: &str, capability: VolumeCapability) -> CreateVolumeRequest {
    let mebibytes = match &capability.access_type {
        Some(AccessType::Mount(mount)) => min_size_mib(&mount.fs_type),
        _ => 4,
    };
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(at_least(
            i64::try_from(mebibytes << 20).expect("the size fits"),
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

/// Makes a capability for a file system, with the access mode that older orchestrators use.
pub fn filesystem(fstype: &str) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: fstype.to_owned(),
        ..MountVolume::default()
    };
    capability(AccessType::Mount(mount), Mode::SingleNodeWriter)
}

/// Makes a capability for a block device.
pub fn block() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeWriter)
}

pub fn capability(access: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    }
}

/// Returns the file system part of a capability.
#[track_caller]
pub fn mount_of(capability: &mut VolumeCapability) -> &mut MountVolume {
    let Some(AccessType::Mount(mount)) = &mut capability.access_type else {
        panic!("a block volume's capability");
    };
    mount
}
