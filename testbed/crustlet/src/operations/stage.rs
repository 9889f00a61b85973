//! Stages a volume on the node, and unstages it.

use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{NodeStageVolumeRequest, NodeUnstageVolumeRequest};

use super::{Attempt, Context, OperationError, blocking, directories, secret};
use crate::csi::{Capabilities, Publish, capability, context as volume_context};
use crate::objects::Objects;
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::spec::{MountSpec, VolumeId};

/// `NodeStageVolume` for those who want it, by a driver that stages; of another's there is nothing to do.
pub(crate) async fn stage(
    context: &Context,
    objects: &Objects,
    wanted: &[MountSpec],
) -> Result<(), Attempt> {
    let nobody = || Attempt::before(OperationError::Nobody);
    let first = wanted.first().ok_or_else(nobody)?;
    let driver = context.driver(&first.volume.id).map_err(Attempt::before)?;
    let capabilities = driver.node_capabilities().await.map_err(Attempt::before)?;
    // Who can't publish it as it is wanted needn't stage it; another pod may want it otherwise.
    let able = |mount| Publish::of(mount, &capabilities).map(|publish| (mount, publish));
    let mut all = wanted.iter().map(able);
    let (mount, publish) = match all.find(Result::is_ok) {
        Some(found) => found,
        None => able(first),
    }
    .map_err(Attempt::before)?;
    let volume = &mount.volume;
    if !capabilities.has(Rpc::StageUnstageVolume) {
        return Ok(());
    }
    let secrets = secret(objects, volume.stage_secret.as_ref()).map_err(Attempt::before)?;
    let layout = &context.layout;
    let (directory, staging) = (layout.staged(&volume.id), layout.staging(&volume.id));
    let data = VolumeData::new(
        &volume.id,
        &volume.directory,
        volume.lifecycle,
        Mounter::Driver,
        &context.node,
    );
    let places = (directory.clone(), staging.clone());
    let prepared = blocking(move || {
        let is_new = directories::prepare(&places.0, &data)?;
        directories::directory(&places.1)?;
        Ok(is_new)
    });
    let is_new = prepared.await.map_err(Attempt::within)?;
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
            // Nothing is there, and nothing needs to say that there may be.
            match blocking(move || directories::clear(&directory, &staging)).await {
                Ok(()) => Err(Attempt::before(error)),
                Err(_) => Err(Attempt::within(error)),
            }
        }
        Err(error) => Err(Attempt::within(error)),
    }
}

/// At stage there is no pod yet, but for the group that the driver is to mount with (KEP-2317).
fn staged_capability(
    mount: &MountSpec,
    capabilities: &Capabilities,
    publish: &Publish,
) -> crust_proto::csi::v1::VolumeCapability {
    let staged = Publish {
        mount_group: publish.mount_group,
        ..Publish::default()
    };
    capability(&mount.volume, capabilities, &staged)
}

/// `NodeUnstageVolume`, if the driver stages, and what stood around it.
pub(crate) async fn unstage(context: &Context, id: &VolumeId) -> Result<(), OperationError> {
    let (directory, staging) = (context.layout.staged(id), context.layout.staging(id));
    let looked = directory.clone();
    let is_there = blocking(move || {
        let there = looked.try_exists();
        there.map_err(OperationError::io("stat", &looked))
    });
    if !is_there.await? {
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
    blocking(move || directories::clear(&directory, &staging)).await
}
