//! Mounts of shares on the host, of volumes that are not deferred.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::errno::Name;
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::mountinfo::{self, Mount as Mounted};
use crust_blockfs::options::{self, MountOptions};
use crust_blockfs::usage::{Usage, UsageError, read_usage};
use crust_nfs::mount::{ShareMountRequest, mount_detached};
use crust_nfs::{Share, is_nfs};
use crust_state::Backing;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::share_calls::{NoResult, ShareCalls};
use super::{MountCapability, NfsDriver, Publication};
use crate::capability::FileSystem as _;
use crate::mounts::{
    MAX_STACKED_MOUNTS, MountsError, PodMount, attach, create_target_directory, failed, open_root,
    other_mount_error, topmost_mount, unmount_topmost,
};
use crate::refusal::Refusal;

/// The timeout for a new mount, with fsGroup. kubelet waits two minutes for a CSI call.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(110);

/// The time after which fsGroup stops, counted from the start of the mount. It leaves time to report how far it got.
/// The next call continues.
const FSGROUP_TIMEOUT: Duration = Duration::from_secs(105);

/// The timeout for contacting the server.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that an unmount may take until it is left to the background. It is longer than a busy mount is retried.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a server may take to report the usage of a share, as in the container runtime's own statistics.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl NfsDriver {
    /// Mounts a share at a target path. The mount appears only after fsGroup has been applied. Waits for the server for
    /// at most [`MOUNT_TIMEOUT`].
    pub(super) fn mount(
        &self,
        id: &str,
        share: &Share,
        publication: &Publication,
        target: &Path,
    ) -> Result<(), Refusal> {
        let new_mount = NewMount::new(share, publication, target).map_err(Refusal::node(id))?;
        let Some(new_mount) = new_mount else {
            return Ok(());
        };
        let target_directory = create_target_directory(target).map_err(Refusal::node(id))?;
        let mounts = &self.calls.mounts;
        let detached = mounts.run(target.to_owned(), MOUNT_TIMEOUT, move || {
            new_mount.detached()
        });
        let detached =
            detached.map_err(|reason| reason.into_refusal(id, "mounting", share, MOUNT_TIMEOUT))?;
        let detached = detached.map_err(Refusal::node(id))?;
        // Only this thread attaches the mount, so a mount that was left to the background never appears.
        let attached = attach(&detached, &target_directory, target);
        if attached.is_err() {
            // Closing the only descriptor unmounts the share, which can wait for the server.
            let _ = mounts.run(target.to_owned(), UNMOUNT_TIMEOUT, move || drop(detached));
        }
        attached.map_err(Refusal::node(id))
    }
}

/// A mount of a share to make for a pod.
struct NewMount {
    share: Share,
    mount: MountCapability,
    options: MountOptions,
    /// Whether this pod can only read the volume.
    read_only: bool,
    /// The target path, for errors.
    target: PathBuf,
}

impl NewMount {
    /// Checks the options. Returns `None` if the publication has no file system.
    fn new(
        share: &Share,
        publication: &Publication,
        target: &Path,
    ) -> Result<Option<Self>, MountsError> {
        let Some(mount) = &publication.usage.mount else {
            return Ok(None);
        };
        let request_error = |message: String| MountsError::FileSystem {
            message,
            is_request_error: true,
        };
        let options = options::parse(&mount.options)?;
        let mut options = mount.fstype.normalize(options).map_err(request_error)?;
        options.read_only |= publication.usage.is_read_only();
        Ok(Some(Self {
            share: share.clone(),
            mount: mount.clone(),
            options,
            read_only: publication.read_only,
            target: target.to_owned(),
        }))
    }

    /// Makes the mount, with fsGroup applied, without attaching it. Waits for the server.
    fn detached(&self) -> Result<OwnedFd, MountsError> {
        let fsgroup_deadline = Deadline::after(FSGROUP_TIMEOUT);
        let request = ShareMountRequest {
            share: &self.share,
            fstype: self.mount.fstype.name(),
            options: &self.options,
            is_host_network: true,
            deadline: Deadline::after(CONTACT_TIMEOUT),
        };
        let mounted = mount_detached(&request).map_err(|error| MountsError::FileSystem {
            message: crust_state::error_message(&error),
            is_request_error: error.is_request_error(),
        })?;
        let pod_mount = PodMount {
            detached: &mounted.mount,
            mount: &self.mount,
            read_only: self.read_only,
            // Other clients of the server may change the tree during the walk.
            fsgroup: (!self.options.read_only).then_some((None, true)),
        };
        let prepared = pod_mount.prepare(&self.target, fsgroup_deadline);
        prepared.map_err(|error| explain_refused_group(&self.share, self.mount.group, error))?;
        Ok(mounted.mount)
    }
}

/// Adds the share and the next step to the error of an fsGroup that the server refused. Other errors are returned
/// unchanged. The hint doesn't name the `fsGroupPolicy` of the `CSIDriver`: kubelet ignores it if a driver has
/// `VOLUME_MOUNT_GROUP`.
fn explain_refused_group(share: &Share, group: Option<u32>, error: MountsError) -> MountsError {
    match (group, error) {
        (
            Some(group),
            MountsError::FsGroup(FsGroupError::Call {
                call,
                errno: errno @ (Errno::PERM | Errno::ACCESS),
                ..
            }),
        ) => MountsError::FileSystem {
            message: format!(
                "fsGroup {group}: {call}: {}: the server of {share} refuses to change the group or the mode; hint: export \
                 the share with no_root_squash; or give the files on the server the group {group} and mode g+rw, and the \
                 directories g+rwxs; or remove fsGroup from the pod",
                Name(errno)
            ),
            is_request_error: true,
        },
        (_, other) => other,
    }
}

/// Reads the usage of the share that is mounted at a path. Waits for the server.
pub(super) fn usage_at(target: &Path) -> Result<Result<Usage, UsageError>, MountsError> {
    Ok(read_usage(open_root(target)?))
}

/// Returns whether a share is mounted at a path. Fails with [`MountsError::Occupied`] if something else is mounted
/// there.
pub(super) fn is_mounted_at(share: &Share, target: &Path) -> Result<bool, MountsError> {
    let share = Backing::Share(share.clone());
    match topmost_mount(target)? {
        None => Ok(false),
        Some(mounted) if share.may_be_mounted_by(&mounted) => Ok(true),
        Some(other) => Err(other_mount_error(target, &other)),
    }
}

fn is_share(mounted: &Mounted) -> bool {
    is_nfs(mounted.fstype.as_encoded_bytes())
}

/// Unmounts all shares at a path that belongs to the volume. Fails if something else is mounted there, or below a share
/// that is in use. Doesn't wait for the server.
pub(super) fn unmount(unmounts: &ShareCalls<u32>, target: &Path) -> Result<(), MountsError> {
    for _ in 0..MAX_STACKED_MOUNTS {
        match topmost_mount(target) {
            Ok(Some(mounted)) if is_share(&mounted) => {
                unmount_in_background(unmounts, mounted, target)?;
            }
            Ok(Some(other)) => return Err(other_mount_error(target, &other)),
            Ok(None) => return Ok(()),
            // The path's parent doesn't exist.
            Err(MountsError::Call { errno, .. }) if is_missing(errno) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Err(failed("umount2", target)(Errno::BUSY))
}

/// Unmounts the topmost share at a path. With the last mount of a share, the kernel ends its session with the server.
/// This can take minutes, so a thread does it. The mount disappears from the table first.
fn unmount_in_background(
    unmounts: &ShareCalls<u32>,
    mounted: Mounted,
    target: &Path,
) -> Result<(), MountsError> {
    let (mount_id, path) = (mounted.id, target.to_owned());
    let unmount = move || unmount_or_detach(&mounted, &path);
    match unmounts.run(mount_id, UNMOUNT_TIMEOUT, unmount) {
        Ok(unmounted) => unmounted,
        Err(NoResult::NoThread(errno)) => Err(failed("clone", target)(errno)),
        Err(NoResult::TimedOut | NoResult::Outstanding) => {
            if topmost_mount(target)?.is_some_and(|topmost| topmost.id == mount_id) {
                return Err(failed("umount2", target)(Errno::TIMEDOUT));
            }
            Ok(())
        }
    }
}

/// Unmounts the share `mounted`, which is the topmost mount at `target`. Detaches it if it stays busy.
///
/// The pod's containers have mounts of their own, so only other programs can keep this mount busy: for example a thread
/// of this driver that waits for the server. A detached mount stays usable for these programs and ends with them. That is
/// safe for a share, because the server coordinates all its clients, so nobody needs exclusive use. A block device must
/// not be detached like this: it would still be written to while another node uses it.
fn unmount_or_detach(mounted: &Mounted, target: &Path) -> Result<(), MountsError> {
    match unmount_topmost(target) {
        Err(MountsError::Call {
            errno: Errno::BUSY, ..
        }) => {}
        other => return other,
    }
    // Everything below the mount would be detached with it. The kernel itself mounts exports below a share.
    let is_other = |below: &Mounted| {
        let (point, root) = (&below.mount_point, &mounted.mount_point);
        point != root && point.starts_with(root) && !is_share(below)
    };
    if let Some(other) = mountinfo::read_own()?.into_iter().find(is_other) {
        return Err(other_mount_error(&other.mount_point, &other));
    }
    tracing::info!("{}: the share is busy, and is detached", target.display());
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
    rustix::mount::unmount(target, flags).map_err(failed("umount2(MNT_DETACH)", target))
}

fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubelet ignores the fsGroupPolicy of a driver with `VOLUME_MOUNT_GROUP`, and the user of the error is a
    /// Kubernetes user.
    #[test]
    fn a_refused_group_has_hints_that_can_help() {
        let share = "srv:/export".parse().unwrap();
        let refused = |errno| {
            let error = FsGroupError::Call {
                call: "fchownat",
                path: "file".into(),
                errno,
            };
            explain_refused_group(&share, Some(2000), error.into())
        };
        let message = refused(Errno::PERM).to_string();
        for part in [
            "fsGroup 2000: fchownat: EPERM",
            "srv:/export",
            "no_root_squash",
            "the group 2000",
            "remove fsGroup from the pod",
        ] {
            assert!(message.contains(part), "{part:?} isn't in: {message}");
        }
        assert!(!message.contains("fsGroupPolicy"), "{message}");
        let other = refused(Errno::IO).to_string();
        assert!(!other.contains("no_root_squash"), "{other}");
    }
}
