//! Whether the mount API works here, by a mount of a tmpfs that nobody else sees.

use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount_change, move_mount, open_tree,
};

use crate::attach::ONTO;
use crate::tmpfs;
use crust_blockfs::sys;

/// What was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trial {
    /// The calls that worked, in their order.
    pub worked: Vec<&'static str>,
    /// The first that didn't; what comes after it wasn't tried.
    pub failed: Option<(&'static str, Errno)>,
}

/// What [`crate::attach`] does without where the kernel hasn't it: `MOVE_MOUNT_SET_GROUP`, Linux 5.15.
pub const SET_GROUP: &str = "move_mount(MOVE_MOUNT_SET_GROUP)";

/// Where there is always a mount whose root a path leads to.
const PLACE: &str = "/proc";

/// Tries the calls that mounting a volume takes, in a mount namespace that ends with the thread that
/// this starts.
#[must_use]
pub fn mount_api() -> Trial {
    let started = std::thread::Builder::new().spawn(|| {
        let mut worked = Vec::new();
        let failed = attempt(&mut worked).err();
        Trial { worked, failed }
    });
    let ended = started.map(std::thread::JoinHandle::join);
    ended.ok().and_then(Result::ok).unwrap_or(Trial {
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
    fn it_works_here_and_nobody_sees_it() {
        let mounts = || crust_blockfs::mountinfo::read_own().unwrap();
        let before = mounts();
        let trial = mount_api();
        assert_eq!(trial.failed, None, "{trial:?}");
        assert_eq!(trial.worked.last(), Some(&SET_GROUP));
        assert_eq!(mounts(), before);
    }
}
