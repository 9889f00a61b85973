//! The labels of metrics, which are kubelet's.

use prometheus_client::encoding::EncodeLabelSet;

/// Whether a volume was migrated from an in-tree plugin to a CSI driver. Here none was.
pub(super) const NOT_MIGRATED: &str = "false";

/// Returns the name of kubelet's plugin for a driver's volumes.
pub(super) fn plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// The labels of `csi_operations_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CsiCall {
    pub(super) driver_name: String,
    pub(super) method_name: &'static str,
    pub(super) grpc_status_code: &'static str,
    pub(super) migrated: &'static str,
}

/// The labels of `storage_operation_duration_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StorageOperation {
    pub(super) volume_plugin: String,
    pub(super) operation_name: &'static str,
    pub(super) status: &'static str,
    pub(super) migrated: &'static str,
}

/// An operation on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Stage, where it isn't yet, and publish.
    Mount,
    /// Unpublish.
    Unmount,
    /// Unstage.
    UnmountDevice,
    /// Expand.
    FsResize,
}

impl Operation {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Mount => "volume_mount",
            Self::Unmount => "volume_unmount",
            Self::UnmountDevice => "unmount_device",
            Self::FsResize => "volume_fs_resize",
        }
    }
}

/// The labels of `volume_manager_total_volumes`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct State {
    pub(super) plugin_name: String,
    pub(super) state: &'static str,
}

/// The labels of a claim's volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Claim {
    pub(super) namespace: String,
    pub(super) persistentvolumeclaim: String,
}
