//! `NodeExpandVolume`: what is on a volume uses all of it, whoever has mounted it.

use std::os::fd::OwnedFd;

use crust_blockfs::device::{Device, DeviceFacts};
use crust_blockfs::resize;
use crust_blockfs::resize::SizeLimits;
use crust_proto::csi::v1::{CapacityRange, NodeExpandVolumeRequest, NodeExpandVolumeResponse};
use crust_state::TargetPath;

use super::not_at_path;
use crate::capability::{Capability, MountCapability};
use crate::controller::signed;
use crate::driver::{Driver, check_present, parse_path, parse_volume_path, path_key};
use crate::features::Feature;
use crate::mounts;
use crate::refusal::Refusal;
use crate::store::{Mounter, Publication, Record};

impl Driver {
    /// `NodeExpandVolume`.
    pub(crate) fn expand(
        &self,
        request: &NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse, Refusal> {
        self.check_feature(Feature::ExpandVolume, "EXPAND_VOLUME")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        check_present("volume_path", &request.volume_path)?;
        let record = self.record(id)?;
        let place = parse_volume_path(id, &request.volume_path)?;
        let range = request.capacity_range.unwrap_or_default();
        check_range(&record, range)?;
        let asked = path_key(&place);
        let staged = record.staged.get(&asked);
        if staged.is_none() && !record.published.contains_key(&asked) {
            return Err(not_at_path(id, &place));
        }
        let device = self.attach(id, &record)?;
        let mut response = NodeExpandVolumeResponse {
            capacity_bytes: signed(record.capacity),
            source: String::new(),
        };
        // At the staging path nothing is mounted: any pod's place will do.
        let live = self.existing_publications(id, &record)?;
        let here = live.iter().find(|(path, _)| *path == asked);
        if here.is_none() && staged.is_none() {
            return Err(not_at_path(id, &place));
        }
        let writable = live.iter().find(|(_, publication)| !publication.read_only);
        match here.or(writable).or(live.first()) {
            Some((target, publication)) => {
                let target = recorded_path(target)?;
                if publication.by == Mounter::Kubelet {
                    if !request.runtime_supports_expand {
                        return Err(expansion_unsupported(id));
                    }
                    response.source = device.path().display().to_string();
                    return Ok(response);
                }
                let published = Published {
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
                        return Err(read_only(id));
                    }
                    grow_detached(id, &device, mount)?;
                }
            }
        }
        Ok(response)
    }

    fn grow_published(
        &self,
        published: Published<'_>,
        device: &Device,
        range: CapacityRange,
    ) -> Result<(), Refusal> {
        let Published {
            id,
            target,
            publication,
        } = published;
        let Some(mount) = &publication.usage.mount else {
            return Ok(());
        };
        if publication.by == Mounter::Runtime {
            self.check_can_defer(id)?;
            let expanded = self
                .ops
                .expand(target, range.required_bytes, range.limit_bytes);
            return expanded.map(drop).map_err(Refusal::ops(id));
        }
        if publication.usage.is_read_only() || mount.is_read_only() {
            return Err(read_only(id));
        }
        if publication.read_only {
            // This pod's mount alone can't be written to.
            return grow_detached(id, device, mount);
        }
        let root = mounts::open_root(target.as_path()).map_err(Refusal::node(id))?;
        grow(id, &root, &device.clone().into(), mount)
    }
}

/// A volume at a pod's target path.
#[derive(Clone, Copy)]
struct Published<'a> {
    id: &'a str,
    target: &'a TargetPath,
    publication: &'a Publication,
}

/// KEP-2857's earlier draft, story 6: it isn't ours to grow, and whoever has it mounted can't.
fn expansion_unsupported(id: &str) -> Refusal {
    let what = "its runtime has it mounted, and doesn't support expansion (runtime_supports_expand); hint: it grows when its pod is started anew by a runtime that does, or by none";
    Refusal::state(id, what)
}

fn read_only(id: &str) -> Refusal {
    let what = "it is there to be read only; hint: it grows when it is published to be written to";
    Refusal::state(id, what)
}

/// Grows a file system through a mount that is attached nowhere.
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
    let root = mounts::reopen_readable(root, device.path()).map_err(Refusal::node(id))?;
    // Limits are the volume's, and were looked at: a file system is a little smaller.
    let all = SizeLimits::new(0, 0).map_err(|error| Refusal::field("capacity_range", error))?;
    resize::grow(&root, device, mount.fstype.name(), all).map_err(Refusal::node(id))?;
    Ok(())
}

fn check_range(record: &Record, range: CapacityRange) -> Result<(), Refusal> {
    let now = signed(record.capacity);
    let CapacityRange {
        required_bytes: least,
        limit_bytes: most,
    } = range;
    if least < 0 || most < 0 {
        return Err(Refusal::field("capacity_range", "it is negative"));
    }
    if least > now {
        return Err(Refusal::Range(format!(
            "the volume has {now} bytes, less than {least}; hint: ControllerExpandVolume comes first"
        )));
    }
    if most != 0 && most < now {
        return Err(Refusal::Range(format!(
            "the volume has {now} bytes, more than {most}"
        )));
    }
    Ok(())
}

/// A path of a record's.
fn recorded_path(text: &str) -> Result<TargetPath, Refusal> {
    parse_path("volume_path", text)
}
