//! Errors of preparing a volume for its mount.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crust_blockfs::device::{Device, DeviceError};
use crust_blockfs::loops::LoopError;

use super::decide::FormatRefusal;
use super::fstype::Fstype;
use super::run::RunError;
use crate::refusal::NodeError;

/// The failure to prepare a volume for its mount. The volume is unchanged, unless fsck has run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Loop(#[from] LoopError),
    #[error(transparent)]
    Run(#[from] RunError),
    /// The size of the image can't be read.
    #[error("image {image:?}: lstat: {source}")]
    Image { image: PathBuf, source: io::Error },
    #[error(
        "device {device:?}: image {image:?} is not attached to it; hint: stage the volume again, because the image may have been detached meanwhile"
    )]
    DeviceMismatch { device: PathBuf, image: PathBuf },
    /// The image was truncated or extended. Sizes are in bytes.
    #[error(
        "device {device:?}: has {device_size} bytes, but its image {image:?} has {image_size}; \
         hint: restore the image from a backup, because a truncated image has lost data"
    )]
    SizeMismatch {
        device: PathBuf,
        device_size: u64,
        image: PathBuf,
        image_size: u64,
    },
    #[error(
        "device {device:?}: blkid can't determine its contents, so it isn't formatted: {output}; hint: check the disk for errors"
    )]
    ProbeFailed {
        device: PathBuf,
        /// The exit status and the output of blkid.
        output: String,
    },
    /// The device can't be read, so it is unknown whether it is empty.
    #[error(
        "device {device:?}: can't be read, so it isn't formatted: {reason}; hint: check the disk for errors"
    )]
    Unreadable {
        device: PathBuf,
        /// The position and the cause.
        reason: String,
    },
    /// The device has data without a known signature.
    #[error(
        "device {device:?}: blkid finds no signature, but there is data from byte {at} on, so it isn't formatted \
         as {requested}; hint: repair a damaged file system with fsck or restore it from a backup, request a block volume \
         as such, or create another volume if the data is not needed"
    )]
    UnknownData {
        device: PathBuf,
        /// The file system that was asked for.
        requested: Fstype,
        /// The position of the first byte that is not 0.
        at: u64,
    },
    /// The device has another file system or signature.
    #[error(
        "device {device:?}: holds {found}, but {requested} was requested; hint: request {found}, or use another volume"
    )]
    OtherContents {
        device: PathBuf,
        /// The contents, as blkid calls them.
        found: String,
        /// The file system that was asked for.
        requested: Fstype,
    },
    #[error(
        "device {device:?}: holds a partition table ({table}), but {requested} was requested; \
         hint: request a block volume if it was used as such, or use another volume"
    )]
    PartitionTable {
        device: PathBuf,
        /// The type of the partition table, as blkid calls it.
        table: String,
        /// The file system that was asked for.
        requested: Fstype,
    },
    #[error(
        "device {device:?}: holds the signatures of more than one file system; \
         hint: list them with `wipefs {}`", device.display()
    )]
    Several { device: PathBuf },
    /// The volume has no file system, and none can be made.
    #[error(
        "device {device:?}: is empty and read-only; hint: stage the volume once for writing, so that it gets a file system"
    )]
    EmptyAndReadOnly { device: PathBuf },
    /// The device is too small for the file system. Sizes are in bytes.
    #[error(
        "device {device:?}: has {size} bytes, but {requested} needs {least}; hint: use a larger volume, or ext4"
    )]
    TooSmall {
        device: PathBuf,
        /// The file system that was asked for.
        requested: Fstype,
        size: u64,
        least: u64,
    },
    /// The device is mounted, or open exclusively.
    #[error("device {device:?}: is in use, so it isn't formatted; hint: find the user with `lsblk {}`", device.display())]
    InUse { device: PathBuf },
    #[error(
        "device {device:?}: fsck found errors that it can't correct without confirmation: {output}; hint: run fsck by hand"
    )]
    Uncorrected { device: PathBuf, output: String },
    #[error("{program} {}: {status}: {output}", path.display())]
    ProgramFailed {
        program: &'static str,
        /// The device, or the new file that is to replace the image.
        path: PathBuf,
        status: ExitStatus,
        output: String,
    },
    /// The new file system may not be on disk.
    #[error("fsync {}: {source}; hint: check the disk for errors, and its free space", path.display())]
    Sync {
        /// The new file that is to replace the image.
        path: PathBuf,
        source: io::Error,
    },
    /// mkfs succeeded, but its file system isn't there.
    #[error(
        "{}: after mkfs it holds {found} instead of {requested}; hint: check the disk for errors", path.display()
    )]
    WrongResult {
        /// The new file that is to replace the image.
        path: PathBuf,
        /// The file system that mkfs should have made.
        requested: Fstype,
        found: String,
    },
}

impl FormatError {
    pub(super) fn from_refusal(device: &Device, requested: Fstype, reason: FormatRefusal) -> Self {
        let device = device.path().to_owned();
        match reason {
            FormatRefusal::OtherContents(found) => Self::OtherContents {
                device,
                found,
                requested,
            },
            FormatRefusal::PartitionTable(table) => Self::PartitionTable {
                device,
                table,
                requested,
            },
            FormatRefusal::Several => Self::Several { device },
            FormatRefusal::UnknownData(at) => Self::UnknownData {
                device,
                requested,
                at,
            },
            FormatRefusal::ProbeFailed(output) => Self::ProbeFailed { device, output },
            FormatRefusal::Unreadable(reason) => Self::Unreadable { device, reason },
        }
    }
}

impl NodeError for FormatError {
    fn is_volume_state(&self) -> bool {
        match self {
            Self::Loop(error) => error.is_in_use(),
            Self::Run(error) => matches!(error, RunError::Locked { .. }),
            Self::SizeMismatch { .. }
            | Self::UnknownData { .. }
            | Self::OtherContents { .. }
            | Self::PartitionTable { .. }
            | Self::Several { .. }
            | Self::EmptyAndReadOnly { .. }
            | Self::TooSmall { .. }
            | Self::InUse { .. }
            | Self::Uncorrected { .. } => true,
            Self::Device(_)
            | Self::Image { .. }
            | Self::DeviceMismatch { .. }
            | Self::ProbeFailed { .. }
            | Self::Unreadable { .. }
            | Self::ProgramFailed { .. }
            | Self::Sync { .. }
            | Self::WrongResult { .. } => false,
        }
    }
}
