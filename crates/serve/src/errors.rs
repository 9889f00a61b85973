//! Errors in the form in which callers get them, and the names of gRPC codes.

use std::collections::HashMap;

use crust_state::printable::printable;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::daemon::Daemon;

/// The `domain` of every `google.rpc.ErrorInfo`.
const DOMAIN: &str = "crust.dev";

/// The maximum length of an error's text in bytes. Texts may repeat parts of the request, and are sent in headers, of
/// which some clients accept no more than 8 KiB.
const MAX_TEXT_BYTES: usize = 1024;

/// The response to a call that failed. Its texts are escaped and shortened to `MAX_TEXT_BYTES`.
#[derive(Debug, Clone, Copy)]
pub struct ErrorReply<'a> {
    pub code: Code,
    /// The `reason` in `google.rpc.ErrorInfo`, which must not change between versions: `BUSY`.
    pub reason: &'a str,
    pub message: &'a str,
    /// The volume that the request names, sent in the `metadata` of `google.rpc.ErrorInfo`.
    pub volume: Option<&'a str>,
    /// An invalid field of the request and the reason, sent as `google.rpc.BadRequest`.
    pub field: Option<(&'a str, &'a str)>,
}

impl ErrorReply<'_> {
    #[must_use]
    pub fn into_status(self) -> Status {
        let volume = self
            .volume
            .map(|volume| ("volume".to_owned(), shorten(volume)));
        let metadata: HashMap<_, _> = volume.into_iter().collect();
        let mut details = ErrorDetails::with_error_info(self.reason, DOMAIN, metadata);
        if let Some((field, reason)) = self.field {
            details.add_bad_request_violation(field, shorten(reason));
        }
        Status::with_error_details(self.code, shorten(self.message), details)
    }
}

/// Returns the status of a call whose request wasn't read. It names neither a volume nor a field.
pub(crate) fn bare_status(code: Code, reason: &str, message: &str) -> Status {
    let reply = ErrorReply {
        code,
        reason,
        message,
        volume: None,
        field: None,
    };
    reply.into_status()
}

/// The reason for refusing a call before its request is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UnreadRefusal {
    /// The caller isn't root.
    Caller,
    /// Too many calls are in progress.
    Busy,
    /// The daemon is shutting down.
    Ending,
}

impl UnreadRefusal {
    /// Returns the value of the label `reason` in the metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Busy => "busy",
            Self::Ending => "ending",
        }
    }

    pub(crate) fn status(self, daemon: &Daemon) -> Status {
        let name = daemon.name;
        let (code, reason, message) = match self {
            Self::Caller => (
                Code::PermissionDenied,
                "CALLER",
                format!("only root may call {name}"),
            ),
            Self::Busy => (
                Code::ResourceExhausted,
                "BUSY",
                format!("too many calls are in progress; hint: {}", daemon.busy_hint),
            ),
            Self::Ending => (
                Code::Unavailable,
                "ENDING",
                format!("{name} is shutting down; hint: retry once it has been restarted"),
            ),
        };
        bare_status(code, reason, &message)
    }
}

/// The kernel's `PATH_MAX`, which includes the terminating NUL. System calls don't accept longer paths.
const PATH_MAX: usize = 4096;

/// A path with more bytes than any system call accepts.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a path of {0} bytes is longer than the {max} bytes that the kernel accepts", max = PATH_MAX - 1)]
pub struct PathTooLong(usize);

/// Checks that system calls accept a path of this length. To be called before a path from a request is recorded
/// anywhere.
pub fn check_path_length(path: &str) -> Result<(), PathTooLong> {
    match path.len() {
        length if length < PATH_MAX => Ok(()),
        length => Err(PathTooLong(length)),
    }
}

/// Returns a text as one line of at most [`MAX_TEXT_BYTES`]. Otherwise text from a request could write lines of its own
/// to the log.
fn shorten(text: &str) -> String {
    let text = printable(text);
    if text.len() <= MAX_TEXT_BYTES {
        return text.into_owned();
    }
    let mut starts = text.char_indices().map(|(at, _)| at);
    let end = starts.rfind(|at| *at <= MAX_TEXT_BYTES).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// The names of gRPC's codes, in the order of their numbers: as in grpc-go, and as in the specification.
const CODE_NAMES: [(&str, &str); 17] = [
    ("OK", "OK"),
    ("Canceled", "CANCELLED"),
    ("Unknown", "UNKNOWN"),
    ("InvalidArgument", "INVALID_ARGUMENT"),
    ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
    ("NotFound", "NOT_FOUND"),
    ("AlreadyExists", "ALREADY_EXISTS"),
    ("PermissionDenied", "PERMISSION_DENIED"),
    ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
    ("FailedPrecondition", "FAILED_PRECONDITION"),
    ("Aborted", "ABORTED"),
    ("OutOfRange", "OUT_OF_RANGE"),
    ("Unimplemented", "UNIMPLEMENTED"),
    ("Internal", "INTERNAL"),
    ("Unavailable", "UNAVAILABLE"),
    ("DataLoss", "DATA_LOSS"),
    ("Unauthenticated", "UNAUTHENTICATED"),
];

/// Returns the name of a code as grpc-go and so kubelet print it: `NotFound`.
#[must_use]
pub const fn go_code(code: Code) -> &'static str {
    CODE_NAMES[code as usize].0
}

/// Returns the name of a code as in gRPC's specification: `NOT_FOUND`.
#[must_use]
pub const fn proto_code(code: Code) -> &'static str {
    CODE_NAMES[code as usize].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_shortened() {
        let long = "ä\n".repeat(MAX_TEXT_BYTES);
        let reply = ErrorReply {
            code: Code::InvalidArgument,
            reason: "INVALID_FIELD",
            message: &long,
            volume: Some(&long),
            field: Some(("volume_id", &long)),
        };
        let status = reply.into_status();
        assert_eq!(status.code(), Code::InvalidArgument);
        let info = status.get_details_error_info().unwrap();
        assert_eq!(
            (&*info.reason, &*info.domain),
            ("INVALID_FIELD", "crust.dev")
        );
        let request = status.get_details_bad_request().unwrap();
        let [violation] = &request.field_violations[..] else {
            panic!("{request:?}");
        };
        assert_eq!(violation.field, "volume_id");
        for text in [
            status.message(),
            &info.metadata["volume"],
            &violation.description,
        ] {
            assert!(
                text.starts_with("ä\\nä\\n") && text.ends_with('…'),
                "{text}"
            );
            assert!(
                text.len() <= MAX_TEXT_BYTES + '…'.len_utf8(),
                "{}",
                text.len()
            );
        }
    }

    #[test]
    fn the_limit_of_a_path_includes_the_terminating_nul() {
        assert_eq!(check_path_length(&"x".repeat(4095)), Ok(()));
        assert_eq!(check_path_length(&"x".repeat(4096)), Err(PathTooLong(4096)));
    }

    #[test]
    fn each_code_has_its_go_name_and_its_proto_name() {
        for (number, (go, proto)) in (0..).zip(CODE_NAMES) {
            let code = Code::from(number);
            assert_eq!((go_code(code), proto_code(code)), (go, proto));
            // tonic's names are the same as Go's except for these two.
            match code {
                Code::Ok | Code::Cancelled => {}
                _ => assert_eq!(go, format!("{code:?}")),
            }
            let letters = |name: &str| name.replace('_', "").replace("LL", "L");
            assert_eq!(letters(proto), go.to_uppercase(), "{code:?}");
        }
    }

    #[test]
    fn a_bare_status_names_neither_volume_nor_field() {
        let status = bare_status(Code::Unavailable, "ENDING", "it ends");
        let info = status.get_details_error_info().unwrap();
        assert!(info.metadata.is_empty(), "{info:?}");
        assert!(status.get_details_bad_request().is_none());
        assert_eq!(status.message(), "it ends");
    }
}
