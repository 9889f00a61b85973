//! `NodePublishVolume`: mounts a volume for a pod, or defers the mount to the container runtime.

use std::collections::HashMap;
use std::path::Path;
use std::slice;

use crust_blockfs::device::Device;
use crust_blockfs::loops;
use crust_proto::csi::v1::{
    FileSystemMountInfo, NodePublishVolumeRequest, NodePublishVolumeResponse,
};
use crust_state::TargetPath;

use crate::block::BlockDriver;
use crate::block::Publication;
use crate::block::mounts;
use crate::block::record::Record;
use crate::block::{Capability, MountCapability};
use crate::capability::Parameters;
use crate::driver_context::{check_vacant, ensure_empty_directory, other_volume_staged};
use crate::features::Feature;
use crate::inline_volume::{is_inline, is_inline_id};
use crate::ops::Backing;
use crate::publish_decision::{PublishStep, decide};
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_path, path_key};
use crate::store::Mounter;

impl BlockDriver {
    /// Handles `NodePublishVolume`.
    pub(crate) fn publish(
        &self,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let target = parse_path("target_path", &request.target_path)?;
        if is_inline(&request.volume_context) {
            return self.publish_inline(request, &target);
        }
        check_id_of_claim(id)?;
        let parameters = Parameters::from_volume_context(&request.volume_context)?;
        let requested = self.requested_publication(request, &parameters)?;
        let mut record = self.record(id)?;
        if request.staging_target_path.is_empty() {
            let message = "staging_target_path is required; hint: call NodeStageVolume first";
            return Err(Refusal::state(id, message));
        }
        let staging = path_key(&parse_path(
            "staging_target_path",
            &request.staging_target_path,
        )?);
        let Some(staged) = record.staged.get(&staging) else {
            let message =
                format!("it is not staged at {staging}; hint: call NodeStageVolume first");
            return Err(Refusal::state(id, message));
        };
        if !staged.has_same_staging(&requested.usage) {
            let message = format!(
                "it is staged with another volume_capability: {}",
                staged.describe()
            );
            return Err(Refusal::exists(id, message));
        }
        let _guard = self.context.lock_target(id, &target)?;
        self.publish_at(id, &mut record, &target, &requested)
    }

    /// Publishes a volume with a prepared file system at a target path, or completes an existing publication. The
    /// caller must hold the lock of the path.
    pub(super) fn publish_at(
        &self,
        id: &str,
        record: &mut Record,
        target: &TargetPath,
        requested: &Publication,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        // After a reboot the image is not attached, and kubelet may not stage the volume again.
        let device = &self.attach(id, record)?;
        let existing = self.existing_publications(id, record)?;
        let step = decide(id, &path_key(target), requested, &existing)?;
        if let PublishStep::Existing(there) = step {
            return self.ensure_published(id, device, target, there);
        }
        self.check_not_other_volumes(id, target)?;
        let before = record.published.insert(path_key(target), requested.clone());
        if before.is_none() {
            self.check_vacant(id, device, target, requested)?;
        }
        tracing::info!("volume {id}: {target:?}: {}", requested.describe());
        if requested.by == Mounter::Kubelet {
            // Only the record shows that this publication exists, so it is written last: a failure must leave none.
            let response = self.ensure_published(id, device, target, requested)?;
            self.store.save(id, record)?;
            return Ok(response);
        }
        // The record is written first, so that whatever is mounted or staged is in a record.
        self.store.save(id, record)?;
        let response = self.ensure_published(id, device, target, requested);
        // A publication of an inline volume is kept for the calls that end it.
        if response.is_err() && !is_inline_id(id) {
            // kubelet doesn't unpublish after a failed publish, and another volume may be published at the path.
            let exists = self
                .publication_exists(id, slice::from_ref(device), &path_key(target), requested)
                .unwrap_or(true);
            if !exists {
                match before {
                    // The earlier record may be of a publication that exists but can't be seen now.
                    Some(before) => drop(record.published.insert(path_key(target), before)),
                    None => drop(record.published.remove(&path_key(target))),
                }
                self.save_removal(id, record);
            }
        }
        response
    }

    /// Reads the publication that a request asks for. `parameters` are those in its volume context.
    pub(super) fn requested_publication(
        &self,
        request: &NodePublishVolumeRequest,
        parameters: &Parameters,
    ) -> Result<Publication, Refusal> {
        let capability = request.volume_capability.as_ref();
        let mut usage: Capability =
            Capability::from_request("volume_capability", capability, &self.context.features)?;
        let runtimes = &request.runtime_supported_filesystems;
        let by = match &mut usage.mount {
            None if request.defer_fs_ops => {
                let reason = "a block volume has no file system that could be deferred";
                return Err(Refusal::field("defer_fs_ops", reason));
            }
            None => Mounter::Driver,
            Some(mount) => {
                mount.change_policy = mount.change_policy.or(parameters.change_policy);
                let can_defer = self.context.features.has(Feature::DeferFsOps);
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
            features: self.context.features.publication_feature_names(),
        })
    }

    fn ensure_published(
        &self,
        id: &str,
        device: &Device,
        target: &TargetPath,
        requested: &Publication,
    ) -> Result<NodePublishVolumeResponse, Refusal> {
        let path = target.as_path();
        let mut response = NodePublishVolumeResponse::default();
        match (&requested.usage.mount, requested.by) {
            (None, _) => {
                if !mounts::is_mounted_at(slice::from_ref(device), path)
                    .map_err(Refusal::node(id))?
                {
                    self.bind_block(id, device, path, requested)?;
                }
            }
            (Some(mount), Mounter::Driver) => {
                if !mounts::is_mounted_at(slice::from_ref(device), path)
                    .map_err(Refusal::node(id))?
                {
                    mounts::mount(device, mount, requested, path).map_err(Refusal::node(id))?;
                }
            }
            // The driver was downgraded since the volume was deferred. The volume is still staged.
            (_, Mounter::Runtime) if !self.context.features.has(Feature::DeferFsOps) => {}
            (Some(mount), Mounter::Runtime) => {
                ensure_empty_directory(id, path)?;
                self.context
                    .ops
                    .stage(target, Backing::Device(device.path()), mount, requested)
                    .map_err(Refusal::ops(id))?;
            }
            (Some(mount), Mounter::Kubelet) => {
                ensure_empty_directory(id, path)?;
                response.runtime_mount_info = Some(mount_info(device, mount, requested));
            }
        }
        Ok(response)
    }

    /// Checks that a new target path doesn't exist or is as an orchestrator creates it, and that no other volume is
    /// staged there.
    fn check_vacant(
        &self,
        id: &str,
        device: &Device,
        target: &TargetPath,
        requested: &Publication,
    ) -> Result<(), Refusal> {
        let devices = slice::from_ref(device);
        let is_anothers = match self.is_other_volume_staged(id, devices, target) {
            // An unreadable crust directory is an error only if the volume is deferred.
            Err(_) if requested.by != Mounter::Runtime => false,
            other => other?,
        };
        if is_anothers {
            return Err(other_volume_staged(id, target));
        }
        // The volume itself is mounted, and the record is an older copy.
        if mounts::is_mounted_at(devices, target.as_path()).is_ok_and(|has| has) {
            return Ok(());
        }
        check_vacant(id, target, requested.usage.mount.is_none())
    }

    /// Bind mounts a block volume's device node. Makes the device read-only if necessary, which affects all pods.
    fn bind_block(
        &self,
        id: &str,
        device: &Device,
        target: &Path,
        requested: &Publication,
    ) -> Result<(), Refusal> {
        let read_only = requested.read_only || requested.usage.is_read_only();
        let record = self.record(id)?;
        let mut others = self.existing_publications(id, &record)?.into_iter();
        let other = others.find(|(_, it)| (it.read_only || it.usage.is_read_only()) != read_only);
        if let Some((path, _)) = other {
            let (here, there) = if read_only {
                ("read-only", "for writing")
            } else {
                ("for writing", "read-only")
            };
            let message = format!(
                "it is requested {here}, and published at {path} {there}; hint: request it in the same way for all pods on a node, because a block device is read-only for all or for none"
            );
            return Err(Refusal::state(id, message));
        }
        loops::set_read_only(&self.images.path(id), read_only).map_err(Refusal::node(id))?;
        mounts::bind_device(device, target).map_err(Refusal::node(id))
    }
}

/// Fails if an id is that of an inline volume, in a request that doesn't say so.
fn check_id_of_claim(id: &str) -> Result<(), Refusal> {
    if !is_inline_id(id) {
        return Ok(());
    }
    let reason = "the id is that of a volume in the spec of a pod, but csi.storage.k8s.io/ephemeral is not true; hint: \
                  set podInfoOnMount in the CSIDriver";
    Err(Refusal::field("volume_context", reason))
}

/// Returns what kubelet passes to the runtime for it to mount (KEP-2857's earlier draft).
fn mount_info(
    device: &Device,
    mount: &MountCapability,
    requested: &Publication,
) -> FileSystemMountInfo {
    let mut options: HashMap<String, String> = HashMap::new();
    for option in mount.options.iter().flat_map(|options| options.split(',')) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        options.insert(key.to_owned(), value.to_owned());
    }
    // `ro` is for all pods on the node. kubelet itself tells the runtime the `readonly` of the pod.
    if requested.usage.is_read_only() {
        options.insert("ro".to_owned(), String::new());
    }
    FileSystemMountInfo {
        source: device.path().display().to_string(),
        r#type: mount.fstype.to_string(),
        options,
    }
}
