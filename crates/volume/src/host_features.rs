//! Reports what this host supports: the capabilities of this process, the kernel's file systems, and its mount API,
//! which is tried with a tmpfs in a mount namespace of its own. The kernel is asked; there is no list of kernel
//! versions.

use std::borrow::Cow;
use std::path::Path;

use caps::{Capability, CapsHashSet};
use crust_blockfs::errno::Name;
use crust_blockfs::{fstypes, sys};
use crust_state::check::Finding;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, fsopen, mount_change,
    move_mount, open_tree,
};

use crate::attach::BETWEEN_FDS;
use crate::privileges::{self, Operation, PrivilegesError};
use crate::tmpfs;

/// An error of asking the kernel what it supports.
#[derive(Debug, thiserror::Error)]
pub enum HostFeaturesError {
    /// The kernel's file systems can't be determined.
    #[error("{call}: {}; hint: run this as root on the node", Name(*errno))]
    FileSystem {
        /// The call with its arguments.
        call: String,
        errno: Errno,
    },
    /// The capabilities of this process can't be read.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
}

/// Returns which of the file system types the running kernel can mount. The kernel may load modules for this.
pub fn mountable_fstypes(fstypes: &[String]) -> Result<Vec<String>, HostFeaturesError> {
    let mut mountable = Vec::new();
    for fstype in fstypes {
        match fsopen(fstype.as_str(), FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_) => mountable.push(fstype.clone()),
            Err(Errno::NODEV) => {}
            Err(errno) => {
                let call = format!("fsopen({fstype:?})");
                return Err(HostFeaturesError::FileSystem { call, errno });
            }
        }
    }
    Ok(mountable)
}

/// Returns true if this process can grow a mounted file system of one of these types.
pub fn any_can_grow(fstypes: &[String]) -> Result<bool, HostFeaturesError> {
    let has_cap_sys_resource =
        fstypes::has_cap_sys_resource().map_err(privileges::failed("capget"))?;
    let mut known_types = fstypes.iter().filter_map(|fstype| fstypes::find(fstype));
    Ok(known_types.any(|fstype| fstype.can_grow(has_cap_sys_resource)))
}

const CHECK_NAME: &str = "capabilities";

/// Checks whether this process has the capabilities of a create, which needs more than any other operation.
#[must_use]
pub fn check_capabilities() -> Finding {
    privileges::effective().map_or_else(
        |error| Finding::from_error(CHECK_NAME, &error),
        |effective| assess(&effective),
    )
}

/// Returns what can't be done without a capability, or `None` if no volume can be mounted without it.
fn consequence(capability: Capability) -> Option<Cow<'static, str>> {
    let consequence = match capability {
        Capability::CAP_SYS_PTRACE => "sandboxes that don't run as root can't be entered",
        Capability::CAP_DAC_OVERRIDE
        | Capability::CAP_CHOWN
        | Capability::CAP_FOWNER
        | Capability::CAP_FSETID => "fsGroup can't be applied",
        Capability::CAP_SYS_RESOURCE => {
            return Some(
                format!("{} can't grow", fstypes::types_needing_capability_to_grow()).into(),
            );
        }
        Capability::CAP_SETUID | Capability::CAP_SETGID | Capability::CAP_SETFCAP => {
            "pods with a user namespace of their own can't use volumes"
        }
        _ => return None,
    };
    Some(consequence.into())
}

fn assess(effective: &CapsHashSet) -> Finding {
    let needs = Operation::Create.needs().iter().copied();
    let missing: Vec<Capability> = needs.filter(|need| !effective.contains(need)).collect();
    let names = |missing: &mut dyn Iterator<Item = &Capability>| {
        let names: Vec<String> = missing.map(ToString::to_string).collect();
        names.join(", ")
    };
    let fix = "set `privileged: true` in the pod, or CapabilityBoundingSet= in the systemd unit";
    let fatal = names(&mut missing.iter().filter(|need| consequence(**need).is_none()));
    if !fatal.is_empty() {
        return Finding::fail(
            CHECK_NAME,
            format!("without {fatal} no volume can be mounted"),
            fix,
        );
    }
    let mut consequences: Vec<_> = missing
        .iter()
        .filter_map(|need| consequence(*need))
        .collect();
    consequences.dedup();
    if consequences.is_empty() {
        return Finding::pass(CHECK_NAME, "sufficient");
    }
    let (names, consequences) = (names(&mut missing.iter()), consequences.join(", "));
    Finding::warn(CHECK_NAME, format!("without {names} {consequences}"), fix)
}

/// The result of trying the calls of the mount API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountApiTrial {
    /// The calls that worked, in order.
    pub worked: Vec<&'static str>,
    /// The first call that failed; the later ones weren't tried. `None` if all worked.
    pub failed: Option<(&'static str, Errno)>,
}

/// The only call that [`crate::attach`] can do without: `MOVE_MOUNT_SET_GROUP`, since Linux 5.15.
pub const SET_GROUP_CALL: &str = "move_mount(MOVE_MOUNT_SET_GROUP)";

/// A path that leads to the root of a mount on every host.
const MOUNT_POINT: &str = "/proc";

/// Tries the calls that are needed to mount a volume, on a thread with a mount namespace of its own. The thread has
/// ended when this returns.
#[must_use]
pub fn try_mount_api() -> MountApiTrial {
    let started = std::thread::Builder::new().spawn(|| {
        let mut worked = Vec::new();
        let failed = try_calls(&mut worked).err();
        MountApiTrial { worked, failed }
    });
    let ended = started.map(std::thread::JoinHandle::join);
    ended.ok().and_then(Result::ok).unwrap_or(MountApiTrial {
        worked: Vec::new(),
        failed: Some(("clone", Errno::AGAIN)),
    })
}

fn try_calls(worked: &mut Vec<&'static str>) -> Result<(), (&'static str, Errno)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    try_call(worked, "unshare(CLONE_NEWNS)", sys::unshare_mount_namespace)?;
    let mount_point = try_call(worked, "open", || open(MOUNT_POINT, flags, Mode::empty()))?;
    // Before anything is mounted: a mount on a shared mount would propagate to the host.
    try_call(worked, "mount_setattr", || {
        sys::set_propagation_private(&mount_point)
    })?;
    let mount = try_call(worked, "fsopen, fsconfig, fsmount", tmpfs::detached)?;
    try_call(worked, "move_mount", || {
        move_mount(&mount, "", &mount_point, "", BETWEEN_FDS)
    })?;
    let shared = MountPropagationFlags::SHARED;
    try_call(worked, "mount(MS_SHARED)", || {
        mount_change(Path::new(MOUNT_POINT), shared)
    })?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let peer = try_call(worked, "open_tree", || open_tree(&mount, "", clone))?;
    // The mount leaves its group and rejoins it, as the mount that holds the attach directory does.
    try_call(worked, SET_GROUP_CALL, || {
        sys::set_propagation_private(&mount)?;
        let set_group = BETWEEN_FDS | MoveMountFlags::MOVE_MOUNT_SET_GROUP;
        move_mount(&peer, "", &mount, "", set_group)
    })
}

fn try_call<T>(
    worked: &mut Vec<&'static str>,
    call: &'static str,
    work: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, (&'static str, Errno)> {
    let result = work().map_err(|errno| (call, errno))?;
    worked.push(call);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_reported_with_their_consequence() {
        use Capability::{
            CAP_CHOWN, CAP_FSETID, CAP_NET_ADMIN, CAP_SETFCAP, CAP_SYS_ADMIN, CAP_SYS_CHROOT,
            CAP_SYS_RESOURCE,
        };
        use crust_state::check::CheckVerdict;
        for (missing, verdict, words) in [
            (&[][..], CheckVerdict::Pass, "sufficient"),
            (
                &[CAP_SYS_ADMIN, CAP_CHOWN],
                CheckVerdict::Fail,
                "without CAP_SYS_ADMIN no volume can be mounted",
            ),
            (
                &[CAP_SYS_ADMIN, CAP_SYS_CHROOT],
                CheckVerdict::Fail,
                "without CAP_SYS_ADMIN, CAP_SYS_CHROOT no",
            ),
            (
                &[CAP_SYS_RESOURCE],
                CheckVerdict::Warn,
                "without CAP_SYS_RESOURCE ext4 and ext3 can't grow",
            ),
            (
                &[CAP_CHOWN, CAP_FSETID],
                CheckVerdict::Warn,
                "without CAP_CHOWN, CAP_FSETID fsGroup can't be applied",
            ),
            (
                &[CAP_SETFCAP],
                CheckVerdict::Warn,
                "without CAP_SETFCAP pods with a user namespace",
            ),
            (&[CAP_NET_ADMIN], CheckVerdict::Pass, "sufficient"),
        ] {
            let mut effective = caps::all();
            effective.retain(|it| !missing.contains(it));
            let finding = assess(&effective);
            assert_eq!(finding.verdict, verdict, "{finding}");
            assert!(finding.found.starts_with(words), "{finding}");
        }
    }

    #[test]
    fn fstypes_unknown_to_the_kernel_are_left_out() {
        let fstypes = ["tmpfs", "no-such-fs"].map(str::to_owned);
        assert_eq!(mountable_fstypes(&fstypes).unwrap(), ["tmpfs"]);
    }

    #[test]
    fn a_trial_of_the_mount_api_leaves_the_mounts_unchanged() {
        let mounts = || crust_blockfs::mountinfo::read_own().unwrap();
        let before = mounts();
        let trial = try_mount_api();
        assert_eq!(trial.failed, None, "{trial:?}");
        assert_eq!(trial.worked.last(), Some(&SET_GROUP_CALL));
        assert_eq!(mounts(), before);
    }
}
