//! openat2(2) with the retries it asks for.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
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
