//! What a volume's mount would come to, by what is staged and on record now: for whoever explains a
//! create. Nothing is locked, written, mounted or opened for itself.

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::ownership::Admission;
use crust_state::record::{Superblock, User, VolumeRecord};
use crust_state::{MountInfo, TargetPath, Volume};

use super::acquire::{live_record, planned};
use super::context::Context;
use super::disk;
use super::ensure::Standing;
use super::error::{Cause, VolumeError};
use super::owners;
use super::plan::{MountPlan, Need, read_staged};
use crate::sandbox::Sandbox;
use crust_blockfs::mountinfo::Table;
use crust_blockfs::origin::{is_on, may_be_on};

/// What a staged volume that can be mounted would be for a pod.
#[derive(Debug)]
pub struct Outlook {
    /// What was staged.
    pub info: MountInfo,
    /// It was staged for Kata Containers.
    pub is_katas: bool,
    /// What it takes.
    pub need: Need,
    /// What its superblock is made with.
    pub superblock: Superblock,
    /// The group that its files get, where they get one.
    pub fs_group: Option<(u32, FsGroupChangePolicy)>,
    /// Who lives and has it.
    pub users: Vec<User>,
    /// How the pod comes to have it, or why it can't.
    pub access: Result<Access, VolumeError>,
}

/// How a pod comes to have a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Nobody has the device: the file system is mounted.
    First,
    /// Somebody has it: another mount of the superblock.
    Joins,
    /// The pod's sandbox has it mounted.
    Mounted,
}

impl From<Admission> for Access {
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::First => Self::First,
            Admission::Joins { .. } => Self::Joins,
        }
    }
}

/// The pod that a volume is looked at for.
#[derive(Debug, Clone, Copy)]
pub struct Of<'a> {
    /// Its uid, or what stands for one.
    pub uid: &'a str,
    /// Its sandbox, where that runs.
    pub sandbox: Option<&'a Sandbox>,
    /// The SELinux label that the volume's files are to have, on a host that enforces.
    pub label: Option<&'a str>,
}

/// Looks at a volume for a pod. Fails as its mount would before
/// it asks who else has the device.
pub fn outlook(
    context: &Context<'_>,
    target: &TargetPath,
    pod: Of<'_>,
) -> Result<Outlook, VolumeError> {
    let looked = || -> Result<_, Cause> {
        let volume = read_staged(context.crust, target)?;
        let live = live_record(&volume)?;
        let (plan, before) = planned(context.config, &volume, live, pod.label)?;
        let users = before.users.clone();
        let access = access(context, &volume, &plan, before, pod);
        Ok(Outlook {
            is_katas: volume.is_katas(),
            need: Need::of(context.config, volume.info(), &plan),
            users,
            access: access.map_err(|cause| VolumeError::new(target, cause)),
            info: volume.info().clone(),
            superblock: plan.superblock,
            fs_group: plan.fs_group,
        })
    };
    looked().map_err(|cause| VolumeError::new(target, cause))
}

fn access(
    context: &Context<'_>,
    volume: &Volume,
    plan: &MountPlan,
    before: VolumeRecord,
    pod: Of<'_>,
) -> Result<Access, Cause> {
    let (before, mounted) = match pod.sandbox {
        Some(sandbox) => {
            let standing = Standing::of(context.config, volume, sandbox, pod.label)?;
            if standing.is_complete {
                return Ok(Access::Mounted);
            }
            (standing.before, standing.mounted)
        }
        None => (before, false),
    };
    if !mounted {
        disk::check(volume.info(), &plan.device)?;
    }
    let admission = owners::preview(context, volume.target(), plan, pod.uid, &before)?;
    if mounted {
        return Ok(Access::Mounted);
    }
    if admission == Admission::First && seems_held(plan)? {
        let device = plan.device.path().display().to_string();
        return Err(Cause::DeviceBusy { device });
    }
    Ok(admission.into())
}

/// Whether somebody whom no record names is seen to have the device. A create asks the kernel, by an
/// exclusive open: for a moment that would keep another create from its mount.
fn seems_held(plan: &MountPlan) -> Result<bool, Cause> {
    let number = plan.device.number();
    let mounts = Table::own()?.select(|line| may_be_on(line, number))?;
    Ok(mounts.iter().any(|mount| is_on(mount, number)) || plan.device.has_holders()?)
}
