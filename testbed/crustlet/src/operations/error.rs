//! Errors of operations, and whether one may have done something.

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
use crate::volumes::spec::{Unresolved, VolumeId};

/// An operation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperationError {
    /// Whoever did has gone since.
    #[error("nobody wants it any more")]
    Nobody,
    /// It hasn't registered, or not any more.
    #[error(
        "driver name {0} not found in the list of registered CSI drivers; hint: is it started? It registers in plugins_registry, or is given by --csi"
    )]
    NoDriver(String),
    /// The driver answered so, or not at all.
    #[error(transparent)]
    Call(#[from] CallError),
    /// It can't be deferred.
    #[error(transparent)]
    LacksCapability(#[from] LacksCapability),
    /// The runtime handler answered so, or not at all.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// It can't be told what it wants to know.
    #[error("secret {0} not found; hint: give its manifest")]
    NoSecret(Name),
    /// CSI's values are texts.
    #[error("secret {0}: {1}: it is no text")]
    Secret(Name, String),
    /// An inline volume of a driver that has none.
    #[error(
        "driver {0} has no inline volumes: its CSIDriver's volumeLifecycleModes lack Ephemeral; hint: a claim instead"
    )]
    NotInline(String),
    /// An object that the pod refers to doesn't exist.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// The driver can't do what the pod asks for.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another volume has its place: a pod has two by one name, or its `PersistentVolume` is another one since.
    #[error("{}: {id} is there; hint: a pod's volumes need names of their own, and a PersistentVolume's source doesn't change", path.display())]
    Occupied {
        /// The volume's directory.
        path: PathBuf,
        /// The volume that is there.
        id: VolumeId,
    },
    /// A container's volume isn't published by the name that it is wanted by.
    #[error(
        "{0} isn't where the container wants it; hint: its PersistentVolume is another one since"
    )]
    NotThere(VolumeId),
    /// The driver leaves to the runtime what that wasn't said to mount (KEP-2857's earlier draft).
    #[error(
        "driver {driver} answers NodePublishVolume with runtime_mount_info, file system {kind:?}, which wasn't in runtime_supported_filesystems"
    )]
    NotOffered {
        driver: String,
        /// `type`
        kind: String,
    },
    /// The container runtime is to mount the volume, and the driver has mounted it on the host.
    #[error(
        "driver {driver} has mounted the volume at {} on the host, though defer_fs_ops or its own answer leaves that \
         to the container runtime{}; hint: rebuild the driver with the numbers of runcrust's csi.proto (DEFER_FS_OPS is \
         {}), or take deferFSMount out of the pod",
        target.display(), after(unpublish.as_deref()), Rpc::DeferFsOps as i32
    )]
    NotDeferred {
        /// The driver's name.
        driver: String,
        /// The target path that is a mount.
        target: PathBuf,
        /// Error of the `NodeUnpublishVolume` that followed, if it failed.
        unpublish: Option<Box<CallError>>,
    },
    /// The pod's runtime class doesn't say any more where its handler answers.
    #[error(
        "volume {0:?}: the pod's runtime class has no fsMgmtSocket any more, and the volume was left to that; hint: give it back to the class, or delete the pod"
    )]
    NoSocket(String),
    /// A call of the system's.
    #[error("{call} {}: {}", path.display(), ErrorName(*errno))]
    System {
        /// The system call.
        call: &'static str,
        path: PathBuf,
        /// The error.
        errno: Errno,
    },
    /// A record.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The mount table.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
    /// fsGroup.
    #[error("applyFSGroup failed: {0}")]
    Group(#[from] FsGroupError),
    /// It is no gid.
    #[error("fsGroup {0} is no gid")]
    NotAGroup(i64),
    /// subPath.
    #[error(transparent)]
    Subpath(#[from] SubpathError),
    /// An error of crustlet itself.
    #[error("{0}")]
    Task(String),
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
            errno: crust_blockfs::errno::of(&error),
        }
    }
}

fn after(unpublish: Option<&CallError>) -> String {
    unpublish.map_or_else(String::new, |error| {
        format!(", and NodeUnpublishVolume failed: {error}")
    })
}

/// A failed operation.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) error: OperationError,
    /// Set if the driver was called or something was written, which has to be taken back.
    pub(crate) has_begun: bool,
    /// The volume's mounter, if the attempt found another one than requested.
    pub(crate) mounter: Option<Mounter>,
}

impl Attempt {
    /// Nothing was done yet.
    pub(crate) fn before(error: impl Into<OperationError>) -> Self {
        Self {
            error: error.into(),
            has_begun: false,
            mounter: None,
        }
    }

    /// The same of what has to be there first: unless another volume has the place, which stays as it is.
    pub(super) fn preparing(error: OperationError) -> Self {
        let has_begun = !matches!(error, OperationError::Occupied { .. });
        Self {
            error,
            has_begun,
            mounter: None,
        }
    }

    /// Something may have been done.
    pub(crate) fn within(error: impl Into<OperationError>) -> Self {
        Self {
            error: error.into(),
            has_begun: true,
            mounter: None,
        }
    }

    /// The volume is, or may be, mounted on the host by its driver.
    pub(super) fn mounted_by_the_driver(error: OperationError) -> Self {
        Self {
            mounter: Some(Mounter::Driver),
            ..Self::within(error)
        }
    }
}
