//! Errors, as callers get them, and the names of their codes.

use std::collections::HashMap;

use crust_state::printable::printable;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::daemon::Daemon;

/// The `domain` of every `google.rpc.ErrorInfo`.
const DOMAIN: &str = "crust.dev";

/// The most bytes of an error's text. Texts may repeat the request and travel in headers, of which some clients take no
/// more than 8 KiB.
const LONGEST: usize = 1024;

/// The answer to a call that failed. Texts are escaped and shortened to `LONGEST` bytes.
#[derive(Debug, Clone, Copy)]
pub struct ErrorReply<'a> {
    /// gRPC's code.
    pub code: Code,
    /// The `reason` of its `google.rpc.ErrorInfo`, which stays the same over versions: `BUSY`.
    pub reason: &'a str,
    /// The sentence.
    pub message: &'a str,
    /// The volume of the request, in the `metadata` there.
    pub volume: Option<&'a str>,
    /// A field of the request, and what is wrong with it: a `google.rpc.BadRequest`.
    pub field: Option<(&'a str, &'a str)>,
}

impl ErrorReply<'_> {
    /// Returns the status that is sent.
    #[must_use]
    pub fn into_status(self) -> Status {
        let volume = self
            .volume
            .map(|volume| ("volume".to_owned(), shortened(volume)));
        let metadata: HashMap<_, _> = volume.into_iter().collect();
        let mut details = ErrorDetails::with_error_info(self.reason, DOMAIN, metadata);
        if let Some((field, why)) = self.field {
            details.add_bad_request_violation(field, shortened(why));
        }
        Status::with_error_details(self.code, shortened(self.message), details)
    }
}

/// Returns the status of a call whose request wasn't read: it names no volume and no field.
pub(crate) fn bare_status(code: Code, reason: &str, message: &str) -> Status {
    let failure = ErrorReply {
        code,
        reason,
        message,
        volume: None,
        field: None,
    };
    failure.into_status()
}

/// The reason for which a call is refused unread.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RefusedUnread {
    Caller,
    Busy,
    Ending,
}

impl RefusedUnread {
    /// Returns the label of the metrics.
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
                format!("too many calls are under way; hint: {}", daemon.busy_hint),
            ),
            Self::Ending => (
                Code::Unavailable,
                "ENDING",
                format!("{name} is about to end; hint: try again, once it has been started again"),
            ),
        };
        bare_status(code, reason, &message)
    }
}

/// The kernel's `PATH_MAX`, which counts the NUL at the end: no system call takes a longer path.
const PATH_MAX: usize = 4096;

/// A path that no system call accepts.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("its {0} bytes are more than a path can have")]
pub struct PathTooLong(usize);

/// Refuses a path of a request that is too long for any system call, before it is written down anywhere.
pub fn check_path_length(path: &str) -> Result<(), PathTooLong> {
    match path.len() {
        length if length < PATH_MAX => Ok(()),
        length => Err(PathTooLong(length)),
    }
}

/// Returns a text as one line of at most [`LONGEST`] bytes. A text that is quoted could else write lines of the log.
fn shortened(text: &str) -> String {
    let text = printable(text);
    if text.len() <= LONGEST {
        return text.into_owned();
    }
    let mut starts = text.char_indices().map(|(at, _)| at);
    let end = starts.rfind(|at| *at <= LONGEST).unwrap_or_default();
    format!("{}…", &text[..end])
}

/// The names of gRPC's codes in the order of their numbers: in its library for Go, and in its specification.
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

/// Returns a code's name as gRPC's library for Go writes it, and with it kubelet: `NotFound`.
#[must_use]
pub const fn go_code(code: Code) -> &'static str {
    CODE_NAMES[code as usize].0
}

/// Returns a code's name as gRPC's specification writes it: `NOT_FOUND`.
#[must_use]
pub const fn proto_code(code: Code) -> &'static str {
    CODE_NAMES[code as usize].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_in_lines_of_a_length_that_travels() {
        let long = "ä\n".repeat(LONGEST);
        let failure = ErrorReply {
            code: Code::InvalidArgument,
            reason: "INVALID_FIELD",
            message: &long,
            volume: Some(&long),
            field: Some(("volume_id", &long)),
        };
        let status = failure.into_status();
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
            assert!(text.len() <= LONGEST + '…'.len_utf8(), "{}", text.len());
        }
    }

    #[test]
    fn the_nul_of_a_path_counts() {
        assert_eq!(check_path_length(&"x".repeat(4095)), Ok(()));
        assert_eq!(check_path_length(&"x".repeat(4096)), Err(PathTooLong(4096)));
    }

    #[test]
    fn codes_have_their_own_names() {
        for (number, (go, proto)) in (0..).zip(CODE_NAMES) {
            let code = Code::from(number);
            assert_eq!((go_code(code), proto_code(code)), (go, proto));
            // tonic's names are like Go's, and two of them aren't.
            match code {
                Code::Ok | Code::Cancelled => {}
                _ => assert_eq!(go, format!("{code:?}")),
            }
            let letters = |name: &str| name.replace('_', "").replace("LL", "L");
            assert_eq!(letters(proto), go.to_uppercase(), "{code:?}");
        }
    }

    #[test]
    fn what_nobody_asked_about_is_not_told() {
        let status = bare_status(Code::Unavailable, "ENDING", "it ends");
        let info = status.get_details_error_info().unwrap();
        assert!(info.metadata.is_empty(), "{info:?}");
        assert!(status.get_details_bad_request().is_none());
        assert_eq!(status.message(), "it ends");
    }
}
