//! The directory of a pod that is no more.

use std::fs;

use crust_blockfs::mountinfo;
use rustix::io::Errno;

use super::place::{gone, remove_unfinished};
use super::record::POD;
use super::{OperationError, subpath, tree};
use crate::volumes::layout::Layout;

/// Removes a pod's directory, with what was in its `emptyDir`s. A CSI volume that is still there keeps it.
pub(crate) fn remove_pod(layout: &Layout, uid: &str) -> Result<(), OperationError> {
    let pod = layout.pod(uid);
    if !pod.try_exists().map_err(OperationError::io("stat", &pod))? {
        return Ok(());
    }
    // Those of volumes that are no driver's; the others went with theirs.
    subpath::unbind_all(&layout.subpaths(uid))?;
    // Nobody's data behind a mount is removed with it.
    let mounts = mountinfo::read_own()?;
    if let Some(mount) = mounts.iter().find(|it| it.mount_point.starts_with(&pod)) {
        return Err(OperationError::system("rmdir", &mount.mount_point)(
            Errno::BUSY,
        ));
    }
    let csi = layout.csi_volumes(uid);
    gone("rmdir", &csi, fs::remove_dir(&csi))?;
    let empty_dirs = layout.empty_dirs(uid);
    tree::remove(&empty_dirs)?;
    remove_unfinished(&pod)?;
    let record = pod.join(POD);
    gone("unlink", &record, fs::remove_file(&record))?;
    let volumes = layout.volumes(uid);
    for directory in [&volumes, &pod] {
        gone("rmdir", directory, fs::remove_dir(directory))?;
    }
    Ok(())
}
