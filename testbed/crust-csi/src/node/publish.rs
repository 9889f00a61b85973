//! `NodePublishVolume`: the pod gets the volume; from the driver, or from its container runtime.

use std::collections::HashMap;
use std::path::Path;
use std::slice;

use crust_blockfs::device::Device;
use crust_blockfs::loops;
use crust_proto::csi::v1::{
    FileSystemMountInfo, NodePublishVolumeRequest, NodePublishVolumeResponse,
};
use crust_state::TargetPath;

use super::decide::{PublishStep, decide};
use crate::capability::{Capability, MountCapability, Parameters};
use crate::driver::{Driver, check_present, parse_path, path_key};
use crate::features::Feature;
use crate::kubelet_paths;
use crate::mounts;
use crate::refusal::Refusal;
use crate::store::{Mounter, Publication};
use crate::target_cleanup::is_vacant;

impl Driver {
    /// `NodePublishVolume`.
    pub(crate) fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let target = parse_path("target_path", &request.target_path)?;
        let wanted = self.requested_publication(request)?;
        let mut record = self.record(id)?;
        if request.staging_target_path.is_empty() {
            let what = "staging_target_path is required; hint: NodeStageVolume comes first";
            return Err(Refusal::state(id, what));
        }
        let staging = path_key(&parse_path(
            "staging_target_path",
            &request.staging_target_path,
        )?);
        let Some(staged) = record.staged.get(&staging) else {
            let what = format!("it isn't staged at {staging}; hint: NodeStageVolume comes first");
            return Err(Refusal::state(id, what));
        };
        if !staged.has_same_staging(&wanted.usage) {
            let what = format!(
                "it is staged with another volume_capability: {}",
                staged.describe()
            );
            return Err(Refusal::exists(id, what));
        }
        // After a boot there is none yet, and kubelet may not stage again.
        let device = self.attach(id, &record)?;
        let _turn = self.lock_target(id, &target)?;
        let live = self.existing_publications(id, &record)?;
        let step = decide(id, &path_key(&target), &wanted, &live)?;
        if let PublishStep::Existing(there) = step {
            return self.ensure_published(id, &device, &target, there);
        }
        self.check_not_other_volumes(id, &target)?;
        let before = record.published.insert(path_key(&target), wanted.clone());
        if before.is_none() {
            self.check_vacant(id, &device, &target, &wanted)?;
        }
        tracing::info!("volume {id}: {target:?}: {}", wanted.describe());
        if wanted.by == Mounter::Kubelet {
            // It is there once kubelet has the answer, and the record alone says so: none is left of a failure.
            let given = self.ensure_published(id, &device, &target, &wanted)?;
            self.store.save(id, &record)?;
            return Ok(given);
        }
        // Before anything is done: what is there is always known of.
        self.store.save(id, &record)?;
        let given = self.ensure_published(id, &device, &target, &wanted);
        if given.is_err() {
            // kubelet doesn't unpublish what it was told can't be, and another volume may come there.
            let is_there = self
                .publication_exists(id, slice::from_ref(&device), &path_key(&target), &wanted)
                .unwrap_or(true);
            if !is_there {
                match before {
                    // Of something that is there, maybe, and isn't seen for now.
                    Some(before) => drop(record.published.insert(path_key(&target), before)),
                    None => drop(record.published.remove(&path_key(&target))),
                }
                self.save_removal(id, &record);
            }
        }
        given
    }

    /// The publication that a request asks for.
    fn requested_publication(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<Publication, Refusal> {
        let capability = request.volume_capability.as_ref();
        let mut usage = Capability::from_request("volume_capability", capability, &self.features)?;
        let parameters = Parameters::from_volume_context(&request.volume_context)?;
        let runtimes = &request.runtime_supported_filesystems;
        let by = match &mut usage.mount {
            None if request.defer_fs_ops => {
                let reason = "a block volume has no file system that could be deferred";
                return Err(Refusal::field("defer_fs_ops", reason));
            }
            None => Mounter::Driver,
            Some(mount) => {
                mount.change_policy = mount.change_policy.or(parameters.change_policy);
                let can_defer = self.features.has(Feature::DeferFsOps);
                if can_defer && (request.defer_fs_ops || parameters.defer) {
                    Mounter::Runtime
                } else if runtimes.iter().any(|it| *it == mount.fstype.to_string()) {
                    Mounter::Kubelet
                } else {
                    Mounter::Driver
                }
            }
        };
        Ok(Publication {
            usage,
            read_only: request.readonly,
            by,
            features: self.features.publication_feature_names(),
        })
    }

    fn ensure_published(
        &self,
        id: &str,
        device: &Device,
        target: &TargetPath,
        wanted: &Publication,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let path = target.as_path();
        let mut response = NodePublishVolumeResponse::default();
        match (&wanted.usage.mount, wanted.by) {
            (None, _) => {
                if !mounts::is_mounted_at(slice::from_ref(device), path)
                    .map_err(Refusal::node(id))?
                {
                    self.bind_block(id, device, path, wanted)?;
                }
            }
            (Some(mount), Mounter::Driver) => {
                if !mounts::is_mounted_at(slice::from_ref(device), path)
                    .map_err(Refusal::node(id))?
                {
                    mounts::mount(device, mount, wanted, path).map_err(Refusal::node(id))?;
                }
            }
            // An earlier driver has deferred it, before a downgrade, and it is there.
            (_, Mounter::Runtime) if !self.features.has(Feature::DeferFsOps) => {}
            (Some(mount), Mounter::Runtime) => {
                ensure_empty_directory(id, path)?;
                self.ops
                    .stage(target, device.path(), mount, wanted)
                    .map_err(Refusal::ops(id))?;
            }
            (Some(mount), Mounter::Kubelet) => {
                ensure_empty_directory(id, path)?;
                response.runtime_mount_info = Some(mount_info(device, mount, wanted));
            }
        }
        Ok(response)
    }

    /// Nothing is at a new target path but what an orchestrator has put there, and nobody else has staged anything
    /// for it.
    fn check_vacant(
        &self,
        id: &str,
        device: &Device,
        target: &TargetPath,
        wanted: &Publication,
    ) -> Result<(), Refusal> {
        let path = target.as_path();
        let devices = slice::from_ref(device);
        let is_anothers = match self.is_other_volume_staged(id, devices, target) {
            // Whoever doesn't defer has no need of the crust directory.
            Err(_) if wanted.by != Mounter::Runtime => false,
            other => other?,
        };
        if is_anothers {
            let what = format!(
                "{}: another volume is staged there for a container runtime; hint: `runcrust crust list` tells which",
                path.display()
            );
            return Err(Refusal::state(id, what));
        }
        // A subPath's directory of kubelet's is one in kubelet's place; what a pod wrote there is kept at the end.
        let is_block = wanted.usage.mount.is_none();
        if (kubelet_paths::is_target(target) && !is_block) || is_vacant(path, is_block) {
            return Ok(());
        }
        // The volume itself, of which the record is an older copy.
        if mounts::is_mounted_at(devices, path).is_ok_and(|has| has) {
            return Ok(());
        }
        let what = format!(
            "{}: something is there, which would be removed at the end; hint: a target path isn't there, or is an \
             empty {}",
            path.display(),
            if is_block { "file" } else { "directory" }
        );
        Err(Refusal::state(id, what))
    }

    /// A device node says nothing of who may write: the device does, for all who have it.
    fn bind_block(
        &self,
        id: &str,
        device: &Device,
        target: &Path,
        wanted: &Publication,
    ) -> Result<(), Refusal> {
        let read_only = wanted.read_only || wanted.usage.is_read_only();
        let record = self.record(id)?;
        let mut others = self.existing_publications(id, &record)?.into_iter();
        let other = others.find(|(_, it)| (it.read_only || it.usage.is_read_only()) != read_only);
        if let Some((path, _)) = other {
            let what = format!(
                "it is published at {path}, and not read-only as here, or the other way round; hint: a block device is read-only for all pods of a node or for none"
            );
            return Err(Refusal::state(id, what));
        }
        loops::set_read_only(&self.images.path(id), read_only).map_err(Refusal::node(id))?;
        mounts::bind_device(device, target).map_err(Refusal::node(id))
    }
}

/// A deferred volume's target directory: nothing stands in it on the host, and nothing is mounted.
fn ensure_empty_directory(id: &str, target: &Path) -> Result<(), Refusal> {
    if let Some(mounted) = mounts::mount_at(target).map_err(Refusal::node(id))? {
        let error = mounts::occupied(target, &mounted);
        return Err(Refusal::node(id)(error));
    }
    mounts::create_target_directory(target)
        .map(drop)
        .map_err(Refusal::node(id))
}

/// Returns the volume that a runtime is to mount, for kubelet to hand on (KEP-2857's earlier draft).
fn mount_info(
    device: &Device,
    mount: &MountCapability,
    wanted: &Publication,
) -> FileSystemMountInfo {
    let mut options: HashMap<String, String> = HashMap::new();
    for option in mount.options.iter().flat_map(|options| options.split(',')) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        options.insert(key.to_owned(), value.to_owned());
    }
    // A pod's own `readonly` kubelet tells the runtime itself: the option is for all pods of the node.
    if wanted.usage.is_read_only() {
        options.insert("ro".to_owned(), String::new());
    }
    FileSystemMountInfo {
        source: device.path().display().to_string(),
        r#type: mount.fstype.to_string(),
        options,
    }
}
