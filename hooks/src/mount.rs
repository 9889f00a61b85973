//! createContainer of a container whose volumes are mounted in it (`mount_mode = "hook"`).

use anyhow::{Context as _, Result};
use crust_mount::rootfs::{self, Rootfs};
use crust_mount::view::View;
use crust_mount::volume::{Context, lock, mount_reserved};
use crust_state::TargetPath;
use crust_state::hooked::HookedMount;

use crate::arguments::Mount;
use crate::state::ContainerState;

/// Mounts each volume in its place. This runs in the container's mount namespace and device
/// cgroup, where the host's tree is still at `/`.
pub(crate) fn run(context: &Context<'_>, container: &ContainerState, told: &Mount) -> Result<()> {
    let rootfs = Rootfs::in_this_namespace(&told.rootfs)?;
    for mount in &told.mounts {
        let target = TargetPath::new(&mount.volume)?;
        place(context, container, told, &rootfs, &target, mount)?;
    }
    Ok(())
}

fn place(
    context: &Context<'_>,
    container: &ContainerState,
    told: &Mount,
    rootfs: &Rootfs,
    target: &TargetPath,
    mount: &HookedMount,
) -> Result<()> {
    let named = || format!("volume {}", target.volume_name());
    let attributes = rootfs::attributes(&mount.options).with_context(named)?;
    let locked = lock(context, target)?;
    let volume = mount_reserved(context, &locked, &container.id, mount.first, &told.cli)?;
    let view = View {
        subpath: &mount.subpath,
        read_only: mount.read_only,
        ids: None,
    };
    let scratch = context.config.attach_directory();
    rootfs
        .mount(&volume, view, &mount.destination, attributes, &scratch)
        .with_context(named)
}
