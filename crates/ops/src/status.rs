//! Errors, as callers get them: mapped once, here.

use std::collections::HashMap;

use crust_mount::volume::Code;
use crust_state::TargetPath;
use tonic::{Code as Grpc, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::cli::CliError;
use crate::refusal::Refusal;

/// Of every `google.rpc.ErrorInfo`.
const DOMAIN: &str = "crust.dev";

/// An error's texts travel in headers, of which some clients take no more than 8 KiB, and may repeat
/// what was asked for. In bytes.
const LONGEST: usize = 1024;

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
        let volume = volume.map(|volume| ("volume".to_owned(), shortened(volume)));
        let metadata: HashMap<_, _> = volume.into_iter().collect();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        if let Self::Field { field, reason } = &self {
            details.add_bad_request_violation(*field, shortened(reason));
        }
        let text = match (&self, volume_name) {
            // One whose name is what is wrong has none.
            (Self::Field { field, .. }, _) if field.ends_with("target_path") => self.to_string(),
            (Self::Field { .. } | Self::Hangs { .. } | Self::Node(_), Some(name)) => {
                format!("volume {name}: {self}")
            }
            _ => self.to_string(),
        };
        Status::with_error_details(code, shortened(&text), details)
    }
}

/// Of a call that isn't looked at.
pub(crate) fn unseen(code: Grpc, reason: &str, message: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, DOMAIN, HashMap::new());
    Status::with_error_details(code, message, details)
}

/// One line, of a length that travels: whoever is quoted could write lines of his own in the log.
fn shortened(text: &str) -> String {
    let line = |character: char| match character {
        control if control.is_control() => control.escape_default().to_string(),
        other => other.to_string(),
    };
    let text: String = text.chars().map(line).collect();
    if text.len() <= LONGEST {
        return text;
    }
    let mut starts = text.char_indices().map(|(at, _)| at);
    let end = starts.rfind(|at| *at <= LONGEST).unwrap_or_default();
    format!("{}…", &text[..end])
}

fn of_volume(code: Code) -> (Grpc, &'static str) {
    match code {
        Code::NotFound => (Grpc::NotFound, "NOT_STAGED"),
        Code::FailedPrecondition => (Grpc::FailedPrecondition, "VOLUME_STATE"),
        Code::InvalidArgument => (Grpc::InvalidArgument, "INVALID_VOLUME"),
        Code::OutOfRange => (Grpc::OutOfRange, "INVALID_VOLUME"),
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
