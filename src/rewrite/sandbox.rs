//! What is added to a sandbox's config.

use std::path::Path;

use anyhow::Result;
use crust_mount::sandbox::CRUST;
use crust_mount::volume::Need;
use crust_state::{TargetPath, limits};
use oci_spec::runtime::MountBuilder;

use super::build::{Hooks, Rewrite, arguments, utf8};
use crate::oci::ArrayPath;
use crate::plan::SandboxPlan;

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
    if plan.devices {
        rewrite.pass_devices(needs)?;
    }
    let mut mount = hooks.hook("sandbox", &plan.volumes, limits::SANDBOX)?;
    let (cli, rootfs) = (utf8(&hooks.cli)?, utf8(rootfs)?);
    let told = ["--pod-uid", &plan.pod_uid, "--cli", cli, "--rootfs", rootfs];
    arguments(&mut mount, told);
    if let Some(label) = &plan.label {
        arguments(&mut mount, ["--mount-label", label]);
    }
    rewrite.push(ArrayPath::CreateRuntimeHooks, &mount)?;
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release-sandbox", &[], limits::RECORD)?,
    )?;
    Ok(rewrite)
}
