//! A proxy between the agent and containerd.

use std::io::{Read, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The longest time that a call may continue after its caller is gone. No call takes longer, and a living agent calls
/// every second.
const ORPHANED_CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A socket in front of containerd's that hides the end of clients. When a call is cancelled because its client was
/// killed, containerd 1.6 can lose track of its state: a shim without a container, or a task whose container it reports
/// as exited and can neither stop nor remove ("cannot delete running task"). No client can repair that, only a restart
/// of containerd.
pub(super) struct ContainerdProxy {
    socket: PathBuf,
}

impl ContainerdProxy {
    pub(super) fn start(socket: &Path, containerd: &Path) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket");
        let containerd = containerd.to_owned();
        // The thread ends with the process.
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                // Without containerd the connection is closed, which the client notices.
                if let Ok(server) = UnixStream::connect(&containerd) {
                    forward_both_ways(caller, server);
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

fn forward_both_ways(caller: UnixStream, server: UnixStream) {
    let both = caller
        .try_clone()
        .and_then(|it| Ok((it, server.try_clone()?)));
    let (mut requests, mut to) = both.expect("dup");
    thread::spawn(move || while forward(&mut requests, &mut to) {});
    server
        .set_read_timeout(Some(ORPHANED_CALL_TIMEOUT))
        .expect("a timeout");
    let (mut answers, mut to) = (server, caller);
    thread::spawn(move || {
        while forward(&mut answers, &mut to) {}
        // The client is gone: read and drop the remaining answers, so that the calls are completed.
        let mut chunk = [0; 4096];
        while matches!(answers.read(&mut chunk), Ok(1..)) {}
    });
}

/// Forwards one chunk. Returns false at the end of either side.
fn forward(from: &mut UnixStream, to: &mut UnixStream) -> bool {
    let mut chunk = vec![0; 64 << 10];
    match from.read(&mut chunk) {
        Ok(length @ 1..) => to.write_all(&chunk[..length]).is_ok(),
        _ => false,
    }
}
