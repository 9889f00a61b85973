//! Mounting a volume in a pod's sandbox, once.

use std::path::Path;

use crust_state::record::{User, UserKind, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, Volume};

use super::acquire::{NewUser, acquire, planned, unused};
use super::context::{Context, Locked};
use super::error::{Cause, VolumeError};
use super::new_mount::{self, NewMount};
use super::plan::MountPlan;
use super::superblock::MountedSuperblock;
use super::users::live_record;
use crate::sandbox::Sandbox;
use crust_blockfs::view::{self, DetachedMount, View};

/// The sandbox that a volume is mounted in.
#[derive(Debug, Clone, Copy)]
pub struct HostSandbox<'a> {
    /// The running sandbox.
    pub sandbox: &'a Sandbox,
    /// Its record.
    pub record: &'a SandboxRecord,
    /// The program that answers for the volume (KEP-2857: `runtime-cli`).
    pub cli: &'a Path,
    /// The SELinux label that the volume's files are to have, on a host that enforces.
    pub label: Option<&'a str>,
}

/// Makes sure that a volume is mounted in a sandbox: the file system is instantiated at most once
/// per sandbox, and nobody sees it before fsGroup was applied.
pub fn ensure(
    context: &Context<'_>,
    locked: &Locked,
    host: HostSandbox<'_>,
) -> Result<(), VolumeError> {
    let done = ensure_mounted(context, locked, host);
    done.map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

/// How a volume stands in a sandbox.
pub(super) struct MountStatus {
    pub(super) plan: MountPlan,
    /// Its record, with what counts of it.
    pub(super) before: VolumeRecord,
    /// It is mounted there.
    pub(super) mounted: bool,
    /// It is mounted there as it was staged, and the sandbox is on record: nothing is left to claim.
    pub(super) is_complete: bool,
}

impl MountStatus {
    /// Looks, and changes nothing.
    pub(super) fn of(
        config: &Config,
        volume: &Volume,
        sandbox: &Sandbox,
        label: Option<&str>,
    ) -> Result<Self, Cause> {
        let mut live = live_record(volume)?;
        let mut mounted = None;
        if let Some(record) = &mut live {
            mounted = sandbox.mounted(volume.digest(), record.device)?;
            if mounted.is_none() {
                // A create that was killed before it mounted left this: it vouches for no superblock.
                record.remove(UserKind::Sandbox, sandbox.id());
            }
        }
        let live = live.filter(|record| !record.users.is_empty());
        let is_on_record = live.is_some();
        let (mut plan, mut before) = planned(config, volume, live, label)?;
        if !is_on_record {
            mounted = sandbox.mounted(volume.digest(), plan.device.number())?;
            if let Some(there) = &mounted {
                // Its record was lost, which would have been compared.
                let shown = MountedSuperblock::of(there);
                plan = plan.or_labelled(shown.label())?;
                plan = plan.or_read_only(shown.is_read_only());
                shown.check(&plan.superblock, plan.read_only)?;
                before = unused(&plan);
            }
        }
        let mounted = mounted.is_some();
        // With another superblock than was staged the claim is what refuses it.
        let as_staged = mounted && before.superblock == plan.superblock;
        let is_complete = as_staged && before.user(UserKind::Sandbox, sandbox.id()).is_some();
        Ok(Self {
            plan,
            before,
            mounted,
            is_complete,
        })
    }
}

pub(super) fn ensure_mounted(
    context: &Context<'_>,
    locked: &Locked,
    host: HostSandbox<'_>,
) -> Result<(), Cause> {
    let volume = &locked.volume;
    let MountStatus {
        plan,
        mut before,
        mounted,
        is_complete,
    } = MountStatus::of(context.config, volume, host.sandbox, host.label)?;
    let pod_uid = &*host.record.pod_uid;
    if is_complete {
        // Attached means configured, whether or not that could be written down then.
        if !before.mark_prepared(pod_uid) {
            volume.write_record(&before)?;
        }
        return Ok(volume.publish_cli(host.cli)?);
    }
    let new = NewUser {
        user: sandbox_user(host.record),
        before: &before,
    };
    acquire(context, locked, plan, new, |plan, admission, record| {
        if mounted {
            record.mark_prepared(pod_uid);
            return Ok(());
        }
        let new = NewMount {
            volume,
            plan,
            pod_uid,
            admission,
        };
        let mount = new_mount::mount(context, new, record)?;
        host.sandbox
            .enter(|inside| inside.attach(volume.digest(), &mount))?;
        tracing::info!(
            volume = %volume.target(),
            device = %plan.device.number(),
            sandbox = host.sandbox.id(),
            "mounted in the sandbox"
        );
        Ok(())
    })?;
    Ok(volume.publish_cli(host.cli)?)
}

/// Containers' views of a volume that is mounted in a sandbox, which is looked at once for all of
/// them: a container may have thousands.
pub fn views<'v>(
    context: &Context<'_>,
    locked: &Locked,
    sandbox: &Sandbox,
    views: impl ExactSizeIterator<Item = View<'v>>,
) -> Result<Vec<DetachedMount>, VolumeError> {
    let volume = &locked.volume;
    let viewed = || -> Result<_, Cause> {
        let record = volume.record()?.ok_or(Cause::NotInUse)?;
        let there = sandbox.mounted(volume.digest(), record.device)?;
        let root = there.ok_or(Cause::NotInUse)?.root;
        let read_only = volume.info().read_only;
        let views = views.map(|view| View {
            read_only: view.read_only || read_only,
            ..view
        });
        Ok(sandbox.enter(|_| Ok(view::take_all(&root, views, context.deadline)?))?)
    };
    viewed().map_err(|cause| VolumeError::new(volume.target(), cause))
}

fn sandbox_user(record: &SandboxRecord) -> User {
    User {
        kind: UserKind::Sandbox,
        id: record.id.clone(),
        sandbox: record.id.clone(),
        pod_uid: record.pod_uid.clone(),
        process: record.process.clone(),
        mounts: Vec::new(),
        others: Vec::new(),
    }
}
