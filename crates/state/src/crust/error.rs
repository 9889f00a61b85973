//! The error of an entry of the crust directory.

use std::path::PathBuf;

use crate::files::FileError;
use crate::info::InfoError;
use crate::target::TargetPath;

/// The error of an entry that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// A file or directory can't be read or written, or users other than root can change it.
    #[error(transparent)]
    File(#[from] FileError),
    /// The entry has no `mountInfo.json`.
    #[error("{} is missing; hint: check that crust_ops or the CSI driver is running, and stage the volume again", .0.display())]
    NoInfo(PathBuf),
    /// `mountInfo.json` can't be parsed.
    #[error("{}: {source}", path.display())]
    Info { path: PathBuf, source: InfoError },
    /// `metadata.targetPath` isn't the path that the entry is named after.
    #[error("{}: field `metadata.targetPath`: {target} is another volume's path; hint: stage the volume again", path.display())]
    OtherTarget {
        path: PathBuf,
        /// The value of the field.
        target: TargetPath,
    },
    /// One of the two entries of a volume behind a symbolic link is missing, or belongs to another volume.
    #[error("{} is missing, or belongs to another volume than {}: the volume is only half staged; hint: stage it again", missing.display(), present.display())]
    HalfStaged {
        missing: PathBuf,
        /// The entry that exists: either the entry of the target path or the entry of the resolved path.
        present: PathBuf,
    },
    /// The target path leads to a directory that is staged as another volume.
    #[error(
        "{target} leads to the same directory as {other}, which is another staged volume; hint: unstage {other}, or stage by that path; a symbolic link may have been changed"
    )]
    OtherVolume {
        /// The target path of the volume to be staged.
        target: TargetPath,
        /// The target path of the other volume.
        other: TargetPath,
    },
    /// The volume is staged in the crust directory and for Kata Containers, with different contents.
    #[error("{} and {} describe different volumes; hint: stage the volume in one of the two layouts", crust.display(), kata.display())]
    TwoLayouts {
        /// The `mountInfo.json` in the crust directory.
        crust: PathBuf,
        /// The `mountInfo.json` in Kata's directory.
        kata: PathBuf,
    },
    /// `runcrust.json` can't be parsed.
    #[error("{}: {source}; hint: stop the pods and containers that use the volume, then unstage it, which removes the file", path.display())]
    Record {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// `target.json` can't be parsed.
    #[error("{}: {source}; hint: stage the volume again once it isn't in use", path.display())]
    Target {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// `resize.json` can't be parsed.
    #[error("{}: {source}; hint: ask for the resize again, which replaces it", path.display())]
    Resize {
        path: PathBuf,
        source: serde_json::Error,
    },
}
