//! A runtime handler that mounts a pod's volumes on request, once the sandbox exists (KEP-2857's earlier draft).

use std::path::PathBuf;

use crust_proto::csi::v1::FileSystemMountInfo;
use crust_proto::runtime::v1alpha1::runtime_capability::rpc::Type as Rpc;

use super::OperationError;
use crate::runtime_assist::{RuntimeError, RuntimeStorage};
use crate::volumes::actual::Mounter;
use crate::volumes::spec::MountSpec;
use crate::volumes::stats::Stats;

/// A volume that a runtime handler is to mount once the sandbox exists.
#[derive(Debug, Clone)]
pub(crate) struct RuntimeMount {
    /// The `host_target_path` of the request to the handler.
    pub(crate) target: PathBuf,
    /// The driver's response to `NodePublishVolume`.
    pub(crate) info: FileSystemMountInfo,
    pub(crate) mount: MountSpec,
}

/// Returns the file systems that the driver may leave to the pod's runtime. Empty if the storage class or the runtime
/// class doesn't allow that, or the runtime lacks a post-mount step that the volume needs. A volume that is mounted
/// already keeps its mounter even if the classes have changed: otherwise the driver would mount on the host what the
/// runtime has mounted in the sandbox, or the other way round.
pub(super) async fn file_systems(
    mount: &MountSpec,
    current_mounter: Option<Mounter>,
) -> Result<Vec<String>, OperationError> {
    let is_mounted_by_runtime = current_mounter == Some(Mounter::Runtime);
    if is_mounted_by_runtime && mount.runtime.is_none() {
        return Err(OperationError::NoManagementSocket(
            mount.volume.directory.clone(),
        ));
    }
    let is_allowed = match current_mounter {
        Some(mounter) => mounter == Mounter::Runtime,
        None => mount.volume.allows_runtime && !mount.deferred,
    };
    let allowed = mount.runtime.as_ref().filter(|_| is_allowed);
    let Some(socket) = allowed else {
        return Ok(Vec::new());
    };
    let storage = RuntimeStorage::new(socket);
    if is_mounted_by_runtime {
        return Ok(storage.file_systems().await?);
    }
    if let Some(missing) = storage.capabilities().await?.missing_capability(mount) {
        let volume = &mount.volume.id;
        tracing::info!(
            "{volume}: the runtime at {} lacks {missing}; the driver will mount the volume",
            socket.display()
        );
        return Ok(Vec::new());
    }
    Ok(storage.file_systems().await?)
}

/// Publishes a pod's volumes to their runtime handlers. Can be repeated: a handler may have mounted some of them
/// already.
pub(crate) async fn publish_to_runtime(
    sandbox: &str,
    mounts: &[RuntimeMount],
) -> Result<(), OperationError> {
    for RuntimeMount {
        target,
        info,
        mount,
    } in mounts
    {
        let no_socket = || OperationError::NoManagementSocket(mount.volume.directory.clone());
        let socket = mount.runtime.as_ref().ok_or_else(no_socket)?;
        let storage = RuntimeStorage::new(socket);
        storage.publish(sandbox, target, info, mount).await?;
    }
    Ok(())
}

/// A runtime handler that has mounted a volume of a pod.
#[derive(Debug, Clone)]
pub(crate) struct MountingRuntime {
    storage: RuntimeStorage,
    sandbox: String,
}

impl MountingRuntime {
    /// Returns the handler at the socket of the pod's runtime class.
    pub(crate) fn new(socket: &std::path::Path, sandbox: &str) -> Self {
        Self {
            storage: RuntimeStorage::new(socket),
            sandbox: sandbox.to_owned(),
        }
    }

    pub(super) async fn supports_stats(&self) -> Result<bool, RuntimeError> {
        Ok(self.storage.capabilities().await?.has(Rpc::VolumeStats))
    }

    pub(super) async fn stats(&self, device: &str) -> Result<Stats, RuntimeError> {
        self.storage.stats(&self.sandbox, device).await
    }

    pub(super) async fn supports_expansion(&self) -> Result<bool, RuntimeError> {
        Ok(self.storage.capabilities().await?.has(Rpc::VolumeResize))
    }

    pub(super) async fn expand(&self, device: &str, bytes: i64) -> Result<i64, RuntimeError> {
        self.storage.expand(&self.sandbox, device, bytes).await
    }
}
