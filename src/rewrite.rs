//! From a plan to the places of a config that change, and back.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow};
use crust_mount::sandbox::CRUST;
use crust_mount::volume::Need;
use crust_state::bundle::{AddedElement, BundleRecord, ReplacedSource};
use crust_state::record::Version;
use crust_state::{Config, DeviceNumber, Digest, TargetPath};
use oci_spec::runtime::{
    Hook, HookBuilder, LinuxDevice, LinuxDeviceBuilder, LinuxDeviceCgroup,
    LinuxDeviceCgroupBuilder, LinuxDeviceType, MountBuilder,
};
use serde::Serialize;

use crate::oci::{ArrayPath, Document, Edit, Mount};
use crate::plan::{MemberPlan, SandboxPlan};

/// The program that the hooks run, and what it is told.
#[derive(Debug)]
pub(crate) struct Hooks {
    /// `crust-mount-hook`.
    pub(crate) program: PathBuf,
    /// What answers for volumes in use (KEP-2857: `runtime-cli`).
    pub(crate) cli: PathBuf,
    /// The configuration that was read.
    pub(crate) config: Option<PathBuf>,
}

/// Changes to a config, and what it takes to undo them.
#[derive(Debug, Default)]
pub(crate) struct Rewrite {
    edits: Vec<Edit>,
    sources: Vec<ReplacedSource>,
    added: Vec<AddedElement>,
}

impl Rewrite {
    fn push(&mut self, array: ArrayPath, element: &impl Serialize) -> Result<()> {
        let value = serde_json::to_value(element).context("config.json: new element")?;
        self.edits.push(Edit::Push {
            array,
            json: value.to_string(),
        });
        self.added.push(AddedElement {
            array: array.name().to_owned(),
            element: value,
        });
        Ok(())
    }

    /// The new text, and the record of how the old one was. `config` is the file's real path.
    pub(crate) fn apply(
        self,
        document: &Document<'_>,
        config: PathBuf,
    ) -> Result<(Vec<u8>, BundleRecord)> {
        let text = document.apply(&self.edits)?;
        let record = BundleRecord {
            version: Version,
            config,
            written: Digest::of(&text),
            sources: self.sources,
            added: self.added,
        };
        Ok((text, record))
    }
}

/// A sandbox gets the tmpfs that volumes are mounted on, their devices, and the hook that mounts.
///
/// `rootfs` is its root file system on the host.
pub(crate) fn sandbox(
    rootfs: &Path,
    plan: &SandboxPlan,
    needs: &[(TargetPath, Need)],
    hooks: &Hooks,
) -> Result<Rewrite> {
    let mut rewrite = Rewrite::default();
    let options = ["nosuid", "nodev", "noexec", "mode=0700", "size=64k"].map(str::to_owned);
    let crust = MountBuilder::default()
        .destination(CRUST)
        .typ("tmpfs")
        .source("runcrust")
        .options(options)
        .build()?;
    rewrite.push(ArrayPath::Mounts, &crust)?;
    for passed in devices(needs) {
        rewrite.push(ArrayPath::Devices, &passed.node()?)?;
        rewrite.push(ArrayPath::DeviceRules, &passed.rule()?)?;
    }
    // Above the hook's own limit, below kubelet's for RunPodSandbox.
    let mut mount = hooks.hook("sandbox", &plan.volumes, 225)?;
    if let Some(arguments) = mount.args_mut() {
        let (cli, rootfs) = (utf8(&hooks.cli)?, utf8(rootfs)?);
        let told = ["--pod-uid", &plan.pod_uid, "--cli", cli, "--rootfs", rootfs];
        arguments.extend(told.map(str::to_owned));
    }
    rewrite.push(ArrayPath::CreateRuntimeHooks, &mount)?;
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release-sandbox", &[], 30)?,
    )?;
    Ok(rewrite)
}

/// A device that a sandbox gets.
struct Passed {
    /// Of the first volume on it.
    name: String,
    number: DeviceNumber,
    /// For every volume on it.
    read_only: bool,
}

/// One entry a device, however many volumes are on it.
fn devices(needs: &[(TargetPath, Need)]) -> Vec<Passed> {
    let mut devices: Vec<Passed> = Vec::new();
    for (target, need) in needs {
        match devices.iter_mut().find(|it| it.number == need.device) {
            Some(passed) => passed.read_only &= need.read_only,
            None => devices.push(Passed {
                name: target.digest().short(),
                number: need.device,
                read_only: need.read_only,
            }),
        }
    }
    devices
}

impl Passed {
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

/// A container's mounts get another source each, and keep their place and options.
pub(crate) fn member(
    document: &Document<'_>,
    plan: &MemberPlan,
    config: &Config,
    hooks: &Hooks,
) -> Result<Rewrite> {
    let mut rewrite = Rewrite::default();
    let mounts = document.mounts()?;
    for planned in &plan.mounts {
        let attached = config.attach_directory().join(planned.index.to_string());
        let attached = utf8(&attached)?.to_owned();
        let original = mounts
            .get(planned.index)
            .and_then(|mount| mount.source_json);
        rewrite.edits.push(Edit::ReplaceMountSource {
            index: planned.index,
            source: attached.clone(),
        });
        rewrite.sources.push(ReplacedSource {
            attached,
            original: original.unwrap_or("null").to_owned(),
            destination: planned.destination.to_string_lossy().into_owned(),
        });
    }
    let mut volumes: Vec<TargetPath> = plan
        .mounts
        .iter()
        .map(|mount| mount.found.volume.clone())
        .collect();
    volumes.sort();
    volumes.dedup();
    rewrite.push(
        ArrayPath::CreateRuntimeHooks,
        &hooks.hook("publish", &volumes, 30)?,
    )?;
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release", &volumes, 30)?,
    )?;
    Ok(rewrite)
}

impl Hooks {
    fn hook(&self, verb: &str, volumes: &[TargetPath], timeout: i64) -> Result<Hook> {
        let mut arguments = vec!["crust-mount-hook".to_owned(), verb.to_owned()];
        if let Some(config) = &self.config {
            arguments.extend(["--config", utf8(config)?].map(str::to_owned));
        }
        for volume in volumes {
            arguments.extend(["--volume", utf8(volume.as_path())?].map(str::to_owned));
        }
        let hook = HookBuilder::default()
            .path(&self.program)
            .args(arguments)
            .timeout(timeout);
        Ok(hook.build()?)
    }
}

/// A path as a config can hold it: JSON strings are UTF-8.
fn utf8(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} isn't UTF-8", path.display()))
}

/// Whether a config was rewritten before: its bundle is created again.
pub(crate) fn is_rewritten(mounts: &[Mount<'_>], is_sandbox: bool, config: &Config) -> bool {
    let attach = config.attach_directory();
    mounts.iter().any(|mount| {
        mount
            .source
            .as_deref()
            .is_some_and(|source| Path::new(source).starts_with(&attach))
            || (is_sandbox && mount.destination == CRUST)
    })
}

/// The edits that take a rewrite back.
pub(crate) fn undo(
    document: &Document<'_>,
    record: &BundleRecord,
    config: &Config,
) -> Result<Vec<Edit>> {
    let mut edits = Vec::new();
    for mount in document.mounts()? {
        let Some(source) = mount.source.as_deref() else {
            continue;
        };
        if !Path::new(source).starts_with(config.attach_directory()) {
            continue;
        }
        let replaced = record.sources.iter().find(|replaced| {
            replaced.attached == source && replaced.destination == mount.destination
        });
        let replaced = replaced.ok_or_else(|| unknown_source(source, &mount.destination))?;
        let json = replaced.original.clone();
        edits.push(Edit::ReplaceMountSourceJson {
            index: mount.index,
            json,
        });
    }
    for array in ArrayPath::ALL {
        let mut added: Vec<&serde_json::Value> = record
            .added
            .iter()
            .filter(|added| added.array == array.name())
            .map(|added| &added.element)
            .collect();
        for (index, element) in document.array(array)?.iter().enumerate() {
            let Ok(value) = serde_json::from_str::<serde_json::Value>(element) else {
                continue;
            };
            if let Some(at) = added.iter().position(|added| **added == value) {
                added.swap_remove(at);
                edits.push(Edit::Remove { array, index });
            }
        }
    }
    Ok(edits)
}

/// A mount that names the attach directory without a record of what stood there before.
pub(crate) fn unknown_source(source: &str, destination: &str) -> anyhow::Error {
    anyhow!(
        "mount {destination}: {source} was put there by an earlier create of this bundle, of which \
         no record is left; hint: write the bundle's config.json anew"
    )
}

#[cfg(test)]
mod tests;
