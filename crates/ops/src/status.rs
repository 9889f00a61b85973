//! Errors, as callers get them: mapped once, here.

use crust_serve::ErrorReply;
use crust_state::TargetPath;
use crust_volume::Code;
use tonic::{Code as Grpc, Status};

use crate::cli::CliError;
use crate::refusal::Refusal;

impl Refusal {
    /// The code, and a reason that stays the same over versions.
    fn kind(&self) -> (Grpc, &'static str) {
        match self {
            Self::Field { .. } => (Grpc::InvalidArgument, "INVALID_FIELD"),
            Self::Volume(error) => of_volume(error.code()),
            Self::Cli { source, .. } | Self::Runtime(source) => of_cli(source),
            Self::Node(_) => (Grpc::Internal, "NODE"),
            Self::Held { .. } | Self::Hangs { .. } => (Grpc::DeadlineExceeded, "DEADLINE"),
            Self::NotStaged(_) => (Grpc::NotFound, "NOT_STAGED"),
            Self::NotInUse(_) => (Grpc::FailedPrecondition, "NOT_IN_USE"),
            Self::NoSuchVolume { .. } => (Grpc::NotFound, "NOT_IN_SANDBOX"),
        }
    }

    /// As the caller gets it.
    pub(crate) fn into_status(self, volume: Option<&str>) -> Status {
        let (code, reason) = self.kind();
        let target = volume.and_then(|path| TargetPath::new(path).ok());
        let volume_name = target.map(|target| target.volume_name());
        let text = match (&self, volume_name) {
            // One whose name is what is wrong has none.
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

fn of_volume(code: Code) -> (Grpc, &'static str) {
    match code {
        Code::NotFound => (Grpc::NotFound, "NOT_STAGED"),
        Code::FailedPrecondition => (Grpc::FailedPrecondition, "VOLUME_STATE"),
        Code::InvalidArgument => (Grpc::InvalidArgument, "INVALID_VOLUME"),
        Code::OutOfRange => (Grpc::OutOfRange, "INVALID_VOLUME"),
        Code::ResourceExhausted => (Grpc::ResourceExhausted, "FULL"),
        Code::Unimplemented => (Grpc::Unimplemented, "UNSUPPORTED"),
        Code::Internal => (Grpc::Internal, "NODE"),
    }
}

fn of_cli(error: &CliError) -> (Grpc, &'static str) {
    match error {
        CliError::Refused { code, .. } => (*code, "RUNTIME"),
        CliError::Ending => (Grpc::Unavailable, "ENDING"),
        CliError::Timeout { .. } => (Grpc::DeadlineExceeded, "RUNTIME_CLI_TIMEOUT"),
        CliError::Untrusted(_) => (Grpc::Internal, "RUNTIME_CLI_UNTRUSTED"),
        CliError::Start { .. } | CliError::Answer { .. } => (Grpc::Internal, "RUNTIME_CLI"),
    }
}
