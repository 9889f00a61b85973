//! Rewrites the config of a container with volumes: its mounts, and the block devices that it gets.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use crust_blockfs::{DeviceNumber, options};
use crust_state::bundle::{HookMount, RemovedMount, ReplacedSource};
use crust_state::config::MountMode;
use crust_state::{Config, TargetPath, timeouts};
use crust_volume::VolumeProperties;
use oci_spec::runtime::{
    LinuxDevice, LinuxDeviceBuilder, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType,
};

use super::{Hooks, Rewrite, arguments, utf8};
use crate::oci::{ArrayPath, Document, Edit};
use crate::plan::{ContainerPlan, PlannedMount};

/// The needs of a container's volumes, and the container's root file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerVolumes<'a> {
    /// The needs of each volume.
    pub(crate) needs: &'a [(TargetPath, VolumeProperties)],
    /// The container's root file system on the host.
    pub(crate) rootfs: &'a Path,
}

/// Gives a container's mounts another source each, and the options that keep the volume's attributes;
/// they stay where they are, with the options that they have. With `mount_mode = "hook"` they are the
/// hook's instead, and the container gets their devices.
pub(crate) fn container(
    document: &Document<'_>,
    plan: &ContainerPlan,
    known: ContainerVolumes<'_>,
    config: &Config,
    hooks: &Hooks,
) -> Result<Rewrite> {
    let mut rewrite = Rewrite::default();
    match plan.mount_mode() {
        MountMode::Bind => {
            rewrite.replace_sources(document, plan, known, config)?;
            rewrite.pass_devices(&asked_for(plan, known))?;
        }
        MountMode::Hook => {
            rewrite.take_out(document, plan)?;
            rewrite.pass_devices(known.needs)?;
        }
    }
    let volumes: Vec<TargetPath> = plan.volumes().into_iter().cloned().collect();
    rewrite.push(
        ArrayPath::CreateRuntimeHooks,
        &hooks.hook("publish", &volumes, timeouts::RECORD)?,
    )?;
    if plan.mount_mode() == MountMode::Hook {
        let mut mount = hooks.hook("mount", &[], timeouts::CONTAINER)?;
        let (cli, rootfs) = (utf8(&hooks.cli)?, utf8(known.rootfs)?);
        arguments(&mut mount, ["--cli", cli, "--rootfs", rootfs]);
        if let Some(label) = &plan.label {
            arguments(&mut mount, ["--mount-label", label]);
        }
        let needs = known.by_volume();
        for planned in &plan.mounts {
            let need = needs.get(&planned.found.volume);
            let only_reads = need.is_some_and(|need| need.read_only);
            let told = hook_mount(planned, only_reads);
            let told = serde_json::to_string(&told).context("hook's argument")?;
            arguments(&mut mount, ["--mount", &told]);
        }
        rewrite.push(ArrayPath::CreateContainerHooks, &mount)?;
    }
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release", &volumes, timeouts::RECORD)?,
    )?;
    Ok(rewrite)
}

/// The devices that the container is to have. One that it sees read-only it can't write to either.
fn asked_for(
    plan: &ContainerPlan,
    known: ContainerVolumes<'_>,
) -> Vec<(TargetPath, VolumeProperties)> {
    let wanted = known.needs.iter().filter(|(_, need)| need.device_node);
    let mounts = plan.by_volume();
    let wanted = wanted.map(|(volume, need)| {
        let mut mounts = mounts.get(volume).into_iter().flatten();
        let sees_read_only = mounts.all(|mount| mount.read_only);
        let read_only = need.read_only || sees_read_only;
        (volume.clone(), VolumeProperties { read_only, ..*need })
    });
    wanted.collect()
}

impl<'a> ContainerVolumes<'a> {
    fn by_volume(&self) -> BTreeMap<&'a TargetPath, &'a VolumeProperties> {
        let needs = self.needs.iter().map(|(volume, need)| (volume, need));
        needs.collect()
    }
}

/// Returns the options that a mount of a volume is given beside its own: those that keep the volume's
/// attributes, and `ro` where the pod only reads.
///
/// A bind with `rw` clears `ro` of what it binds (crun, and runc from 1.2 on). Of `rw` and `ro` the
/// last one counts, and the recursive `rrw` gives way to `rro` alone.
fn added_options(need: &VolumeProperties, planned: &PlannedMount) -> Vec<&'static str> {
    let mut added = options::missing_bind_options(need.attributes, &planned.options);
    if need.read_only && !planned.read_only {
        added.push("ro");
        if planned.options.iter().any(|option| option == "rrw") {
            added.push("rro");
        }
    }
    added
}

impl Rewrite {
    fn replace_sources(
        &mut self,
        document: &Document<'_>,
        plan: &ContainerPlan,
        known: ContainerVolumes<'_>,
        config: &Config,
    ) -> Result<()> {
        let mounts = document.mounts()?;
        let needs = known.by_volume();
        for planned in &plan.mounts {
            let attached = config.attach_directory().join(planned.index.to_string());
            let attached = utf8(&attached)?.to_owned();
            let mount = mounts.get(planned.index);
            let original = mount.and_then(|mount| mount.source_json);
            let need = needs.get(&planned.found.volume);
            let options = need.map(|need| added_options(need, planned));
            let options = options.unwrap_or_default();
            let all = mount.filter(|_| !options.is_empty());
            self.edits.push(Edit::ReplaceMountSource {
                index: planned.index,
                source: attached.clone(),
                options: options.into_iter().map(str::to_owned).collect(),
            });
            self.sources.push(ReplacedSource {
                attached,
                original: original.unwrap_or("null").to_owned(),
                mount: all.map(|mount| mount.json.to_owned()),
                destination: planned.destination.to_string_lossy().into_owned(),
            });
        }
        Ok(())
    }

    fn take_out(&mut self, document: &Document<'_>, plan: &ContainerPlan) -> Result<()> {
        let mounts = document.mounts()?;
        let planned = plan.mounts.iter().filter_map(|it| mounts.get(it.index));
        for mount in planned {
            self.edits.push(Edit::Remove {
                array: ArrayPath::Mounts,
                index: mount.index,
            });
            self.removed.push(RemovedMount {
                index: mount.index,
                json: mount.json.to_owned(),
            });
        }
        Ok(())
    }
}

fn hook_mount(planned: &PlannedMount, only_reads: bool) -> HookMount {
    HookMount {
        volume: planned.found.volume.as_path().to_owned(),
        subpath: planned.found.subpath.clone(),
        destination: planned.destination.clone(),
        options: planned.options.clone(),
        read_only: planned.read_only || only_reads,
    }
}

impl Rewrite {
    /// Adds the devices of volumes, each once.
    fn pass_devices<'n>(
        &mut self,
        needs: impl IntoIterator<Item = &'n (TargetPath, VolumeProperties)>,
    ) -> Result<()> {
        for passed in devices(needs) {
            self.push(ArrayPath::Devices, &passed.node()?)?;
            self.push(ArrayPath::DeviceRules, &passed.rule()?)?;
        }
        Ok(())
    }
}

/// A block device that the container gets.
struct PassedDevice {
    /// The short digest of the first volume on it.
    name: String,
    number: DeviceNumber,
    /// Whether it is read-only for every volume on it.
    read_only: bool,
}

/// Returns each device once, however many volumes are on it.
fn devices<'n>(
    needs: impl IntoIterator<Item = &'n (TargetPath, VolumeProperties)>,
) -> Vec<PassedDevice> {
    let mut devices: Vec<PassedDevice> = Vec::new();
    for (target, need) in needs {
        match devices.iter_mut().find(|it| it.number == need.device) {
            Some(passed) => passed.read_only &= need.read_only,
            None => devices.push(PassedDevice {
                name: target.digest().short(),
                number: need.device,
                read_only: need.read_only,
            }),
        }
    }
    devices
}

impl PassedDevice {
    fn node(&self) -> Result<LinuxDevice> {
        let node = LinuxDeviceBuilder::default()
            .path(format!("/dev/crust/{}", self.name))
            .typ(LinuxDeviceType::B)
            .major(i64::from(self.number.major()))
            .minor(i64::from(self.number.minor()))
            .file_mode(0o600_u32)
            .uid(0_u32)
            .gid(0_u32);
        Ok(node.build()?)
    }

    fn rule(&self) -> Result<LinuxDeviceCgroup> {
        let rule = LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(LinuxDeviceType::B)
            .major(i64::from(self.number.major()))
            .minor(i64::from(self.number.minor()))
            .access(if self.read_only { "r" } else { "rw" });
        Ok(rule.build()?)
    }
}
