//! Errors of operations, and failed operations that may have had an effect.

use std::io;
use std::path::{Path, PathBuf};

use crust_blockfs::errno::Name as ErrorName;
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::mountinfo::MountInfoError;
use crust_blockfs::subpath::SubpathError;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use rustix::io::Errno;

use crate::csi::{CallError, LacksCapability};
use crate::objects::Name;
use crate::pods::config::ConfigError;
use crate::runtime_assist::RuntimeError;
use crate::volumes::actual::Mounter;
use crate::volumes::data::DataError;
use crate::volumes::spec::{ResolveError, VolumeId};

#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    #[error("no pod needs the volume any more")]
    NotNeeded,
    #[error(
        "driver name {0} not found in the list of registered CSI drivers; hint: check that the driver is running, and that it registers in plugins_registry or is given with --csi"
    )]
    DriverNotRegistered(String),
    /// A call to the driver failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The driver lacks a capability that the volume needs.
    #[error(transparent)]
    LacksCapability(#[from] LacksCapability),
    /// A call to the runtime handler failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("secret {0} not found; hint: add its manifest")]
    SecretNotFound(Name),
    /// CSI's secrets are UTF-8 strings.
    #[error("secret {0}: the value of {1} is not valid UTF-8")]
    SecretNotUtf8(Name, String),
    #[error(
        "driver {0} doesn't support inline volumes: volumeLifecycleModes of its CSIDriver lacks Ephemeral; hint: use a claim instead"
    )]
    NoInlineVolumes(String),
    /// An object that the pod refers to doesn't exist.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// The driver can't do what the pod requests.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another volume uses the directory: two volumes of a pod have the same name, or the `PersistentVolume` has a new
    /// source.
    #[error("{}: the directory is used by volume {id}; hint: give each volume of a pod its own name, and don't change the source of a PersistentVolume", path.display())]
    DirectoryInUse {
        path: PathBuf,
        /// The volume that uses the directory.
        id: VolumeId,
    },
    /// The container mounts a different directory from that in which the volume is published.
    #[error(
        "volume {0} is not published at the path that the container mounts; hint: recreate the pod, because its PersistentVolume was replaced"
    )]
    NotPublished(VolumeId),
    /// The driver leaves the mount to the runtime, but with a file system that the request didn't offer (KEP-2857's
    /// earlier draft).
    #[error(
        "driver {driver}: NodePublishVolume returned runtime_mount_info with file system {kind:?}, which is not in runtime_supported_filesystems"
    )]
    NotOffered {
        driver: String,
        /// The file system's `type`.
        kind: String,
    },
    /// The driver has mounted a volume on the host, although the container runtime is to mount it.
    #[error(
        "driver {driver} mounted the volume at {} on the host, although the container runtime is to mount it \
         (defer_fs_ops, or runtime_mount_info in the driver's response){}; hint: rebuild the driver with the field \
         numbers of runcrust's csi.proto (DEFER_FS_OPS is {}), or remove deferFSMount from the pod",
        target.display(), unpublish_failure(unpublish.as_deref()), Rpc::DeferFsOps as i32
    )]
    NotDeferred {
        driver: String,
        /// The target path, which is a mount.
        target: PathBuf,
        /// The error of the `NodeUnpublishVolume` that followed, if it failed.
        unpublish: Option<Box<CallError>>,
    },
    /// The runtime class has no socket for a volume that was published for its runtime handler.
    #[error(
        "volume {0:?} was published for the runtime handler, but the pod's runtime class has no fsMgmtSocket any more; hint: restore fsMgmtSocket in the runtime class, or delete the pod"
    )]
    NoManagementSocket(String),
    /// A system call failed.
    #[error("{call} {}: {}", path.display(), ErrorName(*errno))]
    System {
        call: &'static str,
        path: PathBuf,
        errno: Errno,
    },
    /// A record could not be read or written.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The mount table could not be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// The fsGroup could not be applied.
    #[error("applyFSGroup failed: {0}")]
    Group(#[from] FsGroupError),
    #[error("fsGroup {0} is not a valid group ID")]
    InvalidFsGroup(i64),
    /// A subPath could not be resolved.
    #[error(transparent)]
    Subpath(#[from] SubpathError),
    #[error("{0}")]
    Other(String),
}

impl OperationError {
    pub(crate) fn system(call: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::System { call, path, errno }
    }

    pub(crate) fn io(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::System {
            call,
            path,
            errno: crust_blockfs::errno::from_io_error(&error),
        }
    }
}

fn unpublish_failure(unpublish: Option<&CallError>) -> String {
    unpublish.map_or_else(String::new, |error| {
        format!(", and NodeUnpublishVolume failed: {error}")
    })
}

/// A failed operation, and whether it may have had an effect.
#[derive(Debug)]
pub(crate) struct FailedOperation {
    pub(crate) error: OperationError,
    /// Whether the driver was called or something was written. The volume's state is then uncertain, as kubelet calls
    /// it, and the operation has to be repeated or undone.
    pub(crate) is_uncertain: bool,
    /// The volume's mounter, if it differs from the requested one.
    pub(crate) mounter: Option<Mounter>,
}

impl FailedOperation {
    /// Returns a failure before anything was done.
    pub(crate) fn without_effect(error: impl Into<OperationError>) -> Self {
        Self {
            error: error.into(),
            is_uncertain: false,
            mounter: None,
        }
    }

    /// Returns a failure to prepare the directory. It had no effect if the directory belongs to another volume.
    pub(super) fn preparing(error: OperationError) -> Self {
        let is_uncertain = !matches!(error, OperationError::DirectoryInUse { .. });
        Self {
            error,
            is_uncertain,
            mounter: None,
        }
    }

    /// Returns a failure after which something may have been done.
    pub(crate) fn uncertain(error: impl Into<OperationError>) -> Self {
        Self {
            error: error.into(),
            is_uncertain: true,
            mounter: None,
        }
    }

    /// Returns a failure after which the driver has mounted the volume on the host, or may have.
    pub(super) fn mounted_by_driver(error: OperationError) -> Self {
        Self {
            mounter: Some(Mounter::Driver),
            ..Self::uncertain(error)
        }
    }
}
