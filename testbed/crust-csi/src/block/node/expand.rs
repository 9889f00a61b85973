//! `NodeExpandVolume`: grows the file system of a volume to the size of its device.

use std::os::fd::OwnedFd;

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::resize;
use crust_blockfs::resize::SizeLimits;
use crust_proto::csi::v1::{CapacityRange, NodeExpandVolumeRequest, NodeExpandVolumeResponse};
use crust_state::TargetPath;

use super::not_at_path;
use crate::block::BlockDriver;
use crate::block::Publication;
use crate::block::mounts;
use crate::block::record::Record;
use crate::block::{Capability, MountCapability};
use crate::features::Feature;
use crate::mounts::open_root;
use crate::mounts::reopen_readable;
use crate::refusal::Refusal;
use crate::requests::{check_present, parse_path, parse_volume_path, path_key, to_signed};
use crate::store::Mounter;

impl BlockDriver {
    /// Handles `NodeExpandVolume`.
    pub(crate) fn expand(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Refusal> {
        self.context
            .check_feature(Feature::ExpandVolume, "EXPAND_VOLUME")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        check_present("volume_path", &request.volume_path)?;
        let record = self.record_of_claim(id)?;
        let path = parse_volume_path(id, &request.volume_path)?;
        let range = request.capacity_range.unwrap_or_default();
        check_range(&record, range)?;
        let requested = path_key(&path);
        let staged = record.staged.get(&requested);
        if staged.is_none() && !record.published.contains_key(&requested) {
            return Err(not_at_path(id, &path));
        }
        let device = self.attach(id, &record)?;
        let mut response = NodeExpandVolumeResponse {
            capacity_bytes: to_signed(record.capacity),
            source: String::new(),
        };
        // Nothing is mounted at a staging path. If the request names it, the mount of any pod can be used.
        let existing = self.existing_publications(id, &record)?;
        let here = existing.iter().find(|(path, _)| *path == requested);
        if here.is_none() && staged.is_none() {
            return Err(not_at_path(id, &path));
        }
        let writable = existing
            .iter()
            .find(|(_, publication)| !publication.read_only);
        match here.or(writable).or(existing.first()) {
            Some((target, publication)) => {
                let target = recorded_path(target)?;
                if publication.by == Mounter::Kubelet {
                    if !request.runtime_supports_expand {
                        return Err(refuse_unsupported_expansion(id));
                    }
                    response.source = device.path().display().to_string();
                    return Ok(response);
                }
                let published = VolumePublication {
                    id,
                    target: &target,
                    publication,
                };
                self.grow_published(published, &device, range)?;
            }
            None => {
                if let Some(Capability {
                    mount: Some(mount), ..
                }) = staged
                {
                    if staged.is_some_and(Capability::is_read_only) {
                        return Err(refuse_read_only(id));
                    }
                    grow_detached(id, &device, mount)?;
                }
            }
        }
        Ok(response)
    }

    fn grow_published(
        &self,
        published: VolumePublication<'_>,
        device: &Device,
        range: CapacityRange,
    ) -> Result<(), Refusal> {
        let VolumePublication {
            id,
            target,
            publication,
        } = published;
        let Some(mount) = &publication.usage.mount else {
            return Ok(());
        };
        if publication.by == Mounter::Runtime {
            self.context.check_can_defer(id)?;
            let expanded = self
                .context
                .ops
                .expand(target, range.required_bytes, range.limit_bytes);
            return expanded.map(drop).map_err(Refusal::ops(id));
        }
        if publication.usage.is_read_only() || mount.is_read_only() {
            return Err(refuse_read_only(id));
        }
        if publication.read_only {
            // Only the mount of this pod is read-only.
            return grow_detached(id, device, mount);
        }
        let root = open_root(target.as_path()).map_err(Refusal::node(id))?;
        grow(id, &root, &device.clone().into(), mount)
    }
}

#[derive(Clone, Copy)]
struct VolumePublication<'a> {
    id: &'a str,
    target: &'a TargetPath,
    publication: &'a Publication,
}

/// Returns the error for a volume that kubelet's runtime has mounted and can't grow (KEP-2857's earlier draft, story
/// 6).
fn refuse_unsupported_expansion(id: &str) -> Refusal {
    let message = "its runtime has it mounted, and doesn't support expansion (runtime_supports_expand); hint: \
                   restart its pod with a runtime that supports expansion, or without deferral";
    Refusal::state(id, message)
}

fn refuse_read_only(id: &str) -> Refusal {
    let message = "it is read-only; hint: publish it for writing, which expands it";
    Refusal::state(id, message)
}

/// Grows a file system through a detached mount.
fn grow_detached(id: &str, device: &Device, mount: &MountCapability) -> Result<(), Refusal> {
    let device = DeviceFacts::from(device.clone());
    let detached = mounts::mount_detached(&device, mount).map_err(Refusal::node(id))?;
    grow(id, &detached, &device, mount)
}

fn grow(
    id: &str,
    root: &OwnedFd,
    device: &DeviceFacts,
    mount: &MountCapability,
) -> Result<(), Refusal> {
    let root = reopen_readable(root, device.path()).map_err(Refusal::node(id))?;
    // The limits of the request are for the volume and were checked. The file system is a little smaller.
    let no_limits =
        SizeLimits::new(0, 0).map_err(|error| Refusal::field("capacity_range", error))?;
    resize::grow(&root, device, mount.fstype.name(), no_limits).map_err(Refusal::node(id))?;
    Ok(())
}

fn check_range(record: &Record, range: CapacityRange) -> Result<(), Refusal> {
    let now = to_signed(record.capacity);
    let CapacityRange {
        required_bytes: min,
        limit_bytes: max,
    } = range;
    if min < 0 || max < 0 {
        return Err(Refusal::field("capacity_range", "is negative"));
    }
    if min > now {
        return Err(Refusal::Range(format!(
            "the volume has {now} bytes, less than {min}; hint: call ControllerExpandVolume first"
        )));
    }
    if max != 0 && max < now {
        return Err(Refusal::Range(format!(
            "the volume has {now} bytes, more than {max}"
        )));
    }
    Ok(())
}

/// Parses a path from a record.
fn recorded_path(text: &str) -> Result<TargetPath, Refusal> {
    parse_path("volume_path", text)
}
