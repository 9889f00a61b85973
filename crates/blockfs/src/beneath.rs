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
pub fn open_or_create(
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

/// Opens an absolute path with `O_PATH` where nothing is to be waited for: the kernel remembers the whole way.
/// Where it doesn't, the way may lead over a disk that hangs, or a server that is gone: EAGAIN. (EINVAL before
/// Linux 5.12.)
pub fn open_at_once(path: impl Arg, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = resolve | ResolveFlags::CACHED;
    openat2(CWD, path, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_looked_up_is_remembered() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        assert!(!missing.exists());
        let open = |path| open_at_once(path, ResolveFlags::empty()).map(drop);
        assert_eq!(open(directory.path()), Ok(()));
        assert_eq!(open(&missing), Err(Errno::NOENT));
    }
}
