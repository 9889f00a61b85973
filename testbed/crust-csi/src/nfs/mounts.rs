//! Mounts of shares on the host, of volumes that are not deferred.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::errno::{self, Name};
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::mountinfo::Mount as Mounted;
use crust_blockfs::options;
use crust_nfs::mount::{ShareMountRequest, mount_detached};
use crust_nfs::{Share, is_nfs};
use rustix::io::Errno;

use super::{MountCapability, Publication};
use crate::capability::FileSystem as _;
use crate::mounts::{
    MAX_STACKED_MOUNTS, MountsError, PodMount, create_target_directory, failed, other_mount_error,
    topmost_mount, unmount_topmost,
};

/// The timeout for contacting the server, which is below kubelet's two minutes for a CSI call.
const CONTACT_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that an unmount may take until it is left to the background. It is longer than a busy mount is retried.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Mounts a share at a target path. The mount appears only after fsGroup has been applied.
pub(super) fn mount(
    share: &Share,
    mount: &MountCapability,
    publication: &Publication,
    target: &Path,
) -> Result<(), MountsError> {
    let request_error = |message: String| MountsError::FileSystem {
        message,
        is_request_error: true,
    };
    let options = options::parse(&mount.options)?;
    let mut options = mount.fstype.normalize(options).map_err(request_error)?;
    options.read_only |= publication.usage.is_read_only();
    let target_directory = create_target_directory(target)?;
    let request = ShareMountRequest {
        share,
        fstype: mount.fstype.name(),
        options: &options,
        is_host_network: true,
        deadline: Deadline::after(CONTACT_TIMEOUT),
    };
    let mounted = mount_detached(&request).map_err(|error| MountsError::FileSystem {
        message: crust_state::error_message(&error),
        is_request_error: error.is_request_error(),
    })?;
    let pod_mount = PodMount {
        detached: &mounted.mount,
        mount,
        read_only: publication.read_only,
        // Other clients of the server may change the tree during the walk.
        fsgroup: (!options.read_only).then_some((None, true)),
    };
    let attached = pod_mount.attach(&target_directory, target);
    attached.map_err(|error| explain_refused_group(share, error))
}

/// Adds the share and the next step to the error of an fsGroup that the server refused. Other errors are returned
/// unchanged.
fn explain_refused_group(share: &Share, error: MountsError) -> MountsError {
    match error {
        MountsError::FsGroup(FsGroupError::Call {
            call,
            errno: errno @ (Errno::PERM | Errno::ACCESS),
            ..
        }) => MountsError::FileSystem {
            message: format!(
                "fsGroup: {call}: {}: the server of {share} refuses to change the group; hint: export the share with \
                 no_root_squash, or let the server own the files by the group and remove fsGroup from the pod",
                Name(errno)
            ),
            is_request_error: true,
        },
        other => other,
    }
}

/// Returns whether a share is mounted at a path. Fails with [`MountsError::Occupied`] if something else is mounted
/// there.
pub(super) fn is_mounted_at(share: &Share, target: &Path) -> Result<bool, MountsError> {
    match topmost_mount(target)? {
        None => Ok(false),
        Some(mounted) if shows(&mounted, share) => Ok(true),
        Some(other) => Err(other_mount_error(target, &other)),
    }
}

/// Compares the path alone: mounts that share a superblock may show another name of the server.
fn shows(mounted: &Mounted, share: &Share) -> bool {
    let shown = mounted.source.to_str();
    let shown = shown.and_then(|source| source.parse::<Share>().ok());
    is_share(mounted) && shown.is_some_and(|shown| shown.path() == share.path())
}

fn is_share(mounted: &Mounted) -> bool {
    is_nfs(mounted.fstype.as_encoded_bytes())
}

/// Unmounts all shares at a path that belongs to the volume. Fails if something else is mounted there. Doesn't contact
/// the server.
pub(super) fn unmount(target: &Path) -> Result<(), MountsError> {
    for _ in 0..MAX_STACKED_MOUNTS {
        match topmost_mount(target) {
            Ok(Some(mounted)) if is_share(&mounted) => unmount_in_background(target)?,
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
/// That can take minutes if the server doesn't answer, so it is left to a thread. The mount is gone before that.
fn unmount_in_background(target: &Path) -> Result<(), MountsError> {
    let (sender, result) = mpsc::channel();
    let path = target.to_owned();
    let unmounting = thread::Builder::new().spawn(move || {
        // Nothing receives the result if it comes too late.
        let _ = sender.send(unmount_topmost(&path));
    });
    unmounting.map_err(|error| failed("clone", target)(errno::from_io_error(&error)))?;
    match result.recv_timeout(UNMOUNT_TIMEOUT) {
        Ok(unmounted) => unmounted,
        Err(_) if topmost_mount(target)?.is_none_or(|mounted| !is_share(&mounted)) => Ok(()),
        Err(_) => Err(failed("umount2", target)(Errno::TIMEDOUT)),
    }
}

fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR)
}
