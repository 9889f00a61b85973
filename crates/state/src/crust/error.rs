//! The error of an entry of the crust directory.

use std::path::PathBuf;

use crate::files::FileError;
use crate::info::InfoError;
use crate::target::TargetPath;

/// The error of an entry that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// A file or directory can't be read or written, or isn't root's.
    #[error(transparent)]
    File(#[from] FileError),
    /// The entry's directory is there, its `mountInfo.json` isn't.
    #[error("{} is missing; hint: is crust_ops, or the CSI driver, running? stage the volume again", .0.display())]
    NoInfo(PathBuf),
    /// `mountInfo.json` can't be understood.
    #[error("{}: {source}", path.display())]
    Info {
        /// The file.
        path: PathBuf,
        /// The field and the reason.
        source: InfoError,
    },
    /// `metadata.targetPath` isn't the path that the entry is named after.
    #[error("{}: field `metadata.targetPath`: {target} is another volume's path; hint: stage the volume again", path.display())]
    OtherTarget {
        /// The file.
        path: PathBuf,
        /// The path in the field.
        target: TargetPath,
    },
    /// One of the two entries of a volume behind a symbolic link is missing or differs.
    #[error("{} is missing or differs from its twin {}: the volume is only half staged; hint: stage it again", missing.display(), twin.display())]
    HalfStaged {
        /// The entry that should be there.
        missing: PathBuf,
        /// The one that is: of the target path as given, or of its resolved form.
        twin: PathBuf,
    },
    /// The target path leads to a directory that is staged as another volume.
    #[error(
        "{target} leads to the same directory as {other}, which is another staged volume; hint: was a symbolic link changed? unstage {other}, or stage by that path"
    )]
    OtherVolume {
        /// The path to be staged.
        target: TargetPath,
        /// The target path of the other volume.
        other: TargetPath,
    },
    /// Staged in the crust directory and for Kata Containers, with another content.
    #[error("{} and {} say different things; hint: stage the volume in one of the two layouts", crust.display(), kata.display())]
    TwoLayouts {
        /// The crust directory's file.
        crust: PathBuf,
        /// Kata's file.
        kata: PathBuf,
    },
    /// `runcrust.json` can't be understood.
    #[error("{}: {source}; hint: end the pods or containers that use the volume, then unstage it, which removes the file", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// `target.json` can't be understood.
    #[error("{}: {source}; hint: stage the volume again once it isn't in use", path.display())]
    Target {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// `resize.json` can't be understood.
    #[error("{}: {source}; hint: ask for the resize again, which replaces it", path.display())]
    Resize {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
}
