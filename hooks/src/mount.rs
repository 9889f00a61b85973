//! Mounts the volumes of a container in it, in its createContainer hook (`mount_mode = "hook"`).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use crust_blockfs::view::{DetachedMount, View};
use crust_state::TargetPath;
use crust_volume::rootfs::{self, Rootfs, Scratch};
use crust_volume::{Context, lock, mount_reserved};

use crate::arguments::Mount;
use crate::state::ContainerState;

/// Mounts each volume, and its views in their places, in the order of the config. This runs in the
/// container's mount namespace and device cgroup, where the host's tree is still at `/`.
pub(crate) fn run(context: &Context<'_>, container: &ContainerState, told: &Mount) -> Result<()> {
    let mut volumes: BTreeMap<TargetPath, Vec<usize>> = BTreeMap::new();
    for (index, mount) in told.mounts.iter().enumerate() {
        let indices = volumes.entry(TargetPath::new(&mount.volume)?);
        indices.or_default().push(index);
    }
    let all: Vec<String> = volumes.keys().map(TargetPath::volume_name).collect();
    let named = || format!("volume {}", all.join(", "));
    let mut rootfs = Rootfs::in_this_namespace(&told.rootfs).with_context(named)?;
    let scratch = Scratch::open(&context.config.attach_directory()).with_context(named)?;
    let hook = Hook {
        context,
        container,
        told,
        scratch: &scratch,
    };
    let mut views: BTreeMap<usize, DetachedMount> = BTreeMap::new();
    for (target, indices) in &volumes {
        let taken = hook.views(target, indices)?;
        views.extend(indices.iter().copied().zip(taken));
    }
    for (index, view) in &views {
        let mount = &told.mounts[*index];
        let attributes = rootfs::attributes(&mount.options).with_context(named)?;
        rootfs
            .mount(view, &mount.destination, attributes, context.deadline)
            .with_context(|| {
                let target = TargetPath::new(&mount.volume);
                target.map_or_else(|_| named(), |it| format!("volume {}", it.volume_name()))
            })?;
    }
    Ok(())
}

/// The hook of one container.
struct Hook<'a> {
    context: &'a Context<'a>,
    container: &'a ContainerState,
    told: &'a Mount,
    scratch: &'a Scratch,
}

impl Hook<'_> {
    /// Mounts a volume, and returns a view of it for each of the mounts with these indices.
    fn views(&self, target: &TargetPath, indices: &[usize]) -> Result<Vec<DetachedMount>> {
        let (context, told) = (self.context, self.told);
        let locked = lock(context, target)?;
        let label = told.label.as_deref();
        let volume = mount_reserved(context, &locked, &self.container.id, &told.cli, label)?;
        let mounts = indices.iter().map(|index| &told.mounts[*index]);
        let views = mounts.map(|mount| View {
            subpath: &mount.subpath,
            read_only: mount.read_only,
            ids: None,
        });
        self.scratch
            .views(&volume, views, context.deadline)
            .with_context(|| format!("volume {}", target.volume_name()))
    }
}
