//! Terminals: a console socket, on which conmon and containerd's shim receive the terminal of a container, and commands
//! that run on a terminal.

use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::node::WAIT_TIMEOUT;
use crate::wait::wait_until;

#[derive(Debug)]
pub struct ConsoleSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ConsoleSocket {
    /// Binds a console socket. The path must fit into a Unix socket's address.
    pub fn bind(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let listener = UnixListener::bind(&path).expect("bind a console socket");
        listener.set_nonblocking(true).expect("fcntl");
        Self { listener, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the terminal that a runtime sends with `SCM_RIGHTS`. The message must contain exactly one descriptor.
    pub fn receive(&self) -> Terminal {
        let mut stream = None;
        wait_until("a runtime at the console socket", WAIT_TIMEOUT, || {
            stream = self.listener.accept().ok();
            stream.is_some()
        });
        let (stream, _) = stream.expect("accepted a connection");
        stream.set_nonblocking(false).expect("fcntl");
        stream
            .set_read_timeout(Some(WAIT_TIMEOUT))
            .expect("setsockopt");
        let mut name = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut data = [IoSliceMut::new(&mut name)];
        let message = recvmsg(&stream, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .expect("a message on the console socket");
        let mut descriptors = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                descriptors.extend(rights);
            }
        }
        assert_eq!(
            descriptors.len(),
            1,
            "the message has exactly one descriptor"
        );
        let master = File::from(descriptors.remove(0));
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
        Terminal {
            master,
            name: String::from_utf8_lossy(&name[..message.bytes]).into_owned(),
            read: Vec::new(),
        }
    }
}

/// The master side of a container's terminal.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    /// The text that was sent along with the descriptor.
    pub name: String,
    read: Vec<u8>,
}

impl Terminal {
    /// Returns whether the descriptor is a terminal.
    pub fn is_a_terminal(&self) -> bool {
        std::io::IsTerminal::is_terminal(&self.master)
    }

    /// Writes a line to the terminal.
    pub fn type_line(&mut self, line: &str) {
        self.master
            .write_all(format!("{line}\n").as_bytes())
            .expect("write to a terminal");
    }

    /// Waits until `text` has been read, and returns everything that was read so far.
    pub fn wait_for(&mut self, text: &str) -> String {
        wait_until(text, WAIT_TIMEOUT, || {
            let mut some = [0; 4096];
            match self.master.read(&mut some) {
                Ok(count) => self.read.extend_from_slice(&some[..count]),
                // EIO: the other end is not open yet, or no longer.
                Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("read a terminal: {error}"),
            }
            String::from_utf8_lossy(&self.read).contains(text)
        });
        String::from_utf8_lossy(&self.read).into_owned()
    }
}

/// Returns a command that runs `command` on a terminal of its own, with script(1). The terminal's output is copied to
/// standard output, and to the file `typescript` as soon as it is written. Line ends are `\r\n`.
pub fn on_terminal(command: &Command, typescript: &Path) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().expect("UTF-8")));
    let line = words.collect::<Vec<_>>().join(" ");
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--flush", "--command", &line]);
    script.arg(typescript);
    script
}
