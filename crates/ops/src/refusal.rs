//! Errors of calls, and the statuses that callers get for them.

use std::time::Duration;

use crust_serve::ErrorReply;
use crust_state::TargetPath;
use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::state_directory::StateError;
use crust_volume::{GrpcCode, VolumeError};
use tonic::{Code, Status};

use crate::cli::CliError;

/// A call that isn't carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A field of the request.
    #[error("{field}: {reason}")]
    Field {
        /// Its name in the .proto file.
        field: &'static str,
        /// The flaw of its value.
        reason: String,
    },
    /// The volume's own.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The runtime's, or about it.
    #[error("volume {volume}: {source}")]
    Cli {
        volume: String,
        /// The error.
        source: CliError,
    },
    /// About the runtime, and no volume.
    #[error("{0}")]
    Runtime(#[from] CliError),
    /// The node isn't as it should be.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An earlier call has the volume.
    #[error(
        "volume {volume}: an earlier call for it is still running after {} s; hint: retry later; if it \
         stays so, its device hangs: `ps -eo pid,stat,wchan,args` on the node shows what waits for it in state D",
        after.as_secs()
    )]
    Held {
        volume: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A thread of this call waits in the kernel.
    #[error(
        "the call is still running after {} s; hint: retry later; if it stays so, a device of the node \
         hangs, and `ps -eo pid,stat,wchan,args` shows what waits for it in state D", after.as_secs()
    )]
    Hangs {
        /// The limit.
        after: Duration,
    },
    /// Nothing is staged at the target path.
    #[error(
        "volume {0}: nothing is staged at its target path; hint: the CSI driver has to publish it first (RuntimeStageVolume)"
    )]
    NotStaged(String),
    /// No runtime has it mounted.
    #[error(
        "volume {0}: it isn't mounted yet: no container of its pod has started, or all have ended; hint: \
         retry once the pod runs; its events say what it waits for"
    )]
    NotInUse(String),
    /// No volume of a sandbox is on a device.
    #[error(
        "sandbox {sandbox}: it has no volume from {device}; hint: RuntimePublishVolume comes first"
    )]
    NoSuchVolume { sandbox: String, device: String },
}

impl Refusal {
    /// A field that can't be used.
    pub(crate) fn field(field: &'static str, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        Self::Field { field, reason }
    }

    /// Returns the refusal for an error of a volume's runtime.
    pub(crate) fn cli(volume: String) -> impl FnOnce(CliError) -> Self {
        move |mut source| {
            // The runtime's own sentences name it already.
            let start = format!("volume {volume}: ");
            if let CliError::Refused { message, .. } = &mut source
                && let Some(rest) = message.strip_prefix(&start)
            {
                *message = rest.to_owned();
            }
            Self::Cli { volume, source }
        }
    }

    /// Returns the code, and a reason that stays the same over versions.
    fn kind(&self) -> (Code, &'static str) {
        match self {
            Self::Field { .. } => (Code::InvalidArgument, "INVALID_FIELD"),
            Self::Volume(error) => of_volume(error.code()),
            Self::Cli { source, .. } | Self::Runtime(source) => of_cli(source),
            Self::Node(_) => (Code::Internal, "NODE"),
            Self::Held { .. } | Self::Hangs { .. } => (Code::DeadlineExceeded, "DEADLINE"),
            Self::NotStaged(_) => (Code::NotFound, "NOT_STAGED"),
            Self::NotInUse(_) => (Code::FailedPrecondition, "NOT_IN_USE"),
            Self::NoSuchVolume { .. } => (Code::NotFound, "NOT_IN_SANDBOX"),
        }
    }

    /// Returns the status that the caller gets.
    pub(crate) fn into_status(self, volume: Option<&str>) -> Status {
        let (code, reason) = self.kind();
        let target = volume.and_then(|path| TargetPath::new(path).ok());
        let volume_name = target.map(|target| target.volume_name());
        let text = match (&self, volume_name) {
            // The name of the volume is what is wrong.
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

/// Returns the code and reason of a volume's error.
fn of_volume(code: GrpcCode) -> (Code, &'static str) {
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

/// Returns the code and reason of an error of the runtime's CLI.
fn of_cli(error: &CliError) -> (Code, &'static str) {
    match error {
        CliError::Refused { code, .. } => (*code, "RUNTIME"),
        CliError::Ending => (Code::Unavailable, "ENDING"),
        CliError::Timeout { .. } => (Code::DeadlineExceeded, "RUNTIME_CLI_TIMEOUT"),
        CliError::Untrusted(_) => (Code::Internal, "RUNTIME_CLI_UNTRUSTED"),
        CliError::Start { .. } | CliError::Answer { .. } => (Code::Internal, "RUNTIME_CLI"),
    }
}

/// The node isn't as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The runtime's own records.
    #[error(transparent)]
    State(#[from] StateError),
    /// A directory of the runtime's.
    #[error(transparent)]
    File(#[from] FileError),
    /// A staged volume.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A thread of our own.
    #[error("crust_ops: {0}")]
    Thread(#[from] tokio::task::JoinError),
}
