//! Publishes volumes for pods, and unpublishes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{
    FileSystemMountInfo, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeUnpublishVolumeRequest,
};

use super::{
    Context, FailedOperation, OperationError, blocking, directories, group, runtime, secret,
    subpath,
};
use crate::csi::{Driver, PublishOptions, volume_capability, volume_context};
use crate::objects::{Objects, Pod};
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::spec::{Lifecycle, MountSpec, VolumeId};

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PublishResult {
    /// The program that has mounted the volume, or will mount it.
    pub(crate) mounter: Mounter,
    /// The volume to pass to the runtime handler, which mounts it (KEP-2857's earlier draft).
    pub(crate) runtime_mount: Option<FileSystemMountInfo>,
}

/// A volume that is published for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Publication {
    pub(crate) id: VolumeId,
    /// The pod's UID.
    pub(crate) pod: String,
    /// The name of the volume's directory in the pod's directory.
    pub(crate) directory: String,
    /// The program that has mounted the volume.
    pub(crate) mounter: Mounter,
}

/// Calls `NodePublishVolume`, and applies the fsGroup to a file system on the host. `current_mounter` is the program
/// that has already mounted the volume, if that is known.
pub(crate) async fn publish(
    context: &Context,
    objects: &Objects,
    pod: &Pod,
    mount: &MountSpec,
    current_mounter: Option<Mounter>,
) -> Result<PublishResult, FailedOperation> {
    let volume = &mount.volume;
    let driver = context
        .driver(&volume.id)
        .map_err(FailedOperation::without_effect)?;
    let capabilities = driver
        .node_capabilities()
        .await
        .map_err(FailedOperation::without_effect)?;
    let publish =
        PublishOptions::new(mount, &capabilities).map_err(FailedOperation::without_effect)?;
    let file_systems = runtime::file_systems(mount, current_mounter)
        .await
        .map_err(FailedOperation::without_effect)?;
    let secrets =
        secret(objects, volume.publish_secret.as_ref()).map_err(FailedOperation::without_effect)?;
    let pod_info = pod_info(objects, pod, mount).map_err(FailedOperation::without_effect)?;
    let layout = &context.layout;
    let directory = layout.volume(&pod.uid, &volume.directory);
    let target = layout.target(&pod.uid, &volume.directory);
    let data = VolumeData::new(
        &volume.id,
        &volume.directory,
        volume.lifecycle,
        // This is the presumed mounter. It is replaced if the driver's response shows another mounter.
        if publish.defer_fs_ops {
            Mounter::Deferred
        } else {
            current_mounter.unwrap_or(Mounter::Driver)
        },
        &context.node,
    );
    let (path, record) = (directory.clone(), data.clone());
    let prepared = blocking(move || {
        directories::check_owner(&path, &record)?;
        directories::prepare(&path, &record)
    });
    let is_new = prepared.await.map_err(FailedOperation::preparing)?;
    let is_staged =
        volume.lifecycle == Lifecycle::Persistent && capabilities.has(Rpc::StageUnstageVolume);
    let staging = is_staged.then(|| layout.staging(&volume.id).display().to_string());
    let request = NodePublishVolumeRequest {
        volume_id: volume.id.handle.clone(),
        publish_context: HashMap::new(),
        staging_target_path: staging.unwrap_or_default(),
        target_path: target.display().to_string(),
        volume_capability: Some(volume_capability(volume, &capabilities, &publish)),
        readonly: mount.read_only || volume.read_only,
        secrets,
        volume_context: volume_context(volume).into_iter().chain(pod_info).collect(),
        defer_fs_ops: publish.defer_fs_ops,
        runtime_supported_filesystems: file_systems.clone(),
    };
    let response = call_driver(&driver, request, is_new, &directory, &target).await?;
    if publish.defer_fs_ops || response.runtime_mount_info.is_some() {
        let path = target.clone();
        let is_mounted = blocking(move || directories::is_mount_root(&path)).await;
        if is_mounted.map_err(FailedOperation::uncertain)? {
            return Err(undo_host_mount(&driver, &data, target, directory, is_new).await);
        }
    }
    if publish.defer_fs_ops {
        context.metrics.count_deferred_publish();
        return Ok(PublishResult {
            mounter: Mounter::Deferred,
            runtime_mount: None,
        });
    }
    let mounter = match response.runtime_mount_info {
        Some(_) => Mounter::Runtime,
        None => Mounter::Driver,
    };
    if data.mounter() != mounter {
        // The record is written before the volume is used, because a restarted crustlet relies on it.
        let written =
            blocking(move || directories::prepare(&directory, &data.with_mounter(mounter)));
        written.await.map_err(FailedOperation::uncertain)?;
    }
    if let Some(runtime_mount) = response.runtime_mount_info {
        // Without this check nothing would mount the volume, and the pod would write to the host's disk.
        if !file_systems.contains(&runtime_mount.r#type) {
            let (driver, kind) = (volume.id.driver.clone(), runtime_mount.r#type);
            return Err(FailedOperation::uncertain(OperationError::NotOffered {
                driver,
                kind,
            }));
        }
        return Ok(PublishResult {
            mounter,
            runtime_mount: Some(runtime_mount),
        });
    }
    if let Some(gid) =
        group::group_to_apply(objects, mount, &publish).map_err(FailedOperation::uncertain)?
    {
        let applied = group::apply(context, pod, mount, gid, target).await;
        applied.map_err(FailedOperation::uncertain)?;
    }
    Ok(PublishResult {
        mounter,
        runtime_mount: None,
    })
}

/// Calls `NodePublishVolume`. If it fails without an effect, removes the volume's directory, provided that it is new.
async fn call_driver(
    driver: &Driver,
    request: NodePublishVolumeRequest,
    is_new: bool,
    directory: &Path,
    target: &Path,
) -> Result<NodePublishVolumeResponse, FailedOperation> {
    let error = match driver.call(request).await {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    if !is_new || !error.is_final() {
        return Err(FailedOperation::uncertain(error));
    }
    // The driver has done nothing, so no record is needed.
    let (directory, mount_point) = (directory.to_owned(), target.to_owned());
    let removed = blocking(move || directories::remove_volume_dir(&directory, &mount_point));
    Err(match removed.await {
        Ok(()) => FailedOperation::without_effect(error),
        Err(_) => FailedOperation::uncertain(error),
    })
}

/// Unpublishes a volume that the driver has mounted on the host although the runtime is to mount it. Such a driver
/// ignores `defer_fs_ops`, or uses the number of `DEFER_FS_OPS` for another capability.
async fn undo_host_mount(
    driver: &Driver,
    data: &VolumeData,
    target: PathBuf,
    directory: PathBuf,
    is_new: bool,
) -> FailedOperation {
    let request = NodeUnpublishVolumeRequest {
        volume_id: data.id().handle,
        target_path: target.display().to_string(),
        defer_fs_ops: false,
    };
    let unpublished = driver.call(request).await;
    let was_undone = unpublished.is_ok() && is_new;
    let error = OperationError::NotDeferred {
        driver: data.id().driver,
        target: target.clone(),
        unpublish: unpublished.err().map(Box::new),
    };
    if was_undone {
        let (directory, target) = (directory.clone(), target);
        if blocking(move || directories::remove_volume_dir(&directory, &target))
            .await
            .is_ok()
        {
            return FailedOperation::without_effect(error);
        }
    }
    // A restarted crustlet must not treat the volume as deferred.
    let data = data.with_mounter(Mounter::Driver);
    let written = blocking(move || directories::prepare(&directory, &data)).await;
    if let Err(error) = written {
        tracing::warn!("{}", crust_state::error_message(&error));
    }
    FailedOperation::mounted_by_driver(error)
}

/// Returns the pod's entries of the volume context, if `podInfoOnMount` of the driver's `CSIDriver` is set.
fn pod_info(
    objects: &Objects,
    pod: &Pod,
    mount: &MountSpec,
) -> Result<HashMap<String, String>, OperationError> {
    let driver = &mount.volume.id.driver;
    let spec = objects.drivers.get(driver).map(|driver| &driver.spec);
    let is_inline = mount.volume.lifecycle == Lifecycle::Ephemeral;
    let mut modes = spec
        .iter()
        .flat_map(|spec| &spec.volume_lifecycle_modes)
        .flatten();
    if is_inline && !modes.any(|mode| mode == Lifecycle::Ephemeral.as_str()) {
        return Err(OperationError::NoInlineVolumes(driver.clone()));
    }
    if spec.and_then(|spec| spec.pod_info_on_mount) != Some(true) {
        return Ok(HashMap::new());
    }
    let account = pod.spec.service_account_name.as_deref();
    let entries = [
        ("pod.name", pod.name.name.as_str()),
        ("pod.namespace", &pod.name.namespace),
        ("pod.uid", &pod.uid),
        ("serviceAccount.name", account.unwrap_or("default")),
        ("ephemeral", if is_inline { "true" } else { "false" }),
    ];
    let entries = entries.into_iter();
    Ok(entries
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
        .collect())
}

/// Calls `NodeUnpublishVolume`, and removes the volume's directory and the bind mounts of its subPaths.
pub(crate) async fn unpublish(
    context: &Context,
    publication: &Publication,
) -> Result<(), OperationError> {
    let Publication {
        id, pod, directory, ..
    } = publication;
    let driver = context.driver(id)?;
    let layout = &context.layout;
    let bind_mounts = layout.subpaths(pod).join(directory);
    blocking(move || subpath::unbind(&bind_mounts)).await?;
    let is_deferred = publication.mounter == Mounter::Deferred;
    // A driver that lacks the capability by now (KEP-2857, story 5) is called without `defer_fs_ops`. The runtime
    // cleans up after the pod.
    let defer_fs_ops = is_deferred && driver.node_capabilities().await?.has(Rpc::DeferFsOps);
    let target = layout.target(pod, directory);
    let request = NodeUnpublishVolumeRequest {
        volume_id: id.handle.clone(),
        target_path: target.display().to_string(),
        defer_fs_ops,
    };
    driver.call(request).await?;
    let volume = Arc::new(layout.volume(pod, directory));
    blocking(move || directories::remove_volume_dir(&volume, &target)).await
}
