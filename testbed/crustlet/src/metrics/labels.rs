//! The labels of the metrics. They are the same as kubelet's.

use prometheus_client::encoding::EncodeLabelSet;

/// The value of `migrated`: no volume was migrated from an in-tree plugin to a CSI driver.
pub(super) const NOT_MIGRATED: &str = "false";

/// Returns kubelet's name of the volume plugin for a driver.
pub(super) fn plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// The labels of `csi_operations_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CsiCallLabels {
    pub(super) driver_name: String,
    pub(super) method_name: &'static str,
    pub(super) grpc_status_code: &'static str,
    pub(super) migrated: &'static str,
}

/// The labels of `storage_operation_duration_seconds`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StorageOperationLabels {
    pub(super) volume_plugin: String,
    pub(super) operation_name: &'static str,
    pub(super) status: &'static str,
    pub(super) migrated: &'static str,
}

/// An operation on a volume that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StorageOperation {
    /// Staging or publishing.
    Mount,
    /// Unpublishing.
    Unmount,
    /// Unstaging.
    UnmountDevice,
    /// Expansion of the file system.
    FsResize,
}

impl StorageOperation {
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
pub(super) struct VolumeStateLabels {
    pub(super) plugin_name: String,
    pub(super) state: &'static str,
}

/// The labels of the statistics of a claim's volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ClaimLabels {
    pub(super) namespace: String,
    pub(super) persistentvolumeclaim: String,
}
