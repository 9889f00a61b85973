//! Mounting a volume in a pod's sandbox, once.

use std::path::Path;

use crust_state::lock::LockName;
use crust_state::ownership::Admission;
use crust_state::record::{User, UserKind, Version, VolumeRecord};
use crust_state::{Process, sandbox::SandboxRecord};

use super::error::{Cause, VolumeError};
use super::owners::{self, Claimed};
use super::plan::MountPlan;
use super::{Context, Locked};
use crate::attach::DetachedMount;
use crate::filesystem::{self, Request};
use crate::fsgroup;
use crate::sandbox::{Sandbox, View};

/// The sandbox that a volume is mounted in.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    /// The running sandbox.
    pub sandbox: &'a Sandbox,
    /// Its record.
    pub record: &'a SandboxRecord,
    /// The program that answers for the volume (KEP-2857: `runtime-cli`).
    pub cli: &'a Path,
}

/// Makes sure that a volume is mounted in a sandbox: the file system is instantiated at most once
/// per sandbox, and nobody sees it before fsGroup was applied.
pub fn ensure(context: &Context<'_>, locked: &Locked, host: Host<'_>) -> Result<(), VolumeError> {
    let done = ensure_mounted(context, locked, host);
    done.map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

fn ensure_mounted(context: &Context<'_>, locked: &Locked, host: Host<'_>) -> Result<(), Cause> {
    let volume = &locked.volume;
    let plan = MountPlan::new(context.config, volume.info())?;
    let device = plan.device.number();
    let mut before = volume.record()?.unwrap_or_else(|| unused(&plan));
    before.forget_the_dead(Process::is_alive);
    let mounted = host
        .sandbox
        .enter(|inside| Ok(inside.mounted(volume.digest(), device)?.is_some()))?;
    if !mounted {
        // A create that was killed before it mounted left this: it vouches for no superblock.
        before.remove(UserKind::Sandbox, host.sandbox.id());
    }
    if before.users.is_empty() {
        before = unused(&plan);
    }
    // With another superblock than was staged the claim is what refuses it.
    let as_staged = mounted && before.superblock == plan.superblock;
    if as_staged && before.user(UserKind::Sandbox, host.sandbox.id()).is_some() {
        return Ok(volume.publish_cli(host.cli)?);
    }
    // Held while the device is read, which may take long: it is this device's lock alone.
    let _device = context
        .state
        .lock(LockName::Device(device), context.deadline)?;
    let (target, pod_uid) = (volume.target(), &host.record.pod_uid);
    let mut record = before.clone();
    record.add(sandbox_user(host.record));
    let claimed = owners::claim(context, target, &plan, pod_uid, &before, || {
        Ok(volume.write_record(&record)?)
    })?;
    if !mounted && let Err(cause) = mount(context, locked, host, &plan, &claimed, &record) {
        // What the failed try wrote goes; the cause is what counts.
        let undone = volume.write_record(&before);
        if claimed.newly && undone.is_ok() {
            let _ = owners::disown(context, target, device);
        }
        return Err(cause);
    }
    if !record.prepared_for.contains(pod_uid) {
        record.prepared_for.push(pod_uid.clone());
    }
    volume.write_record(&record)?;
    Ok(volume.publish_cli(host.cli)?)
}

fn mount(
    context: &Context<'_>,
    locked: &Locked,
    host: Host<'_>,
    plan: &MountPlan,
    claimed: &Claimed,
    record: &VolumeRecord,
) -> Result<(), Cause> {
    let volume = &locked.volume;
    let exclusive = claimed.admission == Admission::First;
    if exclusive && plan.device.in_use_exclusively()? {
        return Err(Cause::DeviceBusy {
            device: plan.device.path().display().to_string(),
        });
    }
    let mount = filesystem::instantiate(&Request {
        device: &plan.device,
        fstype: &plan.superblock.fstype,
        options: &plan.options,
        exclusive,
    })?;
    let fs_group = plan
        .fs_group
        .filter(|_| !record.prepared_for.contains(&host.record.pod_uid));
    if let Some((group, policy)) = fs_group {
        let name = volume.target().volume_name();
        let outcome = fsgroup::apply(&mount, group, policy, context.deadline, &mut |progress| {
            tracing::info!(volume = name, group, %progress, "fsGroup is being applied");
        })?;
        tracing::info!(volume = name, group, ?outcome, "fsGroup was applied");
    }
    host.sandbox
        .enter(|inside| inside.attach(volume.digest(), &mount))?;
    tracing::info!(
        volume = %volume.target(),
        device = %plan.device.number(),
        sandbox = host.sandbox.id(),
        "mounted in the sandbox"
    );
    Ok(())
}

/// A container's view of a volume that is mounted in a sandbox.
pub fn view(
    locked: &Locked,
    sandbox: &Sandbox,
    view: View<'_>,
) -> Result<DetachedMount, VolumeError> {
    let volume = &locked.volume;
    let viewed = || -> Result<_, Cause> {
        let record = volume.record()?.ok_or(Cause::NotInUse)?;
        let view = sandbox.enter(|inside| {
            let root = inside.mounted(volume.digest(), record.device)?;
            root.map(|root| inside.view(&root, view)).transpose()
        })?;
        view.ok_or(Cause::NotInUse)
    };
    viewed().map_err(|cause| VolumeError::new(volume.target(), cause))
}

fn unused(plan: &MountPlan) -> VolumeRecord {
    VolumeRecord {
        version: Version,
        device: plan.device.number(),
        superblock: plan.superblock.clone(),
        exclusive: plan.exclusive,
        prepared_for: Vec::new(),
        users: Vec::new(),
    }
}

fn sandbox_user(record: &SandboxRecord) -> User {
    User {
        kind: UserKind::Sandbox,
        id: record.id.clone(),
        sandbox: record.id.clone(),
        pod_uid: record.pod_uid.clone(),
        process: record.process.clone(),
        mounts: Vec::new(),
    }
}
