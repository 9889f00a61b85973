//! A console socket: where conmon and containerd's shim are sent the terminal of a container.

use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::node::WAIT_TIMEOUT;
use crate::wait::wait_until;

/// A listening socket.
#[derive(Debug)]
pub struct ConsoleSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ConsoleSocket {
    /// Listens at this path.
    ///
    /// # Panics
    ///
    /// When it is longer than a socket's path can be.
    pub fn bind(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let listener = UnixListener::bind(&path).expect("bind a console socket");
        listener.set_nonblocking(true).expect("fcntl");
        Self { listener, path }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The terminal that was sent, with `SCM_RIGHTS`.
    ///
    /// # Panics
    ///
    /// When there is no connection in time, or not one descriptor in its message.
    pub fn receive(&self) -> Terminal {
        let mut stream = None;
        wait_until("a runtime at the console socket", WAIT_TIMEOUT, || {
            stream = self.listener.accept().ok();
            stream.is_some()
        });
        let (stream, _) = stream.expect("it was waited for");
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
        assert_eq!(descriptors.len(), 1, "a terminal, and nothing else");
        let master = File::from(descriptors.remove(0));
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("fcntl");
        Terminal {
            master,
            name: String::from_utf8_lossy(&name[..message.bytes]).into_owned(),
            read: Vec::new(),
        }
    }
}

/// The master's end of a container's terminal.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    /// What was sent with it.
    pub name: String,
    read: Vec<u8>,
}

impl Terminal {
    /// Whether it is one.
    pub fn is_a_terminal(&self) -> bool {
        std::io::IsTerminal::is_terminal(&self.master)
    }

    /// Types a line.
    ///
    /// # Panics
    ///
    /// When it can't be written.
    pub fn type_line(&mut self, line: &str) {
        self.master
            .write_all(format!("{line}\n").as_bytes())
            .expect("write to a terminal");
    }

    /// Everything read so far, once this stands there.
    ///
    /// # Panics
    ///
    /// When it doesn't come in time.
    pub fn wait_for(&mut self, text: &str) -> String {
        wait_until(text, WAIT_TIMEOUT, || {
            let mut some = [0; 4096];
            match self.master.read(&mut some) {
                Ok(count) => self.read.extend_from_slice(&some[..count]),
                // EIO: nobody has the other end open, yet or any more.
                Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("read a terminal: {error}"),
            }
            String::from_utf8_lossy(&self.read).contains(text)
        });
        String::from_utf8_lossy(&self.read).into_owned()
    }
}
