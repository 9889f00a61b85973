//! The file-system context of fsopen(2), with its log, and the calls that make a mount from it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::{Errno, read, retry_on_intr};
use rustix::mount::{
    fsconfig_create, fsconfig_create_exclusive, fsconfig_set_flag, fsconfig_set_string,
};

use crate::options::FsOption;

/// A call that makes a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountCall {
    /// fsopen(2), which creates the file-system context.
    Open,
    /// fsconfig(2), which sets the device.
    Source,
    /// fsconfig(2), which sets this option.
    Option(FsOption),
    /// fsconfig(2) with `FSCONFIG_CMD_CREATE` or `FSCONFIG_CMD_CREATE_EXCL`.
    Create,
    /// fsmount(2), which creates a mount of the superblock.
    Mount,
    /// statx(2) on the new mount.
    Stat,
}

/// A file-system context, which configures a superblock.
#[derive(Debug)]
pub struct FsContext(OwnedFd);

impl FsContext {
    /// Wraps the descriptor that fsopen(2) returns.
    #[must_use]
    pub fn new(context: OwnedFd) -> Self {
        Self(context)
    }

    /// Sets a parameter without a value.
    pub fn set_flag(&self, key: &str) -> Result<(), Errno> {
        fsconfig_set_flag(&self.0, key)
    }

    /// Sets a parameter. The kernel accepts values of up to 255 bytes.
    pub fn set_string(&self, key: &str, value: &Path) -> Result<(), Errno> {
        let value: &OsStr = value.as_os_str();
        fsconfig_set_string(&self.0, key, value.as_bytes())
    }

    /// Creates the superblock, or uses the superblock that the device already has. With `exclusive`, an existing
    /// superblock makes this fail with EBUSY, unless the kernel or the file system is too old to check. `read_only`
    /// must be true if `ro` was set.
    pub fn create(&self, exclusive: bool, read_only: bool) -> Result<(), Errno> {
        if !exclusive {
            return fsconfig_create(&self.0);
        }
        match fsconfig_create_exclusive(&self.0) {
            // Before Linux 6.6, and for a file system with the legacy API (btrfs before 6.8), the kernel rejects the
            // command with EOPNOTSUPP before it tries anything. It never rejects an unknown command with EINVAL
            // (fs/fsopen.c): that error comes from the file system.
            Err(Errno::OPNOTSUPP) if !self.has_failed(read_only) => fsconfig_create(&self.0),
            other => other,
        }
    }

    /// Returns true if the creation was tried and has failed. From then on setting any parameter fails with EBUSY, even
    /// one that is already set.
    fn has_failed(&self, read_only: bool) -> bool {
        let already_set = if read_only { "ro" } else { "rw" };
        self.set_flag(already_set) == Err(Errno::BUSY)
    }

    /// Returns the kernel's messages since the last call, in their order.
    ///
    /// Each read returns one message with a prefix: `e ` for an error, `w ` for a warning, `i ` for information. The
    /// last read fails with ENODATA.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0; 4096];
        // The kernel keeps eight messages.
        while messages.len() < 64 {
            match retry_on_intr(|| read(&self.0, &mut buffer)) {
                Ok(0) | Err(_) => break,
                Ok(length) => messages.push(message(&buffer[..length])),
            }
        }
        messages
    }
}

impl AsFd for FsContext {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns a message on one line, without the prefix for its level.
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
    fn messages_lose_their_level_and_their_line_breaks() {
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
