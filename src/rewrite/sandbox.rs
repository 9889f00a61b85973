//! Rewrites the config of a sandbox: adds the tmpfs for its volumes, and the hooks.

use std::path::Path;

use anyhow::Result;
use crust_state::timeouts;
use oci_spec::runtime::MountBuilder;

use super::{Hooks, Rewrite, add_arguments, utf8};
use crate::oci::ArrayPath;
use crate::plan::SandboxPlan;

/// Adds the tmpfs that volumes are mounted on, and the hooks that mount and release them. `rootfs` is the path of the
/// sandbox's root file system on the host.
///
/// A sandbox gets no device node and no cgroup rule. The hook runs in the host's context and needs neither. The pod's
/// containers (`shareProcessNamespace`) and any pod with `hostPID` can reach everything in the sandbox, and a rule
/// outlives its volume.
pub(crate) fn sandbox(rootfs: &Path, plan: &SandboxPlan, hooks: &Hooks) -> Result<Rewrite> {
    let mut rewrite = Rewrite::default();
    let options = ["nosuid", "nodev", "noexec", "mode=0700", "size=64k"].map(str::to_owned);
    let crust = MountBuilder::default()
        .destination(plan.directory)
        .typ("tmpfs")
        .source("runcrust")
        .options(options)
        .build()?;
    rewrite.push(ArrayPath::Mounts, &crust)?;
    let mut mount = hooks.hook("sandbox", &plan.volumes, timeouts::SANDBOX)?;
    let (cli, rootfs) = (utf8(&hooks.cli)?, utf8(rootfs)?);
    let arguments = ["--pod-uid", &plan.pod_uid, "--cli", cli, "--rootfs", rootfs];
    add_arguments(&mut mount, arguments);
    if let Some(label) = &plan.label {
        add_arguments(&mut mount, ["--mount-label", label]);
    }
    rewrite.push(ArrayPath::CreateRuntimeHooks, &mount)?;
    rewrite.push(
        ArrayPath::PoststopHooks,
        &hooks.hook("release-sandbox", &[], timeouts::RECORD)?,
    )?;
    Ok(rewrite)
}
