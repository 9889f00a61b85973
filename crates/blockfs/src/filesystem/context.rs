//! The calls that make a mount, and the context that fsopen(2) opens for them, with its log.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::{Errno, read, retry_on_intr};
use rustix::mount::{
    fsconfig_create, fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string,
};

use crate::options::FsOption;

/// One of the calls that make a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountCall {
    /// fsopen(2).
    Open,
    /// fsconfig(2) with the device.
    Source,
    /// fsconfig(2) with an option.
    Option(FsOption),
    /// fsconfig(2), `FSCONFIG_CMD_CREATE` or `…_CREATE_EXCL`.
    Create,
    /// fsmount(2).
    Mount,
    /// statx(2) of the new mount.
    Stat,
}

/// A file-system context, in which a superblock is configured.
#[derive(Debug)]
pub(super) struct Context(OwnedFd);

impl Context {
    pub(super) fn new(context: OwnedFd) -> Self {
        Self(context)
    }

    pub(super) fn set_flag(&self, key: &str) -> Result<(), Errno> {
        fsconfig_set_flag(&self.0, key)
    }

    pub(super) fn set_string(&self, key: &str, value: &Path) -> Result<(), Errno> {
        let value: &OsStr = value.as_os_str();
        fsconfig_set_string(&self.0, key, value.as_bytes())
    }

    /// Creates the superblock, or takes the present one of the device. With `exclusive` the latter fails with EBUSY, if
    /// the kernel can tell. `read_only` says which mode was set.
    pub(super) fn create(&self, exclusive: bool, read_only: bool) -> Result<(), Errno> {
        if !exclusive {
            return fsconfig_create(&self.0);
        }
        match fsconfig_create_exclusive(&self.0) {
            // Before Linux 6.6, or a file system behind the legacy API (btrfs before 6.8), the
            // command is refused before anything is tried. EINVAL isn't an answer to an unknown
            // command (fs/fsopen.c), so that one is always the file system's.
            Err(Errno::OPNOTSUPP) if !self.is_spent(read_only) => fsconfig_create(&self.0),
            other => other,
        }
    }

    /// Whether a creation was tried and has failed: from then on setting any parameter fails with EBUSY, also one that
    /// is set already.
    fn is_spent(&self, read_only: bool) -> bool {
        let already_set = if read_only { "ro" } else { "rw" };
        self.set_flag(already_set) == Err(Errno::BUSY)
    }

    /// Returns the messages of the kernel since the last call, in their order. Each read returns one, with `e ` for an
    /// error, `w ` for a warning or `i ` for an information in front; the last read fails with ENODATA.
    pub(super) fn log(&self) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0; 4096];
        // The kernel keeps eight.
        while messages.len() < 64 {
            match retry_on_intr(|| read(&self.0, &mut buffer)) {
                Ok(0) | Err(_) => break,
                Ok(length) => messages.push(message(&buffer[..length])),
            }
        }
        messages
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a message without its level, on one line.
fn message(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    let text = ["e ", "w ", "i "]
        .iter()
        .find_map(|level| text.strip_prefix(level))
        .unwrap_or(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lose_their_level_and_their_line_ends() {
        for (raw, text) in [
            (
                "e ext4: Unknown parameter 'x'\n",
                "ext4: Unknown parameter 'x'",
            ),
            ("w two\nlines", "two lines"),
            ("i  information ", "information"),
            ("else", "else"),
        ] {
            assert_eq!(message(raw.as_bytes()), text);
        }
    }
}
