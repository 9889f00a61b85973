//! Rewrites the config of a container with volumes: its mounts, its block devices and its hooks.

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

use super::{Hooks, Rewrite, add_arguments, utf8};
use crate::oci::{ArrayPath, Document, Edit};
use crate::plan::{ContainerPlan, PlannedMount};

/// The properties of a container's volumes, and the container's root file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerVolumes<'a> {
    pub(crate) properties: &'a [(TargetPath, VolumeProperties)],
    /// Path of the container's root file system on the host.
    pub(crate) rootfs: &'a Path,
}

/// Plans the rewrite of a container's config. Each mount of a volume gets another source and the options that keep the
/// volume's attributes, but keeps its index and its own options. With `mount_mode = "hook"` the mounts of volumes are
/// removed from the config, a hook mounts the volumes, and the container gets the volumes' devices.
pub(crate) fn container(
    document: &Document<'_>,
    plan: &ContainerPlan,
    volumes: ContainerVolumes<'_>,
    config: &Config,
    hooks: &Hooks,
) -> Result<Rewrite> {
    let mut rewrite = Rewrite::default();
    match plan.mount_mode() {
        MountMode::Bind => {
            rewrite.replace_sources(document, plan, volumes, config)?;
            rewrite.pass_devices(&requested_devices(plan, volumes))?;
        }
        MountMode::Hook => {
            rewrite.remove_mounts(document, plan)?;
            rewrite.pass_devices(volumes.properties)?;
        }
    }
    let targets: Vec<TargetPath> = plan.volumes().into_iter().cloned().collect();
    rewrite.push(
        ArrayPath::CreateRuntimeHooks,
        &hooks.hook("publish", &targets, timeouts::RECORD)?,
    )?;
    if plan.mount_mode() == MountMode::Hook {
        let mut mount = hooks.hook("mount", &[], timeouts::CONTAINER)?;
        let (cli, rootfs) = (utf8(&hooks.cli)?, utf8(volumes.rootfs)?);
        add_arguments(&mut mount, ["--cli", cli, "--rootfs", rootfs]);
        if let Some(label) = &plan.label {
            add_arguments(&mut mount, ["--mount-label", label]);
        }
        let properties = volumes.by_volume();
        for planned in &plan.mounts {
            let properties = properties.get(&planned.found.volume);
            let is_volume_read_only = properties.is_some_and(|properties| properties.read_only);
            let argument = hook_mount(planned, is_volume_read_only);
            let argument =
                serde_json::to_string(&argument).context("serialise the hook's --mount")?;
            add_arguments(&mut mount, ["--mount", &argument]);
        }
        rewrite.push(ArrayPath::CreateContainerHooks, &mount)?;
    }
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release", &targets, timeouts::RECORD)?,
    )?;
    Ok(rewrite)
}

/// Returns the volumes that the container also gets as raw devices. A device is read-only if all the container's mounts
/// of the volume are.
fn requested_devices(
    plan: &ContainerPlan,
    volumes: ContainerVolumes<'_>,
) -> Vec<(TargetPath, VolumeProperties)> {
    let requested = volumes
        .properties
        .iter()
        .filter(|(_, properties)| properties.device_node);
    let mounts = plan.by_volume();
    let requested = requested.map(|(volume, properties)| {
        let mut mounts = mounts.get(volume).into_iter().flatten();
        let are_mounts_read_only = mounts.all(|mount| mount.read_only);
        let read_only = properties.read_only || are_mounts_read_only;
        (
            volume.clone(),
            VolumeProperties {
                read_only,
                ..*properties
            },
        )
    });
    requested.collect()
}

impl<'a> ContainerVolumes<'a> {
    fn by_volume(&self) -> BTreeMap<&'a TargetPath, &'a VolumeProperties> {
        let properties = self
            .properties
            .iter()
            .map(|(volume, properties)| (volume, properties));
        properties.collect()
    }
}

/// Returns the options that are added to a mount of a volume: those that keep the volume's attributes, and `ro` if the
/// pod may only read the volume.
///
/// A bind with `rw` clears `ro` of its source (crun, and runc since 1.2). The last of `rw` and `ro` counts, and only
/// `rro` overrides the recursive `rrw`.
fn added_options(properties: &VolumeProperties, planned: &PlannedMount) -> Vec<&'static str> {
    let mut added = options::missing_bind_options(properties.attributes, &planned.options);
    if properties.read_only && !planned.read_only {
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
        volumes: ContainerVolumes<'_>,
        config: &Config,
    ) -> Result<()> {
        let mounts = document.mounts()?;
        let properties = volumes.by_volume();
        for planned in &plan.mounts {
            let attached = config.attach_directory().join(planned.index.to_string());
            let attached = utf8(&attached)?.to_owned();
            let mount = mounts.get(planned.index);
            let original = mount.and_then(|mount| mount.source_json);
            let properties = properties.get(&planned.found.volume);
            let options = properties.map(|properties| added_options(properties, planned));
            let options = options.unwrap_or_default();
            let changed_mount = mount.filter(|_| !options.is_empty());
            self.edits.push(Edit::ReplaceMountSource {
                index: planned.index,
                source: attached.clone(),
                options: options.into_iter().map(str::to_owned).collect(),
            });
            self.sources.push(ReplacedSource {
                attached,
                original: original.unwrap_or("null").to_owned(),
                mount: changed_mount.map(|mount| mount.json.to_owned()),
                destination: planned.destination.to_string_lossy().into_owned(),
            });
        }
        Ok(())
    }

    fn remove_mounts(&mut self, document: &Document<'_>, plan: &ContainerPlan) -> Result<()> {
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

fn hook_mount(planned: &PlannedMount, is_volume_read_only: bool) -> HookMount {
    HookMount {
        volume: planned.found.volume.as_path().to_owned(),
        subpath: planned.found.subpath.clone(),
        destination: planned.destination.clone(),
        options: planned.options.clone(),
        read_only: planned.read_only || is_volume_read_only,
    }
}

impl Rewrite {
    /// Adds the device nodes and cgroup rules of volumes, once for each device.
    fn pass_devices<'n>(
        &mut self,
        volumes: impl IntoIterator<Item = &'n (TargetPath, VolumeProperties)>,
    ) -> Result<()> {
        for passed in devices(volumes) {
            self.push(ArrayPath::Devices, &passed.node()?)?;
            self.push(ArrayPath::DeviceRules, &passed.rule()?)?;
        }
        Ok(())
    }
}

/// A block device that the container gets.
struct PassedDevice {
    /// Short digest of the first volume on the device.
    name: String,
    number: DeviceNumber,
    /// Whether all volumes on the device are read-only.
    read_only: bool,
}

/// Returns the devices of volumes. A device that several volumes are on is returned once.
fn devices<'n>(
    volumes: impl IntoIterator<Item = &'n (TargetPath, VolumeProperties)>,
) -> Vec<PassedDevice> {
    let mut devices: Vec<PassedDevice> = Vec::new();
    for (target, properties) in volumes {
        let Some(number) = properties.device else {
            continue;
        };
        match devices.iter_mut().find(|it| it.number == number) {
            Some(passed) => passed.read_only &= properties.read_only,
            None => devices.push(PassedDevice {
                name: target.digest().short(),
                number,
                read_only: properties.read_only,
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
