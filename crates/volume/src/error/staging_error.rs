//! The error of a stage that callers of a socket aren't allowed.

use crust_state::TargetPath;
use crust_state::files::FileError;

/// The reason why a volume isn't staged for a caller of a socket.
#[derive(Debug, thiserror::Error)]
pub enum StagingError {
    /// The target path is outside of the configured directories.
    #[error(
        "target path {target} isn't allowed over the socket: it is neither \
         <dir>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount with a <dir> of `kubelet_dirs` ({kubelet_dirs}) nor \
         below a directory of `match_roots` ({match_roots}); hint: set `kubelet_dirs` in /etc/runcrust/config.toml to \
         kubelet's --root-dir"
    )]
    TargetNotAllowed {
        target: TargetPath,
        /// The directories of the setting, separated by commas.
        kubelet_dirs: String,
        /// The directories of the setting, separated by commas.
        match_roots: String,
    },
    /// The target path is a mount point, or the trigger of an automount.
    #[error(
        "target path {0} is a mount point, and the files mounted there would be hidden from the pod; hint: \
         find the mount with findmnt {0}; the CSI driver has to unmount it before it defers the volume"
    )]
    TargetIsMountPoint(TargetPath),
    #[error(
        "target path {0} isn't an empty directory, and its files would be hidden from the pod; \
         hint: move them away, into the volume if they belong there"
    )]
    TargetNotEmpty(TargetPath),
    /// The target directory can't be read, or is too large to be read whole.
    #[error(
        "target path {0} can't be checked for files: it is unreadable or has too many subdirectories; hint: list it; \
         the target path of a deferred volume must be a directory without files"
    )]
    TargetUnreadable(TargetPath),
    /// A limit on the number or size of staged volumes is reached.
    #[error(
        "{used} {unit} are staged, and `{setting}` allows {limit}; hint: list the staged volumes with `runcrust crust \
         list`, remove stale ones with `runcrust crust gc`, or raise `{setting}` in /etc/runcrust/crust_ops.toml"
    )]
    LimitReached {
        /// The unit of `used` and `limit`, as the message names it.
        unit: &'static str,
        /// The number of staged volumes, or the size of all entries with the new one in bytes.
        used: u64,
        limit: u64,
        /// The name of the limit in `crust_ops.toml`.
        setting: &'static str,
    },
    /// The staged volumes can't be counted, so it is unknown whether a limit is reached.
    #[error("the staged volumes can't be counted, so no more are accepted over the socket: {0}")]
    CountFailed(#[source] FileError),
    /// The check needs a call that may wait for a disk, and the caller may not wait.
    #[error("the target path can't be checked without waiting for a disk")]
    WouldWait,
}
