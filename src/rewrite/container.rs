//! What changes in the config of a container with volumes.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result};
use crust_mount::volume::Need;
use crust_state::bundle::{RemovedMount, ReplacedOptions, ReplacedSource};
use crust_state::config::MountMode;
use crust_state::hooked::HookedMount;
use crust_state::{Config, TargetPath, limits};

use super::build::{Hooks, Rewrite, arguments, utf8};
use crate::oci::{ArrayPath, Document, Edit};
use crate::plan::{ContainerPlan, PlannedMount};

/// What is known of a container's volumes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// Of each volume.
    pub(crate) needs: &'a [(TargetPath, Need)],
    /// The container's root file system on the host.
    pub(crate) rootfs: &'a Path,
}

/// A container's mounts get another source each, and keep their place and options; or they are the
/// hook's, and the container gets their devices.
pub(crate) fn container(
    document: &Document<'_>,
    plan: &ContainerPlan,
    known: Known<'_>,
    config: &Config,
    hooks: &Hooks,
) -> Result<Rewrite> {
    let mut rewrite = Rewrite::default();
    match plan.way {
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
        &hooks.hook("publish", &volumes, limits::RECORD)?,
    )?;
    if plan.way == MountMode::Hook {
        let mut mount = hooks.hook("mount", &[], limits::CONTAINER)?;
        let (cli, rootfs) = (utf8(&hooks.cli)?, utf8(known.rootfs)?);
        arguments(&mut mount, ["--cli", cli, "--rootfs", rootfs]);
        if let Some(label) = &plan.label {
            arguments(&mut mount, ["--mount-label", label]);
        }
        let readers = known.readers();
        for planned in &plan.mounts {
            let is_readers = readers.contains(&planned.found.volume);
            let told =
                serde_json::to_string(&hooked(planned, is_readers)).context("hook's argument")?;
            arguments(&mut mount, ["--mount", &told]);
        }
        rewrite.push(ArrayPath::CreateContainerHooks, &mount)?;
    }
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release", &volumes, limits::RECORD)?,
    )?;
    Ok(rewrite)
}

/// The devices that the container is to have. One that it sees read-only it can't write to either.
fn asked_for(plan: &ContainerPlan, known: Known<'_>) -> Vec<(TargetPath, Need)> {
    let wanted = known.needs.iter().filter(|(_, need)| need.device_node);
    let mounts = plan.by_volume();
    let wanted = wanted.map(|(volume, need)| {
        let mut mounts = mounts.get(volume).into_iter().flatten();
        let sees_read_only = mounts.all(|mount| mount.read_only);
        let read_only = need.read_only || sees_read_only;
        (volume.clone(), Need { read_only, ..*need })
    });
    wanted.collect()
}

impl Known<'_> {
    /// The volumes that the pod only reads.
    fn readers(&self) -> BTreeSet<&TargetPath> {
        let readers = self.needs.iter().filter(|(_, need)| need.read_only);
        readers.map(|(volume, _)| volume).collect()
    }
}

/// A mount's options, read-only: of a mount with `rw` crun, and runc from 1.2 on, clear what its source
/// has.
fn read_only(options: &[String]) -> Vec<&str> {
    let options = options.iter().map(String::as_str);
    let others = options.filter(|option| !matches!(*option, "rw" | "rrw"));
    others.chain(["ro"]).collect()
}

impl Rewrite {
    fn replace_sources(
        &mut self,
        document: &Document<'_>,
        plan: &ContainerPlan,
        known: Known<'_>,
        config: &Config,
    ) -> Result<()> {
        let mounts = document.mounts()?;
        let readers = known.readers();
        for planned in &plan.mounts {
            let attached = config.attach_directory().join(planned.index.to_string());
            let attached = utf8(&attached)?.to_owned();
            let mount = mounts.get(planned.index);
            let original = mount.and_then(|mount| mount.source_json);
            let is_readers = readers.contains(&planned.found.volume);
            let mut options = None;
            if is_readers && !planned.read_only {
                let original = mount.and_then(|mount| mount.options_json);
                let original = original.map(str::to_owned);
                options = Some(ReplacedOptions { original });
                let json = serde_json::to_string(&read_only(&planned.options))?;
                let (index, json) = (planned.index, Some(json));
                self.edits
                    .push(Edit::ReplaceMountOptionsJson { index, json });
            }
            self.edits.push(Edit::ReplaceMountSource {
                index: planned.index,
                source: attached.clone(),
            });
            self.sources.push(ReplacedSource {
                attached,
                original: original.unwrap_or("null").to_owned(),
                destination: planned.destination.to_string_lossy().into_owned(),
                options,
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

fn hooked(planned: &PlannedMount, is_readers: bool) -> HookedMount {
    let options = if is_readers {
        let options = read_only(&planned.options).into_iter();
        options.map(str::to_owned).collect()
    } else {
        planned.options.clone()
    };
    HookedMount {
        volume: planned.found.volume.as_path().to_owned(),
        subpath: planned.found.subpath.clone(),
        destination: planned.destination.clone(),
        options,
        read_only: planned.read_only || is_readers,
    }
}
