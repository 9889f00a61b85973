//! Mounts a volume in a pod's sandbox if it isn't mounted there yet, and opens containers' views of it.

use std::path::Path;

use crust_state::record::{User, UserKind, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, Volume};

use super::acquire::{NewUser, acquire, empty_record, plan_for_users};
use super::context::{Context, LockedVolume};
use super::error::{Cause, VolumeError};
use super::mount_holder::MountHolder;
use super::mount_source;
use super::new_mount::{self, NewMount};
use super::plan::MountPlan;
use super::superblock::MountedSuperblock;
use super::users::live_record;
use crate::sandbox::Sandbox;
use crust_blockfs::view::{self, DetachedMount, View};

/// A request to mount a volume in a sandbox.
#[derive(Debug, Clone, Copy)]
pub struct SandboxRequest<'a> {
    pub sandbox: &'a Sandbox,
    pub record: &'a SandboxRecord,
    /// The program that reports on the volume and resizes it (KEP-2857: `runtime-cli`).
    pub cli: &'a Path,
    /// The SELinux label for the volume's files; `None` if the host doesn't enforce a policy.
    pub label: Option<&'a str>,
}

/// Mounts a volume in a sandbox unless it is mounted there already.
///
/// The volume becomes visible in the sandbox only after fsGroup has been applied.
pub fn ensure_mounted(
    context: &Context<'_>,
    locked: &LockedVolume,
    request: SandboxRequest<'_>,
) -> Result<(), VolumeError> {
    let result = try_ensure_mounted(context, locked, request);
    result.map_err(|cause| VolumeError::new(locked.volume.target(), cause))
}

/// The state of a volume's mount in a sandbox.
pub(super) struct MountStatus {
    pub(super) plan: MountPlan,
    /// The volume's record with its live users.
    pub(super) before: VolumeRecord,
    pub(super) is_mounted: bool,
    /// The volume is mounted as it is staged, and the sandbox is a recorded user, so there is nothing to do.
    pub(super) is_complete: bool,
}

impl MountStatus {
    /// Reads the state without changing anything.
    pub(super) fn read(
        config: &Config,
        volume: &Volume,
        sandbox: &Sandbox,
        label: Option<&str>,
    ) -> Result<Self, Cause> {
        let mut live = live_record(volume)?;
        let mut mount = None;
        if let Some(record) = &mut live {
            mount = sandbox.find_mount(volume.digest(), &record.backing, &|mount| {
                record.has_superblock_of(mount)
            })?;
            if mount.is_none() {
                // A create was killed after it had recorded the sandbox and before it mounted the volume.
                record.remove(UserKind::Sandbox, sandbox.id());
            }
        }
        let live = live.filter(|record| !record.users.is_empty());
        let has_live_users = live.is_some();
        let (mut plan, mut before) = plan_for_users(config, volume, live, label)?;
        if !has_live_users {
            let backing = plan.source.backing();
            let may_be_mount = |mount: &_| backing.may_be_mounted_by(mount);
            mount = sandbox.find_mount(volume.digest(), &backing, &may_be_mount)?;
            if let Some(mount) = &mount {
                // The volume's record was lost: the mounted superblock is compared with the staged one instead.
                let mounted = MountedSuperblock::from_mount(mount);
                plan = plan.with_mounted_label(mounted.label())?;
                plan = plan.with_mounted_read_only(mounted.is_read_only());
                let shown_options = plan.source.shown_options();
                mounted.check(&plan.superblock, plan.read_only, shown_options)?;
                before = empty_record(&plan);
                before.add_superblock(mounted.number());
            }
        }
        let is_mounted = mount.is_some();
        // `take_ownership` refuses a superblock other than the staged one.
        let is_mounted_as_staged = is_mounted && before.superblock == plan.superblock;
        let is_complete =
            is_mounted_as_staged && before.user(UserKind::Sandbox, sandbox.id()).is_some();
        Ok(Self {
            plan,
            before,
            is_mounted,
            is_complete,
        })
    }
}

pub(super) fn try_ensure_mounted(
    context: &Context<'_>,
    locked: &LockedVolume,
    request: SandboxRequest<'_>,
) -> Result<(), Cause> {
    let volume = &locked.volume;
    let MountStatus {
        plan,
        mut before,
        is_mounted,
        is_complete,
    } = MountStatus::read(context.config, volume, request.sandbox, request.label)?;
    let pod_uid = &*request.record.pod_uid;
    if is_complete {
        // An attached volume has its fsGroup. Writing that to the record may have failed after the mount.
        if !before.mark_prepared(pod_uid) {
            volume.write_record(&before)?;
        }
        return Ok(volume.write_runtime_cli(request.cli)?);
    }
    let new = NewUser {
        user: sandbox_user(request.record),
        before: &before,
    };
    acquire(context, locked, plan, new, |plan, access, record| {
        if is_mounted {
            record.mark_prepared(pod_uid);
            return Ok(());
        }
        let new = NewMount {
            volume,
            plan,
            pod_uid,
            access,
            sandbox: Some(request.sandbox),
            holder: Some(MountHolder {
                cli: request.cli,
                target: volume.target(),
                sandbox_id: request.sandbox.id(),
            }),
        };
        let mount = new_mount::mount(context, new, record)?;
        request
            .sandbox
            .enter(|namespace| namespace.attach(volume.digest(), &mount))?;
        tracing::info!(
            volume = %volume.target(),
            device = %plan.source.backing(),
            sandbox = request.sandbox.id(),
            "mounted in the sandbox"
        );
        Ok(())
    })?;
    Ok(volume.write_runtime_cli(request.cli)?)
}

/// Opens views of a volume that is mounted in a sandbox.
///
/// Looks the mount up once: a container may have thousands of views.
pub fn open_views<'v>(
    context: &Context<'_>,
    locked: &LockedVolume,
    sandbox: &Sandbox,
    views: impl ExactSizeIterator<Item = View<'v>>,
) -> Result<Vec<DetachedMount>, VolumeError> {
    let volume = &locked.volume;
    let opened = || -> Result<_, Cause> {
        let record = volume.record()?.ok_or(Cause::NotInUse)?;
        let mount = sandbox.find_mount(volume.digest(), &record.backing, &|mount| {
            record.has_superblock_of(mount)
        })?;
        let root = mount.ok_or(Cause::NotInUse)?.root;
        mount_source::open_mounted(&record.backing)?.check_answers(&root)?;
        let read_only = volume.info().read_only;
        let views = views.map(|view| View {
            read_only: view.read_only || read_only,
            ..view
        });
        Ok(sandbox.enter(|_| Ok(view::create_all(&root, views, context.deadline)?))?)
    };
    opened().map_err(|cause| VolumeError::new(volume.target(), cause))
}

fn sandbox_user(record: &SandboxRecord) -> User {
    User {
        kind: UserKind::Sandbox,
        id: record.id.clone(),
        sandbox: record.id.clone(),
        pod_uid: record.pod_uid.clone(),
        process: record.process.clone(),
        mounts: Vec::new(),
        other_mounts: Vec::new(),
    }
}
