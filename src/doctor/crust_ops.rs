//! Checks `crust_ops`, the daemon that CSI drivers call.

use std::path::Path;

use crust_state::check::Finding;
use crust_state::ops;
use crust_state::socket::{SocketState, has_listener, probe};

const CHECK: &str = "crust_ops";

pub(super) fn check() -> Finding {
    let socket = match ops::socket_path() {
        Ok(socket) => socket,
        Err(error) => {
            let fix = "the daemon doesn't start with this file; correct it, and check it with `crust_ops --check`";
            return Finding::from_error(CHECK, &error)
                .at_most_warning()
                .or_fix(fix);
        }
    };
    // A connection would make systemd start the service, which needn't run yet.
    if has_listener(&socket) {
        return judge(&socket, SocketState::Listening);
    }
    match probe(&socket) {
        Ok(state) => judge(&socket, state),
        Err(error) => Finding::from_error(CHECK, &error).at_most_warning(),
    }
}

/// A missing daemon is only a warning: volumes that are already staged, or staged by hand, don't need it.
fn judge(socket: &Path, state: SocketState) -> Finding {
    let socket = socket.display();
    let found = match state {
        SocketState::Listening => {
            return Finding::pass(CHECK, format!("a daemon listens on {socket}"));
        }
        SocketState::Missing => format!("there is no {socket}: no CSI driver can stage a volume"),
        SocketState::Stale => {
            format!("nothing listens on {socket}: no CSI driver can stage a volume")
        }
        SocketState::NotAStreamSocket => {
            format!("{socket} isn't a socket that can be connected to")
        }
    };
    let fix = "run `systemctl enable --now crust_ops.socket crust_ops.service`; `crust_ops --check` checks what the \
               daemon needs";
    Finding::warn(CHECK, found, fix)
}

#[cfg(test)]
mod tests {
    use crust_state::check::CheckVerdict;

    use super::*;

    #[test]
    fn only_a_listening_socket_passes() {
        for (state, expected) in [
            (SocketState::Listening, CheckVerdict::Pass),
            (SocketState::Missing, CheckVerdict::Warn),
            (SocketState::Stale, CheckVerdict::Warn),
            (SocketState::NotAStreamSocket, CheckVerdict::Warn),
        ] {
            let finding = judge(Path::new("/run/x.sock"), state);
            assert_eq!(finding.verdict, expected);
            assert!(finding.found.contains("/run/x.sock"), "{finding}");
        }
    }
}
