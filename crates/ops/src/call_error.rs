//! Errors of gRPC calls, and their statuses.

use std::time::Duration;

use crust_serve::ErrorReply;
use crust_state::TargetPath;
use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::state_directory::StateError;
use crust_volume::{GrpcCode, VolumeError};
use tonic::{Code, Status};

use crate::cli::CliError;

/// An error of a gRPC call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// A field of the request is invalid.
    #[error("{field}: {reason}")]
    Field {
        /// The field's name in the .proto file.
        field: &'static str,
        reason: String,
    },
    /// An operation on the volume failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A call to the runtime's CLI for a volume failed.
    #[error("volume {volume}: {source}")]
    Cli { volume: String, source: CliError },
    /// A call to the runtime's CLI that concerns no volume failed.
    #[error("{0}")]
    Runtime(#[from] CliError),
    /// The runtime's directories or records can't be read.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An earlier call for the volume is still running.
    #[error(
        "volume {volume}: an earlier call for it is still running after {} s; hint: retry later; if the \
         error persists, the device hangs: find the processes in state D that wait for it on the node with \
         `ps -eo pid,stat,wchan,args`",
        after.as_secs()
    )]
    Held {
        volume: String,
        /// The time that this call has waited.
        after: Duration,
    },
    /// A thread of this call didn't end before the timeout.
    #[error(
        "the call is still running after {} s; hint: retry later; if the error persists, a device of the node \
         hangs: find the processes in state D that wait for it with `ps -eo pid,stat,wchan,args`", after.as_secs()
    )]
    Hangs { after: Duration },
    /// Nothing is staged at the target path.
    #[error(
        "volume {0}: nothing is staged at its target path; hint: stage it first through the CSI driver \
         (RuntimeStageVolume)"
    )]
    NotStaged(String),
    /// No runtime has the volume mounted.
    #[error(
        "volume {0}: it isn't mounted yet: no container of its pod has started, or all have ended; hint: \
         retry once the pod runs; see the pod's events for what it waits for"
    )]
    NotInUse(String),
    /// The sandbox has no volume from the device.
    #[error(
        "sandbox {sandbox}: it has no volume from {device}; hint: publish the volume first (RuntimePublishVolume)"
    )]
    NoSuchVolume { sandbox: String, device: String },
}

impl CallError {
    pub(crate) fn field(field: &'static str, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        Self::Field { field, reason }
    }

    /// Converts an error of the runtime's CLI for a volume.
    pub(crate) fn cli(volume: String) -> impl FnOnce(CliError) -> Self {
        move |mut source| {
            // The runtime's own messages name the volume already.
            let prefix = format!("volume {volume}: ");
            if let CliError::Refused { message, .. } = &mut source
                && let Some(rest) = message.strip_prefix(&prefix)
            {
                *message = rest.to_owned();
            }
            Self::Cli { volume, source }
        }
    }

    /// Returns the gRPC code, and the `reason` of the error details, which is the same in all versions.
    fn code_and_reason(&self) -> (Code, &'static str) {
        match self {
            Self::Field { .. } => (Code::InvalidArgument, "INVALID_FIELD"),
            Self::Volume(error) => volume_code_and_reason(error.code()),
            Self::Cli { source, .. } | Self::Runtime(source) => cli_code_and_reason(source),
            Self::Node(_) => (Code::Internal, "NODE"),
            Self::Held { .. } | Self::Hangs { .. } => (Code::DeadlineExceeded, "DEADLINE"),
            Self::NotStaged(_) => (Code::NotFound, "NOT_STAGED"),
            Self::NotInUse(_) => (Code::FailedPrecondition, "NOT_IN_USE"),
            Self::NoSuchVolume { .. } => (Code::NotFound, "NOT_IN_SANDBOX"),
        }
    }

    /// Returns the status for the caller. `volume` is the target path in the request.
    pub(crate) fn into_status(self, volume: Option<&str>) -> Status {
        let (code, reason) = self.code_and_reason();
        let target = volume.and_then(|path| TargetPath::new(path).ok());
        let volume_name = target.map(|target| target.volume_name());
        let text = match (&self, volume_name) {
            // An invalid target path isn't repeated as the volume's name.
            (Self::Field { field, .. }, _) if field.ends_with("target_path") => self.to_string(),
            (Self::Field { .. } | Self::Hangs { .. } | Self::Node(_), Some(name)) => {
                format!("volume {name}: {self}")
            }
            _ => self.to_string(),
        };
        let field = match &self {
            Self::Field { field, reason } => Some((*field, &**reason)),
            _ => None,
        };
        let failure = ErrorReply {
            code,
            reason,
            message: &text,
            volume,
            field,
        };
        failure.into_status()
    }
}

fn volume_code_and_reason(code: GrpcCode) -> (Code, &'static str) {
    match code {
        GrpcCode::NotFound => (Code::NotFound, "NOT_STAGED"),
        GrpcCode::FailedPrecondition => (Code::FailedPrecondition, "VOLUME_STATE"),
        GrpcCode::InvalidArgument => (Code::InvalidArgument, "INVALID_VOLUME"),
        GrpcCode::OutOfRange => (Code::OutOfRange, "INVALID_VOLUME"),
        GrpcCode::ResourceExhausted => (Code::ResourceExhausted, "FULL"),
        GrpcCode::Unimplemented => (Code::Unimplemented, "UNSUPPORTED"),
        GrpcCode::Internal => (Code::Internal, "NODE"),
    }
}

fn cli_code_and_reason(error: &CliError) -> (Code, &'static str) {
    match error {
        CliError::Refused { code, .. } => (*code, "RUNTIME"),
        CliError::Ending => (Code::Unavailable, "ENDING"),
        CliError::Timeout { .. } => (Code::DeadlineExceeded, "RUNTIME_CLI_TIMEOUT"),
        CliError::Untrusted(_) => (Code::Internal, "RUNTIME_CLI_UNTRUSTED"),
        CliError::Start { .. } | CliError::InvalidAnswer { .. } => (Code::Internal, "RUNTIME_CLI"),
    }
}

/// An error of the runtime's directories and records, or of this process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The runtime's records can't be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// A directory of the runtime can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The entry of a staged volume can't be read.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A thread of this process panicked.
    #[error("a thread of crust_ops failed: {0}")]
    Thread(#[from] tokio::task::JoinError),
}
