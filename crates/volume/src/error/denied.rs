//! The error of a stage that the limits for callers of a socket forbid.

use crust_state::TargetPath;
use crust_state::files::FileError;

/// A reason not to stage a volume for a caller of a socket.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// Callers of a socket may not stage at this target path.
    #[error(
        "target path {target} is neither <dir>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount with a \
         directory of `kubelet_dirs` ({kubelet_dirs}) nor below a directory of `match_roots` \
         ({match_roots}); hint: those two in /etc/runcrust/config.toml say what may be staged over the \
         socket: name kubelet's --root-dir in `kubelet_dirs`"
    )]
    Target {
        /// The path that was asked for.
        target: TargetPath,
        /// The directories of that setting, as a list in a sentence.
        kubelet_dirs: String,
        /// The directories of that setting, likewise.
        match_roots: String,
    },
    /// Something is mounted, or will be once somebody looks, at the target path.
    #[error(
        "target path {0} is a mount point, and what is mounted there would be hidden from the pod; hint: \
         findmnt {0} shows it; the CSI driver has to unmount it before it defers the mount"
    )]
    Mount(TargetPath),
    /// Files stand in the target directory.
    #[error(
        "target path {0} isn't an empty directory, and what stands there would be hidden from the pod; \
         hint: move it away, into the volume if it belongs there"
    )]
    Files(TargetPath),
    /// The target directory can't be read, or is too large to be looked through.
    #[error(
        "whether target path {0} is an empty directory can't be told; hint: look into it; only directories \
         without files are deferred volumes' target paths"
    )]
    Unclear(TargetPath),
    /// A limit on the number or size of staged volumes is reached.
    #[error(
        "{there} {unit} are staged, and `{setting}` allows {most}; hint: `runcrust crust list` shows what is \
         staged, `runcrust crust gc` removes what is stale; `{setting}` is in /etc/runcrust/crust_ops.toml"
    )]
    Full {
        /// `volumes` or `bytes`, as the sentence names them.
        unit: &'static str,
        /// The number of volumes staged, or of bytes with the new volume's.
        there: u64,
        /// The limit.
        most: u64,
        /// The key of the limit in `crust_ops.toml`.
        setting: &'static str,
    },
    /// The staged volumes can't be counted, and so nothing says whether a limit is reached.
    #[error("what is staged can't be counted, so no more is accepted over the socket: {0}")]
    Uncounted(#[source] FileError),
    /// It can't be told without a call that may wait for a disk.
    #[error("it can't be told at once")]
    Unknown,
}
