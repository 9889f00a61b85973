//! A file-system context (fsopen(2)) and its log.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::{Errno, read, retry_on_intr};
use rustix::mount::{
    fsconfig_create, fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string,
};

/// A configuration in the making.
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

    /// Makes the superblock, or finds the one there is. With `exclusive` the latter is EBUSY,
    /// where the kernel can tell. `read_only` is what has been set.
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

    /// Whether a creation has been tried and failed: from then on every parameter is EBUSY, also
    /// the one that is set already.
    fn is_spent(&self, read_only: bool) -> bool {
        let already_set = if read_only { "ro" } else { "rw" };
        self.set_flag(already_set) == Err(Errno::BUSY)
    }

    /// What the kernel has said since the last look, errors first to last: each read gives one
    /// message, `e ` for an error, `w ` a warning, `i ` an information, then ENODATA.
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

/// The message without its level, on one line.
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
