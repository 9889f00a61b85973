//! A runtime handler that mounts a pod's volumes on request, once the sandbox exists (KEP-2857's earlier draft).

use std::path::PathBuf;

use crust_proto::csi::v1::FileSystemMountInfo;
use crust_proto::runtime::v1alpha1::runtime_capability::rpc::Type as Rpc;

use super::OperationError;
use crate::runtime_assist::{RuntimeError, RuntimeStorage};
use crate::volumes::actual::Mounter;
use crate::volumes::spec::MountSpec;
use crate::volumes::stats::Stats;

/// A volume that a runtime is to mount once the sandbox exists.
#[derive(Debug, Clone)]
pub(crate) struct LateMount {
    /// `host_target_path`
    pub(crate) target: PathBuf,
    /// The driver's answer.
    pub(crate) info: FileSystemMountInfo,
    /// How the pod wants it.
    pub(crate) mount: MountSpec,
}

/// Returns the file systems that the driver may leave to the pod's runtime. Empty if the storage class or the runtime
/// class doesn't allow it, or the runtime lacks a step after the mount. The mounter of a volume that is `there` stays,
/// whatever the classes say now: else one would mount on the host what the other has mounted in the sandbox.
pub(super) async fn file_systems(
    mount: &MountSpec,
    there: Option<Mounter>,
) -> Result<Vec<String>, OperationError> {
    let is_left = there == Some(Mounter::Runtime);
    if is_left && mount.runtime.is_none() {
        return Err(OperationError::NoSocket(mount.volume.directory.clone()));
    }
    let is_allowed = match there {
        Some(mounter) => mounter == Mounter::Runtime,
        None => mount.volume.allows_runtime && !mount.deferred,
    };
    let allowed = mount.runtime.as_ref().filter(|_| is_allowed);
    let Some(socket) = allowed else {
        return Ok(Vec::new());
    };
    let storage = RuntimeStorage::new(socket);
    if is_left {
        return Ok(storage.file_systems().await?);
    }
    if let Some(lacks) = storage.capabilities().await?.lacks(mount) {
        let volume = &mount.volume.id;
        tracing::info!(
            "{volume}: the runtime at {} lacks {lacks}; the driver mounts it",
            socket.display()
        );
        return Ok(Vec::new());
    }
    Ok(storage.file_systems().await?)
}

/// Tells a runtime of a pod's volumes, each of which it may know already.
pub(crate) async fn tell(sandbox: &str, late: &[LateMount]) -> Result<(), OperationError> {
    for LateMount {
        target,
        info,
        mount,
    } in late
    {
        let missing = || OperationError::NoSocket(mount.volume.directory.clone());
        let socket = mount.runtime.as_ref().ok_or_else(missing)?;
        let storage = RuntimeStorage::new(socket);
        storage.publish(sandbox, target, info, mount).await?;
    }
    Ok(())
}

/// A runtime that has a pod's volume mounted.
#[derive(Debug, Clone)]
pub(crate) struct MountingRuntime {
    storage: RuntimeStorage,
    sandbox: String,
}

impl MountingRuntime {
    /// Returns the runtime at the socket of the pod's runtime class, for the pod's sandbox.
    pub(crate) fn new(socket: &std::path::Path, sandbox: &str) -> Self {
        Self {
            storage: RuntimeStorage::new(socket),
            sandbox: sandbox.to_owned(),
        }
    }

    pub(super) async fn tells_stats(&self) -> Result<bool, RuntimeError> {
        Ok(self.storage.capabilities().await?.has(Rpc::VolumeStats))
    }

    pub(super) async fn stats(&self, device: &str) -> Result<Stats, RuntimeError> {
        self.storage.stats(&self.sandbox, device).await
    }

    pub(super) async fn expands(&self) -> Result<bool, RuntimeError> {
        Ok(self.storage.capabilities().await?.has(Rpc::VolumeResize))
    }

    pub(super) async fn expand(&self, device: &str, bytes: i64) -> Result<i64, RuntimeError> {
        self.storage.expand(&self.sandbox, device, bytes).await
    }
}
