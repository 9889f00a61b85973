//! Errors of calls, and their gRPC statuses. CSI specifies the codes.

use std::error::Error;
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

/// An error of a volume's record or image in the data directory.
pub(crate) trait DataError: Error + Send + Sync + 'static {}

/// An error of an operation on the node.
pub(crate) trait NodeError: Error + Send + Sync + 'static {
    /// Returns whether the cause is the state of the volume, and not a failure of the node.
    fn is_volume_state(&self) -> bool {
        false
    }
}

/// The reason why a call isn't carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A field of the request is missing or invalid.
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(
        "volume {0}: does not exist; hint: check whether it was deleted, or created by a driver with another --data-dir"
    )]
    NoVolume(String),
    /// The volume is neither staged nor published at the path of the request.
    #[error("volume {volume}: it is not at {}; hint: {hint}", path.display())]
    NotAtPath {
        volume: String,
        path: PathBuf,
        hint: &'static str,
    },
    /// Another call for the volume is in progress.
    #[error("volume {0}: another call for it is in progress; hint: retry")]
    Pending(String),
    /// A call for the target path is in progress, for this or another volume.
    #[error("volume {volume}: another call for {} is in progress; hint: retry", path.display())]
    TargetPending { volume: String, path: PathBuf },
    /// A call on a share hasn't ended within its timeout.
    #[error(
        "volume {volume}: {work} {share} hasn't ended within {seconds} seconds; hint: the call is idempotent, and is \
         repeated until it succeeds; if it never does, check that the server answers and that no firewall is in between"
    )]
    ShareTimeout {
        volume: String,
        /// The work that takes so long: "mounting".
        work: &'static str,
        share: String,
        seconds: u64,
    },
    /// An earlier call has left work on a share behind, which hasn't ended.
    #[error(
        "volume {volume}: {work} {share} for an earlier call hasn't ended; hint: retry; if it never ends, check that the \
         server answers and that no firewall is in between"
    )]
    ShareBusy {
        volume: String,
        work: &'static str,
        share: String,
    },
    /// The volume, staging or publication exists, but differs from the request.
    #[error("volume {volume}: {message}")]
    Exists { volume: String, message: String },
    /// The state of the volume doesn't permit the call.
    #[error("volume {volume}: {message}")]
    State { volume: String, message: String },
    /// There is no size within the limits of the request.
    #[error("capacity_range: {0}")]
    Range(String),
    /// The space for volumes doesn't suffice.
    #[error(
        "{requested} bytes are requested, and {available} are left for {volumes}; hint: delete volumes, or raise {flag}"
    )]
    OutOfCapacity {
        requested: u64,
        available: u64,
        /// The volumes that share the space: "volumes".
        volumes: &'static str,
        /// The flag that limits the space.
        flag: &'static str,
    },
    /// The request asks for a volume on other nodes. Contains the name of this node.
    #[error(
        "accessibility_requirements: this driver creates volumes on node {0} only, which is not among the requested nodes"
    )]
    OtherNode(String),
    /// The page of a list doesn't exist.
    #[error("starting_token: {0:?} is not a token of ListVolumes; hint: list from the start")]
    InvalidToken(String),
    #[error(
        "{0} is left out (--without); hint: call only what NodeGetCapabilities and ControllerGetCapabilities list"
    )]
    CapabilityLeftOut(&'static str),
    /// The driver doesn't have this call.
    #[error(
        "this driver does not implement {0}; hint: call only what NodeGetCapabilities and ControllerGetCapabilities list"
    )]
    Unimplemented(&'static str),
    /// A call to `crust_ops` failed.
    #[error("volume {volume}: crust_ops: {}", failure.message())]
    Ops {
        volume: String,
        failure: client::CallFailure,
    },
    /// An error of the data directory, in a call that names no volume.
    #[error(transparent)]
    Data(Box<dyn Error + Send + Sync>),
    /// An error of the data directory, in a call that names this volume.
    #[error("volume {volume}: {source}")]
    VolumeData {
        volume: String,
        source: Box<dyn Error + Send + Sync>,
    },
    /// An operation on the node failed.
    #[error("volume {volume}: {source}")]
    Node {
        volume: String,
        source: Box<dyn Error + Send + Sync>,
        /// The result of [`NodeError::is_volume_state`].
        is_volume_state: bool,
    },
}

impl<E: DataError> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Data(Box::new(error))
    }
}

impl NodeError for DeviceError {}

/// The crust directory can't be read.
impl NodeError for FileError {}

impl NodeError for LoopError {
    fn is_volume_state(&self) -> bool {
        self.is_in_use()
    }
}

impl NodeError for ResizeError {
    /// After the code for this, kubelet starts the pod with the old size, and doesn't repeat the call.
    fn is_volume_state(&self) -> bool {
        matches!(
            self,
            Self::Growth(GrowthError::Refused { .. } | GrowthError::Unsupported { .. })
        )
    }
}

impl Refusal {
    pub(crate) fn field(field: &'static str, reason: impl std::fmt::Display) -> Self {
        FieldError::new(field, reason).into()
    }

    pub(crate) fn state(volume: &str, message: impl Into<String>) -> Self {
        let (volume, message) = (volume.to_owned(), message.into());
        Self::State { volume, message }
    }

    pub(crate) fn exists(volume: &str, message: impl Into<String>) -> Self {
        let (volume, message) = (volume.to_owned(), message.into());
        Self::Exists { volume, message }
    }

    /// Returns a function that converts the error of an operation on the node.
    pub(crate) fn node<E: NodeError>(volume: &str) -> impl FnOnce(E) -> Self {
        let volume = volume.to_owned();
        move |error| Self::Node {
            volume,
            is_volume_state: error.is_volume_state(),
            source: Box::new(error),
        }
    }

    /// Returns a function that converts the failure of a call to `crust_ops`.
    pub(crate) fn ops(volume: &str) -> impl FnOnce(client::CallFailure) -> Self {
        let volume = volume.to_owned();
        move |failure| Self::Ops { volume, failure }
    }

    /// Returns the gRPC code, and the reason, which must not change between versions.
    fn code_and_reason(&self) -> (Code, &'static str) {
        match self {
            Self::Field(_) => (Code::InvalidArgument, "INVALID_FIELD"),
            Self::NoVolume(_) => (Code::NotFound, "NO_VOLUME"),
            Self::NotAtPath { .. } => (Code::NotFound, "NOT_THERE"),
            Self::Pending(_) | Self::TargetPending { .. } | Self::ShareBusy { .. } => {
                (Code::Aborted, "PENDING")
            }
            Self::ShareTimeout { .. } => (Code::DeadlineExceeded, "SHARE_TIMEOUT"),
            Self::Exists { .. } => (Code::AlreadyExists, "OTHER_EXISTS"),
            Self::State { .. }
            | Self::Node {
                is_volume_state: true,
                ..
            } => (Code::FailedPrecondition, "VOLUME_STATE"),
            Self::Range(_) => (Code::OutOfRange, "CAPACITY_RANGE"),
            Self::OutOfCapacity { .. } => (Code::ResourceExhausted, "FULL"),
            Self::OtherNode(_) => (Code::ResourceExhausted, "TOPOLOGY"),
            Self::InvalidToken(_) => (Code::Aborted, "STARTING_TOKEN"),
            Self::CapabilityLeftOut(_) => (Code::Unimplemented, "LEFT_OUT"),
            Self::Unimplemented(_) => (Code::Unimplemented, "UNIMPLEMENTED"),
            Self::Ops { failure, .. } => (failure.code(), "CRUST_OPS"),
            Self::Data(_) | Self::VolumeData { .. } => (Code::Internal, "DATA"),
            Self::Node { .. } => (Code::Internal, "NODE"),
        }
    }

    /// Returns whether kubelet assumes after this error that a publish has certainly failed. kubelet then doesn't call
    /// `NodeUnpublishVolume`; after other errors it does. The rule is kubelet's `isFinalError`
    /// (`pkg/volume/csi/csi_client.go`).
    pub(crate) fn is_final(&self) -> bool {
        let (code, _) = self.code_and_reason();
        !matches!(
            code,
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::ResourceExhausted
                | Code::Aborted
        )
    }

    const fn volume(&self) -> Option<&String> {
        match self {
            Self::NoVolume(volume)
            | Self::Pending(volume)
            | Self::TargetPending { volume, .. }
            | Self::NotAtPath { volume, .. }
            | Self::ShareTimeout { volume, .. }
            | Self::ShareBusy { volume, .. }
            | Self::Exists { volume, .. }
            | Self::State { volume, .. }
            | Self::Ops { volume, .. }
            | Self::VolumeData { volume, .. }
            | Self::Node { volume, .. } => Some(volume),
            _ => None,
        }
    }

    /// Adds the volume to an error of the data directory.
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

    /// Returns the status of a call that names a volume.
    pub(crate) fn into_status_for(self, volume: &str) -> Status {
        if volume.is_empty() {
            return self.into_status();
        }
        self.with_volume(volume).to_status(Some(volume))
    }

    fn to_status(&self, requested: Option<&str>) -> Status {
        let (code, reason) = self.code_and_reason();
        let field = match self {
            Self::Field(FieldError { field, reason }) => Some((*field, reason.as_str())),
            _ => None,
        };
        let mut message = error_message(self);
        if let (Some(_), Some(volume)) = (field, requested) {
            message = format!("volume {volume}: {message}");
        }
        let reply = ErrorReply {
            code,
            reason,
            message: &message,
            volume: self.volume().map(String::as_str).or(requested),
            field,
        };
        reply.into_status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_uncertain_error_kubelet_unpublishes() {
        let volume = || "v".to_owned();
        let full = Refusal::OutOfCapacity {
            requested: 2,
            available: 1,
            volumes: "volumes",
            flag: "--capacity",
        };
        for (refusal, is_final) in [
            (Refusal::Pending(volume()), false),
            (full, false),
            (Refusal::NoVolume(volume()), true),
            (Refusal::state("v", "in use"), true),
            (Refusal::exists("v", "differs"), true),
            (Refusal::field("volume_id", "is required"), true),
        ] {
            assert_eq!(refusal.is_final(), is_final, "{refusal}");
        }
    }
}
