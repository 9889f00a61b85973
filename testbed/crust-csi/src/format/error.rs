//! Errors of the preparation of a volume for its mount.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crust_blockfs::device::{Device, DeviceError};
use crust_blockfs::loops::LoopError;

use super::decide::FormatRefusal;
use super::fstype::Fstype;
use super::run::RunError;

/// An error of the preparation of a volume for its mount. The volume is unchanged, unless fsck had begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormatError {
    /// About the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// About the image.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// About a program.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The image can't be looked at.
    #[error("image {image:?}: lstat: {source}")]
    Image {
        /// Its path.
        image: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The device isn't the volume's.
    #[error(
        "device {device:?}: doesn't show {image:?}; hint: was it detached meanwhile? stage the volume again"
    )]
    DeviceMismatch {
        device: PathBuf,
        /// The image that it should show.
        image: PathBuf,
    },
    /// The image was cut, or has grown.
    #[error(
        "device {device:?}: has {device_size} bytes, and its image {image:?} has {image_size}; \
         hint: an image that was cut has lost data: restore it"
    )]
    SizeMismatch {
        device: PathBuf,
        /// In bytes.
        device_size: u64,
        image: PathBuf,
        /// In bytes.
        image_size: u64,
    },
    /// Signatures can't be told.
    #[error(
        "device {device:?}: blkid can't tell what is on it, so that it isn't formatted: {said}; hint: does the disk have errors?"
    )]
    ProbeFailed {
        device: PathBuf,
        /// How blkid ended, and what it said.
        said: String,
    },
    /// It can't be read whether it is empty.
    #[error(
        "device {device:?}: can't be read, so that it isn't formatted: {why}; hint: does the disk have errors?"
    )]
    Unreadable {
        device: PathBuf,
        /// The place and the reason.
        why: String,
    },
    /// There is something.
    #[error(
        "device {device:?}: blkid finds nothing on it, and yet there are data from byte {at} on, so that it isn't formatted \
         as {wanted}; hint: somebody may need them: a file system that was damaged is brought back by fsck or from a \
         backup, a block volume is asked for as one; for an empty volume, create another one"
    )]
    UnknownData {
        device: PathBuf,
        /// The file system that was asked for.
        wanted: Fstype,
        /// The position of the first byte that isn't 0.
        at: u64,
    },
    /// There is something else.
    #[error(
        "device {device:?}: holds {found}, and {wanted} was asked for; hint: ask for {found}, or take another volume"
    )]
    OtherContents {
        device: PathBuf,
        /// The contents, as blkid calls them.
        found: String,
        /// The file system that was asked for.
        wanted: Fstype,
    },
    /// There are partitions.
    #[error(
        "device {device:?}: holds a partition table ({table}), and {wanted} was asked for; \
         hint: was it used as a block volume? it can be only that"
    )]
    PartitionTable {
        device: PathBuf,
        /// The type of the partition table, as blkid calls it.
        table: String,
        /// The file system that was asked for.
        wanted: Fstype,
    },
    /// There are two things.
    #[error(
        "device {device:?}: holds the signatures of more than one file system, so that it can't be told which it is; \
         hint: `wipefs {}` lists them", device.display()
    )]
    Several { device: PathBuf },
    /// Nothing can be made there.
    #[error(
        "device {device:?}: is empty, and can only be read; hint: stage the volume once to be written to"
    )]
    EmptyAndReadOnly { device: PathBuf },
    /// mkfs would refuse.
    #[error(
        "device {device:?}: has {size} bytes, and {wanted} needs {least}; hint: a larger volume, or ext4"
    )]
    TooSmall {
        device: PathBuf,
        /// The file system that was asked for.
        wanted: Fstype,
        /// In bytes.
        size: u64,
        /// In bytes.
        least: u64,
    },
    /// Somebody has it.
    #[error("device {device:?}: is in use, so that it isn't formatted; hint: `lsblk {}` may show by what", device.display())]
    InUse { device: PathBuf },
    /// fsck has given up.
    #[error(
        "device {device:?}: fsck found errors that it can't correct by itself: {said}; hint: run fsck by hand"
    )]
    Uncorrected {
        device: PathBuf,
        /// The output of fsck.
        said: String,
    },
    /// A program failed.
    #[error("{program} {}: {status}: {said}", place.display())]
    ProgramFailed {
        program: &'static str,
        /// The device; the file that is to be the image.
        place: PathBuf,
        /// How it ended.
        status: ExitStatus,
        /// Its output.
        said: String,
    },
    /// It isn't known whether what was made is on the disk.
    #[error("fsync {}: {source}; hint: does the disk have errors, or no room?", place.display())]
    Sync {
        /// The file that is to be the image.
        place: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// mkfs says that it did.
    #[error(
        "{}: after mkfs it holds {found} instead of {wanted}; hint: does the disk have errors?", place.display()
    )]
    WrongResult {
        /// The file that is to be the image.
        place: PathBuf,
        /// The file system that was made.
        wanted: Fstype,
        /// The contents that were found.
        found: String,
    },
}

impl FormatError {
    pub(super) fn of(device: &Device, wanted: Fstype, reason: FormatRefusal) -> Self {
        let device = device.path().to_owned();
        match reason {
            FormatRefusal::OtherContents(found) => Self::OtherContents {
                device,
                found,
                wanted,
            },
            FormatRefusal::PartitionTable(table) => Self::PartitionTable {
                device,
                table,
                wanted,
            },
            FormatRefusal::Several => Self::Several { device },
            FormatRefusal::UnknownData(at) => Self::UnknownData { device, wanted, at },
            FormatRefusal::ProbeFailed(said) => Self::ProbeFailed { device, said },
            FormatRefusal::Unreadable(why) => Self::Unreadable { device, why },
        }
    }

    /// Whether it is the volume's state, which trying again doesn't change; else something failed.
    pub(crate) fn is_volume_state(&self) -> bool {
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
