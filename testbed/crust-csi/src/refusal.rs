//! Errors of calls, and the statuses that callers get for them: CSI gives each condition a code.

use std::path::PathBuf;

use crust_blockfs::device::DeviceError;
use crust_blockfs::fstypes::GrowthError;
use crust_blockfs::loops::LoopError;
use crust_blockfs::resize::ResizeError;
use crust_serve::{ErrorReply, client};
use crust_state::error_message;
use crust_state::files::FileError;
use tonic::{Code, Status};

use crate::field_error::FieldError;
use crate::format::FormatError;
use crate::images::ImageError;
use crate::mounts::MountsError;
use crate::store::StoreError;
use crate::target_cleanup::CleanupError;

/// An error of the data directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// A volume's record.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A volume's image.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// A call that isn't carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A field of the request.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// There is no such volume.
    #[error(
        "volume {0}: there is none; hint: was it deleted, or made by a driver with another --data-dir?"
    )]
    NoVolume(String),
    /// It isn't there.
    #[error("volume {volume}: it isn't at {}; hint: {hint}", path.display())]
    NotAtPath {
        volume: String,
        /// The path where it should be.
        path: PathBuf,
        /// The next step.
        hint: &'static str,
    },
    /// Another call for the volume is under way.
    #[error("volume {0}: another call for it is under way; hint: try again")]
    Pending(String),
    /// Another volume's call for the target path is.
    #[error("volume {volume}: another call for {} is under way; hint: try again", path.display())]
    TargetPending {
        volume: String,
        /// The target path.
        path: PathBuf,
    },
    /// There is such a volume or publication, and it is different.
    #[error("volume {volume}: {what}")]
    Exists {
        volume: String,
        /// The difference.
        what: String,
    },
    /// Not as things stand.
    #[error("volume {volume}: {what}")]
    State {
        volume: String,
        /// How they stand, and what to do.
        what: String,
    },
    /// No size fits.
    #[error("capacity_range: {0}")]
    Range(String),
    /// There isn't that much room.
    #[error(
        "{wanted} bytes are asked for, and {available} are left for volumes; hint: delete some, or raise --capacity"
    )]
    OutOfCapacity {
        /// The bytes that are asked for.
        wanted: u64,
        /// The bytes that there are.
        available: u64,
    },
    /// The volume has to be on another node.
    #[error(
        "accessibility_requirements: volumes are on node {0} here, which is none of those asked for"
    )]
    OtherNode(String),
    /// A page that there isn't.
    #[error("starting_token: {0:?} is none of ListVolumes'; hint: list from the start")]
    InvalidToken(String),
    /// The capability was left out.
    #[error("{0} is left out (--without); hint: what the driver can do, NodeGetCapabilities tells")]
    CapabilityLeftOut(&'static str),
    /// `crust_ops` has refused, or isn't there.
    #[error("volume {volume}: crust_ops: {}", failure.message())]
    Ops {
        volume: String,
        /// Its answer, or how it was missed.
        failure: client::CallFailure,
    },
    /// A record or an image, of whichever volume.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Those of the volume that a call is about, or what it needs of others'.
    #[error("volume {volume}: {source}")]
    VolumeData {
        volume: String,
        /// The error.
        source: DataError,
    },
    /// Something of a volume on this node.
    #[error("volume {volume}: {source}")]
    Node {
        volume: String,
        /// The error.
        source: NodeError,
    },
}

/// Something on this node that can't be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// About its loop device.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// About any device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// About its file system.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// About a mount.
    #[error(transparent)]
    Mounts(#[from] MountsError),
    /// About a target directory.
    #[error(transparent)]
    Clear(#[from] CleanupError),
    /// About its file system's size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
    /// About the crust directory.
    #[error(transparent)]
    Crust(#[from] FileError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Data(error.into())
    }
}

impl From<ImageError> for Refusal {
    fn from(error: ImageError) -> Self {
        Self::Data(error.into())
    }
}

impl Refusal {
    /// A field that can't be used.
    pub(crate) fn field(field: &'static str, reason: impl std::fmt::Display) -> Self {
        FieldError::new(field, reason).into()
    }

    /// Not as things stand.
    pub(crate) fn state(volume: &str, what: impl Into<String>) -> Self {
        let (volume, what) = (volume.to_owned(), what.into());
        Self::State { volume, what }
    }

    /// Another one is there.
    pub(crate) fn exists(volume: &str, what: impl Into<String>) -> Self {
        let (volume, what) = (volume.to_owned(), what.into());
        Self::Exists { volume, what }
    }

    /// Returns the refusal for an error of a volume on this node.
    pub(crate) fn node<E: Into<NodeError>>(volume: &str) -> impl FnOnce(E) -> Self {
        let volume = volume.to_owned();
        move |error| Self::Node {
            volume,
            source: error.into(),
        }
    }

    /// Returns the refusal for an error of `crust_ops`.
    pub(crate) fn ops(volume: &str) -> impl FnOnce(client::CallFailure) -> Self {
        let volume = volume.to_owned();
        move |failure| Self::Ops { volume, failure }
    }

    /// The code, and a reason that stays the same over versions.
    fn code_and_reason(&self) -> (Code, &'static str) {
        match self {
            Self::Field(_) => (Code::InvalidArgument, "INVALID_FIELD"),
            Self::NoVolume(_) => (Code::NotFound, "NO_VOLUME"),
            Self::NotAtPath { .. } => (Code::NotFound, "NOT_THERE"),
            Self::Pending(_) | Self::TargetPending { .. } => (Code::Aborted, "PENDING"),
            Self::Exists { .. } => (Code::AlreadyExists, "OTHER_EXISTS"),
            Self::State { .. } => (Code::FailedPrecondition, "VOLUME_STATE"),
            Self::Range(_) => (Code::OutOfRange, "CAPACITY_RANGE"),
            Self::OutOfCapacity { .. } => (Code::ResourceExhausted, "FULL"),
            Self::OtherNode(_) => (Code::ResourceExhausted, "TOPOLOGY"),
            Self::InvalidToken(_) => (Code::Aborted, "STARTING_TOKEN"),
            Self::CapabilityLeftOut(_) => (Code::Unimplemented, "LEFT_OUT"),
            Self::Ops { failure, .. } => (failure.code(), "CRUST_OPS"),
            Self::Data(_) | Self::VolumeData { .. } => (Code::Internal, "DATA"),
            Self::Node { source, .. } if source.is_state() => {
                (Code::FailedPrecondition, "VOLUME_STATE")
            }
            Self::Node { .. } => (Code::Internal, "NODE"),
        }
    }

    const fn volume(&self) -> Option<&String> {
        match self {
            Self::NoVolume(volume)
            | Self::Pending(volume)
            | Self::TargetPending { volume, .. }
            | Self::NotAtPath { volume, .. }
            | Self::Exists { volume, .. }
            | Self::State { volume, .. }
            | Self::Ops { volume, .. }
            | Self::VolumeData { volume, .. }
            | Self::Node { volume, .. } => Some(volume),
            _ => None,
        }
    }

    /// Adds the volume to a refusal that doesn't name one.
    fn with_volume(self, volume: &str) -> Self {
        match self {
            Self::Data(source) => Self::VolumeData {
                volume: volume.to_owned(),
                source,
            },
            other => other,
        }
    }

    /// Returns the status that the caller gets.
    pub(crate) fn into_status(self) -> Status {
        self.to_status(None)
    }

    /// Returns the status for a caller that has asked about a volume.
    pub(crate) fn into_status_for(self, volume: &str) -> Status {
        if volume.is_empty() {
            return self.into_status();
        }
        self.with_volume(volume).to_status(Some(volume))
    }

    fn to_status(&self, asked: Option<&str>) -> Status {
        let (code, reason) = self.code_and_reason();
        let field = match self {
            Self::Field(FieldError { field, reason }) => Some((*field, reason.as_str())),
            _ => None,
        };
        let failure = ErrorReply {
            code,
            reason,
            message: &error_message(self),
            volume: self.volume().map(String::as_str).or(asked),
            field,
        };
        failure.into_status()
    }
}

impl NodeError {
    /// Whether it is how things stand, and not a failure of the node's.
    fn is_state(&self) -> bool {
        match self {
            Self::Loop(error) => error.is_in_use(),
            Self::Format(error) => error.is_volume_state(),
            Self::Mounts(error) => error.is_state(),
            Self::Clear(error) => error.is_state(),
            // kubelet lets the pod start with the old size, and doesn't ask again and again.
            Self::Resize(error) => matches!(
                error,
                ResizeError::Growth(GrowthError::Refused { .. } | GrowthError::Unsupported { .. })
            ),
            Self::Device(_) | Self::Crust(_) => false,
        }
    }
}
