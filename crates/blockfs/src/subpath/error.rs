//! The errors of opening or creating a subPath.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::errno::Name;
use crate::fstypes::hint_for_volume_error;

/// Each names the subPath as the pod's author wrote it, and nothing else: these sentences reach the
/// workload's side.
#[derive(Debug, thiserror::Error)]
pub enum SubpathError {
    /// It starts with `/`.
    #[error("subPath {subpath:?}: is absolute; hint: it is relative to the volume's root")]
    Absolute {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// A component is `..`.
    #[error("subPath {subpath:?}: contains \"..\"; hint: name the directory without it")]
    ParentDirectory {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// No path contains one.
    #[error("subPath: contains a NUL byte")]
    Nul,
    /// A link, or a mount, on the way.
    #[error(
        "subPath {subpath:?}: leads out of the volume; \
         hint: an absolute link, or one that climbs above the volume's root, is never followed"
    )]
    Escapes {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// Links that lead round and round.
    #[error("subPath {subpath:?}: too many symbolic links; hint: does a link lead to itself?")]
    Loop {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// A link to something that isn't there, where nothing can be made either.
    #[error("subPath {subpath:?}: is or contains a link to something that doesn't exist")]
    DanglingLink {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// Nothing is there, and nothing is to be made.
    #[error("subPath {subpath:?}: ENOENT: doesn't exist in the volume")]
    Missing {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// Nothing is there, and nothing can be made.
    #[error(
        "subPath {subpath:?}: EROFS: doesn't exist, and the volume is read-only; \
         hint: create it while the volume is mounted read-write"
    )]
    ReadOnly {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// A component on the way is a file.
    #[error("subPath {subpath:?}: ENOTDIR: one of its parents isn't a directory")]
    NotADirectory {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// It was made and gone again, over and over.
    #[error(
        "subPath {subpath:?}: is replaced faster than it can be opened; \
         hint: another pod or container is at work in this volume; try again"
    )]
    KeepsChanging {
        /// The path as it was given.
        subpath: PathBuf,
    },
    /// A system call failed otherwise.
    #[error("subPath {subpath:?}: {call}: {}{}", Name(*errno), hint_for_volume_error(*errno))]
    Call {
        /// The call.
        call: &'static str,
        /// The path as it was given.
        subpath: PathBuf,
        /// The error number.
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

    /// Returns the error for an errno of openat2(2) with [`super::INSIDE`].
    pub(super) fn of_lookup(subpath: &Path, errno: Errno) -> Self {
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
