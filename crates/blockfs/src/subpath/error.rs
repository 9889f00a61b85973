//! The errors of resolving a subPath.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::errno::Name;
use crate::fstypes::hint_for_volume_error;

/// The error of resolving a subPath. The messages contain the subPath as the pod's author wrote it, and no other paths,
/// because workloads can see them.
#[derive(Debug, thiserror::Error)]
pub enum SubpathError {
    /// The subPath starts with `/`.
    #[error(
        "subPath {subpath:?}: is absolute; hint: remove the leading \"/\"; a subPath is relative to the volume's root"
    )]
    Absolute {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// A component of the subPath is `..`.
    #[error("subPath {subpath:?}: contains \"..\"; hint: use a path without \"..\"")]
    ParentDirectory {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// The subPath contains a NUL byte.
    #[error("subPath: contains a NUL byte; hint: remove it")]
    Nul,
    /// A symbolic link leads out of the volume, or a component is another mount.
    #[error(
        "subPath {subpath:?}: leads out of the volume; \
         hint: use a path without absolute symbolic links and without links that lead above the volume's root"
    )]
    Escapes {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// There are too many symbolic links, probably a loop.
    #[error(
        "subPath {subpath:?}: too many symbolic links; hint: check whether a link leads to itself"
    )]
    Loop {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// The target of a symbolic link doesn't exist, and isn't created.
    #[error(
        "subPath {subpath:?}: is or contains a link to something that doesn't exist; hint: create the target of the link first"
    )]
    DanglingLink {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// The subPath doesn't exist, and [`MissingPolicy::Refuse`](super::MissingPolicy::Refuse) was asked for.
    #[error(
        "subPath {subpath:?}: ENOENT: doesn't exist in the volume; hint: create it, or correct the subPath"
    )]
    Missing {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// The subPath doesn't exist, and can't be made because the volume is read-only.
    #[error(
        "subPath {subpath:?}: EROFS: doesn't exist, and the volume is read-only; \
         hint: create it while the volume is mounted read-write"
    )]
    ReadOnly {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// A component other than the last one isn't a directory.
    #[error(
        "subPath {subpath:?}: ENOTDIR: one of its parents isn't a directory; hint: correct the subPath"
    )]
    NotADirectory {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// The subPath was removed or replaced in each of several attempts.
    #[error(
        "subPath {subpath:?}: is replaced faster than it can be opened; \
         hint: retry; another pod or container is changing this volume"
    )]
    KeepsChanging {
        /// The subPath as it was given.
        subpath: PathBuf,
    },
    /// A system call failed for another reason.
    #[error("subPath {subpath:?}: {call}: {}{}", Name(*errno), hint_for_volume_error(*errno))]
    Call {
        /// Name of the system call.
        call: &'static str,
        /// The subPath as it was given.
        subpath: PathBuf,
        /// The error of the call.
        errno: Errno,
    },
}

impl SubpathError {
    pub(super) fn call(call: &'static str, subpath: &Path, errno: Errno) -> Self {
        let subpath = subpath.into();
        Self::Call {
            call,
            subpath,
            errno,
        }
    }

    /// Returns the error for a failed openat2(2) with [`super::INSIDE`].
    pub(super) fn from_lookup(subpath: &Path, errno: Errno) -> Self {
        let given = subpath.to_owned();
        match errno {
            Errno::NOENT => Self::Missing { subpath: given },
            Errno::XDEV => Self::Escapes { subpath: given },
            Errno::LOOP => Self::Loop { subpath: given },
            Errno::NOTDIR => Self::NotADirectory { subpath: given },
            errno => Self::call("openat2", subpath, errno),
        }
    }
}
