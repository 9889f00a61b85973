//! The daemon that CSI drivers call.

use std::path::Path;

use crust_state::check::Finding;
use crust_state::ops;
use crust_state::socket::{SocketState, has_listener, probe};

const WHAT: &str = "crust_ops";

pub(super) fn check() -> Finding {
    let socket = match ops::socket_path() {
        Ok(socket) => socket,
        Err(error) => {
            let fix = "correct it, with `crust_ops --check`: the daemon doesn't start";
            return Finding::from_error(WHAT, &error)
                .at_most_warning()
                .or_fix(fix);
        }
    };
    // A service that isn't needed yet needn't be started.
    if has_listener(&socket) {
        return judge(&socket, SocketState::Listening);
    }
    match probe(&socket) {
        Ok(occupant) => judge(&socket, occupant),
        Err(error) => Finding::from_error(WHAT, &error).at_most_warning(),
    }
}

/// Volumes that are staged already, or by hand, need no daemon.
fn judge(socket: &Path, occupant: SocketState) -> Finding {
    let socket = socket.display();
    let found = match occupant {
        SocketState::Listening => return Finding::pass(WHAT, format!("{socket} is listened on")),
        SocketState::Missing => format!("there is no {socket}: no CSI driver can stage a volume"),
        SocketState::Stale => {
            format!("nobody listens on {socket}: no CSI driver can stage a volume")
        }
        SocketState::NotAStreamSocket => {
            format!("{socket} isn't a socket that can be connected to")
        }
    };
    let fix = "systemctl enable --now crust_ops.socket crust_ops.service; `crust_ops --check` looks \
               at what it needs";
    Finding::warn(WHAT, found, fix)
}

#[cfg(test)]
mod tests {
    use crust_state::check::CheckVerdict;

    use super::*;

    #[test]
    fn only_a_listener_will_do() {
        for (occupant, expected) in [
            (SocketState::Listening, CheckVerdict::Pass),
            (SocketState::Missing, CheckVerdict::Warn),
            (SocketState::Stale, CheckVerdict::Warn),
            (SocketState::NotAStreamSocket, CheckVerdict::Warn),
        ] {
            let finding = judge(Path::new("/run/x.sock"), occupant);
            assert_eq!(finding.verdict, expected);
            assert!(finding.found.contains("/run/x.sock"), "{finding}");
        }
    }
}
