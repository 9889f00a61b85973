//! Stages volumes on the node, and unstages them.

use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};

use super::{Context, FailedOperation, OperationError, blocking, directories, secret};
use crate::csi::{Capabilities, PublishOptions, volume_capability, volume_context};
use crate::objects::Objects;
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::spec::{MountSpec, VolumeId};

/// Calls `NodeStageVolume` for the mounts that need the volume. Does nothing if the driver doesn't stage volumes.
pub(crate) async fn stage(
    context: &Context,
    objects: &Objects,
    mounts: &[MountSpec],
) -> Result<(), FailedOperation> {
    let not_needed = || FailedOperation::without_effect(OperationError::NotNeeded);
    let first = mounts.first().ok_or_else(not_needed)?;
    let driver = context
        .driver(&first.volume.id)
        .map_err(FailedOperation::without_effect)?;
    let capabilities = driver
        .node_capabilities()
        .await
        .map_err(FailedOperation::without_effect)?;
    // The first mount that the driver can publish is used. The options of other pods may need capabilities that the
    // driver lacks.
    let publishable =
        |mount| PublishOptions::new(mount, &capabilities).map(|publish| (mount, publish));
    let mut candidates = mounts.iter().map(publishable);
    let (mount, publish) = match candidates.find(Result::is_ok) {
        Some(found) => found,
        None => publishable(first),
    }
    .map_err(FailedOperation::without_effect)?;
    let volume = &mount.volume;
    if !capabilities.has(Rpc::StageUnstageVolume) {
        return Ok(());
    }
    let secrets =
        secret(objects, volume.stage_secret.as_ref()).map_err(FailedOperation::without_effect)?;
    let layout = &context.layout;
    let (directory, staging) = (layout.staged(&volume.id), layout.staging(&volume.id));
    let data = VolumeData::new(
        &volume.id,
        &volume.directory,
        volume.lifecycle,
        Mounter::Driver,
        &context.node,
    );
    let paths = (directory.clone(), staging.clone());
    let prepared = blocking(move || {
        let is_new = directories::prepare(&paths.0, &data)?;
        directories::create_directory(&paths.1)?;
        Ok(is_new)
    });
    let is_new = prepared.await.map_err(FailedOperation::uncertain)?;
    let request = NodeStageVolumeRequest {
        volume_id: volume.id.handle.clone(),
        publish_context: std::collections::HashMap::new(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(staged_capability(mount, &capabilities, &publish)),
        secrets,
        volume_context: volume_context(volume),
    };
    match driver.call(request).await {
        Ok(_) => Ok(()),
        Err(error) if is_new && error.is_final() => {
            // The driver has done nothing, so no record is needed.
            match blocking(move || directories::remove_volume_dir(&directory, &staging)).await {
                Ok(()) => Err(FailedOperation::without_effect(error)),
                Err(_) => Err(FailedOperation::uncertain(error)),
            }
        }
        Err(error) => Err(FailedOperation::uncertain(error)),
    }
}

/// Returns the volume capability for staging. It contains only one property of the pod, the group to mount with
/// (KEP-2317), because several pods may share the staged volume.
fn staged_capability(
    mount: &MountSpec,
    capabilities: &Capabilities,
    publish: &PublishOptions,
) -> crust_proto::csi::v1::VolumeCapability {
    let staged = PublishOptions {
        mount_group: publish.mount_group,
        ..PublishOptions::default()
    };
    volume_capability(&mount.volume, capabilities, &staged)
}

/// Calls `NodeUnstageVolume`, if the driver stages volumes, and removes the staging directory.
pub(crate) async fn unstage(context: &Context, id: &VolumeId) -> Result<(), OperationError> {
    let (directory, staging) = (context.layout.staged(id), context.layout.staging(id));
    let path = directory.clone();
    let exists = blocking(move || {
        let exists = path.try_exists();
        exists.map_err(OperationError::io("stat", &path))
    });
    if !exists.await? {
        return Ok(());
    }
    let driver = context.driver(id)?;
    if driver
        .node_capabilities()
        .await?
        .has(Rpc::StageUnstageVolume)
    {
        let request = NodeUnstageVolumeRequest {
            volume_id: id.handle.clone(),
            staging_target_path: staging.display().to_string(),
        };
        driver.call(request).await?;
    }
    blocking(move || directories::remove_volume_dir(&directory, &staging)).await
}
