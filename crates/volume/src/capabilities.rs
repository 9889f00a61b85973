//! The abilities of this host: capabilities of this process, file systems, and the mount API, which is tried on a tmpfs
//! that nobody else sees. The kernel is asked, and no list of versions.

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

use crate::attach::ONTO;
use crate::privileges::{self, Operation, PrivilegesError};
use crate::tmpfs;

/// The kernel doesn't say.
#[derive(Debug, thiserror::Error)]
pub enum CapabilitiesError {
    /// The file systems of the kernel are unknown.
    #[error("{call}: {}; hint: only root on the node can ask", Name(*errno))]
    FileSystem {
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The capabilities of this process are unknown.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
}

/// Those of the file systems that the running kernel can mount; a module is loaded for it.
pub fn mountable(fstypes: &[String]) -> Result<Vec<String>, CapabilitiesError> {
    let mut known = Vec::new();
    for fstype in fstypes {
        match fsopen(fstype.as_str(), FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_) => known.push(fstype.clone()),
            Err(Errno::NODEV) => {}
            Err(errno) => {
                let call = format!("fsopen({fstype:?})");
                return Err(CapabilitiesError::FileSystem { call, errno });
            }
        }
    }
    Ok(known)
}

/// Whether one of the file systems can grow while it is mounted, by this process.
pub fn can_grow(names: &[String]) -> Result<bool, CapabilitiesError> {
    let uses_reserves = fstypes::can_use_reserves().map_err(privileges::failed("capget"))?;
    let mut known = names.iter().filter_map(|fstype| fstypes::find(fstype));
    Ok(known.any(|known| known.can_grow(uses_reserves)))
}

const WHAT: &str = "capabilities";

/// Whether this process has the capabilities that volumes take: those of a create, which has the most.
#[must_use]
pub fn check() -> Finding {
    privileges::effective().map_or_else(|error| Finding::failed(WHAT, &error), |has| judge(&has))
}

/// Returns what can't be done without a capability; `None`: no volume is mounted.
fn lost(capability: Capability) -> Option<Cow<'static, str>> {
    let lost = match capability {
        Capability::CAP_SYS_PTRACE => "sandboxes that don't run as root can't be entered",
        Capability::CAP_DAC_OVERRIDE
        | Capability::CAP_CHOWN
        | Capability::CAP_FOWNER
        | Capability::CAP_FSETID => "fsGroup can't be applied",
        Capability::CAP_SYS_RESOURCE => {
            return Some(format!("{} can't grow", fstypes::growing_by_reserves()).into());
        }
        Capability::CAP_SETUID | Capability::CAP_SETGID | Capability::CAP_SETFCAP => {
            "pods with a user namespace of their own have no volumes"
        }
        _ => return None,
    };
    Some(lost.into())
}

fn judge(effective: &CapsHashSet) -> Finding {
    let needs = Operation::Create.needs().iter().copied();
    let missing: Vec<Capability> = needs.filter(|need| !effective.contains(need)).collect();
    let names = |missing: &mut dyn Iterator<Item = &Capability>| {
        let names: Vec<String> = missing.map(ToString::to_string).collect();
        names.join(", ")
    };
    let fix = "in a pod `privileged: true`, in a unit CapabilityBoundingSet=";
    let fatal = names(&mut missing.iter().filter(|need| lost(**need).is_none()));
    if !fatal.is_empty() {
        return Finding::fail(WHAT, format!("without {fatal} no volume is mounted"), fix);
    }
    let mut lost: Vec<_> = missing.iter().filter_map(|need| lost(*need)).collect();
    lost.dedup();
    if lost.is_empty() {
        return Finding::pass(WHAT, "they suffice");
    }
    let (names, lost) = (names(&mut missing.iter()), lost.join(", "));
    Finding::warn(WHAT, format!("without {names} {lost}"), fix)
}

/// The result of trying the calls of the mount API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountApiTrial {
    /// The calls that worked, in their order.
    pub worked: Vec<&'static str>,
    /// The first call that failed, after which no other was tried; `None` if all worked.
    pub failed: Option<(&'static str, Errno)>,
}

/// The only call that [`crate::attach`] can do without: `MOVE_MOUNT_SET_GROUP`, since Linux 5.15.
pub const SET_GROUP: &str = "move_mount(MOVE_MOUNT_SET_GROUP)";

/// A path that leads to the root of a mount on every host.
const PLACE: &str = "/proc";

/// Tries the calls that mounting a volume takes, in a mount namespace of a thread that is started for it and ends
/// before this returns.
#[must_use]
pub fn try_mount_api() -> MountApiTrial {
    let started = std::thread::Builder::new().spawn(|| {
        let mut worked = Vec::new();
        let failed = attempt(&mut worked).err();
        MountApiTrial { worked, failed }
    });
    let ended = started.map(std::thread::JoinHandle::join);
    ended.ok().and_then(Result::ok).unwrap_or(MountApiTrial {
        worked: Vec::new(),
        failed: Some(("clone", Errno::AGAIN)),
    })
}

fn attempt(worked: &mut Vec<&'static str>) -> Result<(), (&'static str, Errno)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    step(worked, "unshare(CLONE_NEWNS)", sys::unshare_mount_namespace)?;
    let place = step(worked, "open", || open(PLACE, flags, Mode::empty()))?;
    // First of all: what is mounted on a shared mount would be seen where that came from.
    step(worked, "mount_setattr", || {
        sys::set_propagation_private(&place)
    })?;
    let mount = step(worked, "fsopen, fsconfig, fsmount", tmpfs::detached)?;
    step(worked, "move_mount", || {
        move_mount(&mount, "", &place, "", ONTO)
    })?;
    let shared = MountPropagationFlags::SHARED;
    step(worked, "mount(MS_SHARED)", || {
        mount_change(Path::new(PLACE), shared)
    })?;
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let peer = step(worked, "open_tree", || open_tree(&mount, "", clone))?;
    // As the attach directory's holder is put back into its group.
    step(worked, SET_GROUP, || {
        sys::set_propagation_private(&mount)?;
        let set_group = ONTO | MoveMountFlags::MOVE_MOUNT_SET_GROUP;
        move_mount(&peer, "", &mount, "", set_group)
    })
}

fn step<T>(
    worked: &mut Vec<&'static str>,
    call: &'static str,
    work: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, (&'static str, Errno)> {
    let done = work().map_err(|errno| (call, errno))?;
    worked.push(call);
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_what_it_takes_away() {
        use Capability::{
            CAP_CHOWN, CAP_FSETID, CAP_NET_ADMIN, CAP_SETFCAP, CAP_SYS_ADMIN, CAP_SYS_CHROOT,
            CAP_SYS_RESOURCE,
        };
        use crust_state::check::Verdict;
        for (missing, verdict, words) in [
            (&[][..], Verdict::Pass, "they suffice"),
            (
                &[CAP_SYS_ADMIN, CAP_CHOWN],
                Verdict::Fail,
                "without CAP_SYS_ADMIN no volume is mounted",
            ),
            (
                &[CAP_SYS_ADMIN, CAP_SYS_CHROOT],
                Verdict::Fail,
                "without CAP_SYS_ADMIN, CAP_SYS_CHROOT no",
            ),
            (
                &[CAP_SYS_RESOURCE],
                Verdict::Warn,
                "without CAP_SYS_RESOURCE ext4 and ext3 can't grow",
            ),
            (
                &[CAP_CHOWN, CAP_FSETID],
                Verdict::Warn,
                "without CAP_CHOWN, CAP_FSETID fsGroup can't be applied",
            ),
            (
                &[CAP_SETFCAP],
                Verdict::Warn,
                "without CAP_SETFCAP pods with a user namespace",
            ),
            (&[CAP_NET_ADMIN], Verdict::Pass, "they suffice"),
        ] {
            let mut effective = caps::all();
            effective.retain(|it| !missing.contains(it));
            let finding = judge(&effective);
            assert_eq!(finding.verdict, verdict, "{finding}");
            assert!(finding.found.starts_with(words), "{finding}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_know_is_left_out() {
        let asked = ["tmpfs", "no-such-fs"].map(str::to_owned);
        assert_eq!(mountable(&asked).unwrap(), ["tmpfs"]);
    }

    #[test]
    fn it_works_here_and_nobody_sees_it() {
        let mounts = || crust_blockfs::mountinfo::read_own().unwrap();
        let before = mounts();
        let trial = try_mount_api();
        assert_eq!(trial.failed, None, "{trial:?}");
        assert_eq!(trial.worked.last(), Some(&SET_GROUP));
        assert_eq!(mounts(), before);
    }
}
