//! What is between the agent and containerd.

use std::io::{Read, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// So long a call goes on whose caller is gone, longer than any takes; who is there asks every second.
const LINGER: Duration = Duration::from_secs(120);

/// A socket before containerd's, which isn't told who hangs up. A call that ends because its caller was killed makes
/// containerd 1.6 lose what it was at: a shim without a container, or a task whose container it calls exited and can
/// neither stop nor remove ("cannot delete running task"), whoever the caller is. That is no agent's to mend, and only
/// a restart of containerd mends it.
pub(super) struct Line {
    socket: PathBuf,
}

impl Line {
    pub(super) fn start(socket: &Path, containerd: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let containerd = containerd.to_owned();
        // It ends with the process.
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                // Who finds nobody is told by the end of the connection.
                if let Ok(called) = UnixStream::connect(&containerd) {
                    join(caller, called);
                }
            }
        });
        Self {
            socket: socket.to_owned(),
        }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

fn join(caller: UnixStream, server: UnixStream) {
    let both = caller
        .try_clone()
        .and_then(|it| Ok((it, server.try_clone()?)));
    let (mut questions, mut to) = both.expect("dup");
    thread::spawn(move || while pass(&mut questions, &mut to) {});
    server.set_read_timeout(Some(LINGER)).expect("a timeout");
    let (mut answers, mut to) = (server, caller);
    thread::spawn(move || {
        while pass(&mut answers, &mut to) {}
        // Nobody hears the others, and they are given.
        let mut chunk = [0; 4096];
        while matches!(answers.read(&mut chunk), Ok(1..)) {}
    });
}

/// One piece; whether there may be more, and somebody who takes it.
fn pass(from: &mut UnixStream, to: &mut UnixStream) -> bool {
    let mut chunk = vec![0; 64 << 10];
    match from.read(&mut chunk) {
        Ok(length @ 1..) => to.write_all(&chunk[..length]).is_ok(),
        _ => false,
    }
}
