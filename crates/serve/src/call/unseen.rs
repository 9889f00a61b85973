//! Calls that aren't looked at.

use tonic::{Code, Status};

use crate::daemon::Daemon;
use crate::failure::unseen;

/// Why a call isn't looked at.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unseen {
    Caller,
    Busy,
    Ending,
}

impl Unseen {
    /// In the metrics.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::Busy => "busy",
            Self::Ending => "ending",
        }
    }

    pub(super) fn status(self, daemon: &Daemon) -> Status {
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
                format!("too many calls are under way; hint: {}", daemon.busy),
            ),
            Self::Ending => (
                Code::Unavailable,
                "ENDING",
                format!("{name} is about to end; hint: try again, once it has been started again"),
            ),
        };
        unseen(code, reason, &message)
    }
}
