//! Publishes a volume for a pod, and unpublishes it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{
    FileSystemMountInfo, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
};

use super::{
    Attempt, Context, OperationError, blocking, directories, group, runtime, secret, subpath,
};
use crate::csi::{Driver, Publish, capability, context as volume_context};
use crate::objects::{Objects, Pod};
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::spec::{Lifecycle, MountSpec, VolumeId};

/// A published volume.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Published {
    /// The program that has it mounted, or will.
    pub(crate) mounter: Mounter,
    /// The volume for a runtime that mounts on request (KEP-2857's earlier draft).
    pub(crate) late: Option<FileSystemMountInfo>,
}

/// A publication that is to be unpublished or measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Publication {
    /// The volume.
    pub(crate) id: VolumeId,
    /// The pod, by its uid.
    pub(crate) pod: String,
    /// The volume's directory in the pod's.
    pub(crate) directory: String,
    /// The program that has it mounted.
    pub(crate) mounter: Mounter,
}

/// Publishes a volume by `NodePublishVolume`, and does kubelet's part after that. `there` is the program that has it
/// mounted already, if that is known.
pub(crate) async fn publish(
    context: &Context,
    objects: &Objects,
    pod: &Pod,
    mount: &MountSpec,
    there: Option<Mounter>,
) -> Result<Published, Attempt> {
    let volume = &mount.volume;
    let driver = context.driver(&volume.id).map_err(Attempt::before)?;
    let capabilities = driver.node_capabilities().await.map_err(Attempt::before)?;
    let publish = Publish::of(mount, &capabilities).map_err(Attempt::before)?;
    let runtimes = runtime::file_systems(mount, there)
        .await
        .map_err(Attempt::before)?;
    let secrets = secret(objects, volume.publish_secret.as_ref()).map_err(Attempt::before)?;
    let about_pod = about(objects, pod, mount).map_err(Attempt::before)?;
    let layout = &context.layout;
    let directory = layout.volume(&pod.uid, &volume.directory);
    let target = layout.target(&pod.uid, &volume.directory);
    let data = VolumeData::new(
        &volume.id,
        &volume.directory,
        volume.lifecycle,
        // As it was recorded: what the driver answers may be another.
        if publish.defer_fs_ops {
            Mounter::Deferred
        } else {
            there.unwrap_or(Mounter::Driver)
        },
        &context.node,
    );
    let (place, record) = (directory.clone(), data.clone());
    let prepared = blocking(move || {
        directories::check(&place, &record)?;
        directories::prepare(&place, &record)
    });
    let is_new = prepared.await.map_err(Attempt::preparing)?;
    let is_staged =
        volume.lifecycle == Lifecycle::Persistent && capabilities.has(Rpc::StageUnstageVolume);
    let staging = is_staged.then(|| layout.staging(&volume.id).display().to_string());
    let request = NodePublishVolumeRequest {
        volume_id: volume.id.handle.clone(),
        publish_context: HashMap::new(),
        staging_target_path: staging.unwrap_or_default(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(volume, &capabilities, &publish)),
        readonly: mount.read_only || volume.read_only,
        secrets,
        volume_context: volume_context(volume)
            .into_iter()
            .chain(about_pod)
            .collect(),
        defer_fs_ops: publish.defer_fs_ops,
        runtime_supported_filesystems: runtimes.clone(),
    };
    let answer = match driver.call(request).await {
        Ok(answer) => answer,
        Err(error) if is_new && error.is_final() => {
            // Nothing is there, and nothing needs to say that there may be.
            let place = target.clone();
            return match blocking(move || directories::clear(&directory, &place)).await {
                Ok(()) => Err(Attempt::before(error)),
                Err(_) => Err(Attempt::within(error)),
            };
        }
        Err(error) => return Err(Attempt::within(error)),
    };
    if publish.defer_fs_ops || answer.runtime_mount_info.is_some() {
        let place = target.clone();
        let is_mounted = blocking(move || directories::is_mount_root(&place)).await;
        if is_mounted.map_err(Attempt::within)? {
            return Err(take_back(&driver, &data, target, directory, is_new).await);
        }
    }
    if publish.defer_fs_ops {
        context.metrics.published_deferred();
        return Ok(Published {
            mounter: Mounter::Deferred,
            late: None,
        });
    }
    let mounter = match answer.runtime_mount_info {
        Some(_) => Mounter::Runtime,
        None => Mounter::Driver,
    };
    if data.mounter() != mounter {
        // Before anybody acts on it: whoever is started anew does as it says.
        let written = blocking(move || directories::prepare(&directory, &data.by(mounter)));
        written.await.map_err(Attempt::within)?;
    }
    if let Some(late) = answer.runtime_mount_info {
        // Nobody would mount it, and the pod would write to the host's disk.
        if !runtimes.contains(&late.r#type) {
            let (driver, kind) = (volume.id.driver.clone(), late.r#type);
            return Err(Attempt::within(OperationError::NotOffered { driver, kind }));
        }
        return Ok(Published {
            mounter,
            late: Some(late),
        });
    }
    if let Some(gid) = group::wanted(objects, mount, &publish).map_err(Attempt::within)? {
        let applied = group::apply(context, pod, mount, gid, target).await;
        applied.map_err(Attempt::within)?;
    }
    Ok(Published {
        mounter,
        late: None,
    })
}

/// Unpublishes what a driver has mounted on the host although the runtime is to mount it: a driver that reports
/// another capability by the number of `DEFER_FS_OPS`, or that ignores the field.
async fn take_back(
    driver: &Driver,
    data: &VolumeData,
    target: PathBuf,
    directory: PathBuf,
    is_new: bool,
) -> Attempt {
    let request = NodeUnpublishVolumeRequest {
        volume_id: data.id().handle,
        target_path: target.display().to_string(),
        defer_fs_ops: false,
    };
    let unpublished = driver.call(request).await;
    let is_gone = unpublished.is_ok() && is_new;
    let error = OperationError::NotDeferred {
        driver: data.id().driver,
        target: target.clone(),
        unpublish: unpublished.err().map(Box::new),
    };
    if is_gone {
        let (directory, target) = (directory.clone(), target);
        if blocking(move || directories::clear(&directory, &target))
            .await
            .is_ok()
        {
            return Attempt::before(error);
        }
    }
    // Whoever is started anew is not to take it for deferred.
    let by_the_driver = data.by(Mounter::Driver);
    let written = blocking(move || directories::prepare(&directory, &by_the_driver)).await;
    if let Err(error) = written {
        tracing::warn!("{}", crust_state::sentence(&error));
    }
    Attempt::mounted_by_the_driver(error)
}

/// Returns the pod's info in the volume context, if the driver's `CSIDriver` asks for that.
fn about(
    objects: &Objects,
    pod: &Pod,
    mount: &MountSpec,
) -> Result<HashMap<String, String>, OperationError> {
    let driver = &mount.volume.id.driver;
    let spec = objects.drivers.get(driver).map(|it| &it.spec);
    let is_inline = mount.volume.lifecycle == Lifecycle::Ephemeral;
    let mut modes = spec
        .iter()
        .flat_map(|it| &it.volume_lifecycle_modes)
        .flatten();
    if is_inline && !modes.any(|mode| mode == Lifecycle::Ephemeral.as_str()) {
        return Err(OperationError::NotInline(driver.clone()));
    }
    if spec.and_then(|it| it.pod_info_on_mount) != Some(true) {
        return Ok(HashMap::new());
    }
    let account = pod.spec.service_account_name.as_deref();
    let about = [
        ("pod.name", pod.name.name.as_str()),
        ("pod.namespace", &pod.name.namespace),
        ("pod.uid", &pod.uid),
        ("serviceAccount.name", account.unwrap_or("default")),
        ("ephemeral", if is_inline { "true" } else { "false" }),
    ];
    let about = about.into_iter();
    Ok(about
        .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()))
        .collect())
}

/// `NodeUnpublishVolume`, and what stood around it.
pub(crate) async fn unpublish(
    context: &Context,
    publication: &Publication,
) -> Result<(), OperationError> {
    let Publication {
        id, pod, directory, ..
    } = publication;
    let driver = context.driver(id)?;
    let layout = &context.layout;
    let binds = layout.subpaths(pod).join(directory);
    blocking(move || subpath::unbind(&binds)).await?;
    let is_deferred = publication.mounter == Mounter::Deferred;
    // A driver that lacks it now (KEP-2857, story 5) is asked as ever: the runtime cleans up after the pod.
    let defer_fs_ops = is_deferred && driver.node_capabilities().await?.has(Rpc::DeferFsOps);
    let target = layout.target(pod, directory);
    let request = NodeUnpublishVolumeRequest {
        volume_id: id.handle.clone(),
        target_path: target.display().to_string(),
        defer_fs_ops,
    };
    driver.call(request).await?;
    let volume = Arc::new(layout.volume(pod, directory));
    blocking(move || directories::clear(&volume, &target)).await
}
