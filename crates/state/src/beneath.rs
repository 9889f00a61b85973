//! openat2(2) with the retries it asks for.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::path::Arg;

/// How often EAGAIN is taken for an answer. The kernel gives it when *anything* on the system was
/// renamed or mounted during a lookup that passed a `..`; it says nothing about this path, and a
/// hundred in a row need somebody who renames in a loop against us.
const TRIES: u32 = 128;

/// Opens `path` below `directory`, always close-on-exec. Errors are openat2's own; EAGAIN only
/// after 128 of them.
pub fn open(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    open_or_create(directory, path, flags, Mode::empty(), resolve)
}

/// The same of a file that is made, with `mode`, where `flags` say so.
pub(crate) fn open_or_create(
    directory: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut tries = 0;
    loop {
        let opened = openat2(
            directory.as_fd(),
            path,
            flags | OFlags::CLOEXEC,
            mode,
            resolve,
        );
        match opened {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < TRIES => {
                tries += 1;
                std::thread::yield_now();
            }
            other => return other,
        }
    }
}

/// Whether the kernel can say at once what is at a path, or that nothing is: it remembers the whole way. One that
/// leads over a server that is gone, or a disk that hangs, would be waited for. (Not before Linux 5.12, which can't be
/// asked.)
#[must_use]
pub fn is_at_hand(path: impl Arg) -> bool {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED);
    matches!(found, Ok(_) | Err(Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_looked_up_is_at_hand() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        assert!(!missing.exists());
        assert!(is_at_hand(directory.path()) && is_at_hand(&missing));
        assert!(!is_at_hand(&missing.join("\0")), "no path");
    }
}
