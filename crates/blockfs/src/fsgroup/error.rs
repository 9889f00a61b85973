//! The errors of applying fsGroup.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::progress::EntryCounts;
use crate::errno::Name;
use crate::fstypes::{checkers, hint_for_volume_error};

/// The error of applying fsGroup to a volume. Paths are relative to the volume's root; the root itself is the empty
/// path.
///
/// The root hasn't been changed when any of these is returned, so the next attempt continues the work.
#[derive(Debug, thiserror::Error)]
pub enum FsGroupError {
    /// The group is 4294967295, which chown(2) takes for "don't change".
    #[error("fsGroup {group}: not a group id; hint: use a group id up to 4294967294")]
    InvalidGroup {
        /// The group that was asked for.
        group: u32,
    },
    /// A system call failed on an entry.
    #[error("{}{}", failed_call(call, path, *errno), hint(*errno))]
    Call {
        /// Name of the system call.
        call: &'static str,
        /// Path of the entry.
        path: PathBuf,
        /// The error of the call.
        errno: Errno,
    },
    /// `/proc` isn't a procfs or can't be opened. This is a problem of the node, not of the volume.
    #[error(
        "fsGroup: {PROC_DESCRIPTORS}: {}; hint: mount a procfs on /proc where runcrust runs; \
         before Linux 6.6 (fchmodat2(2)) runcrust needs it to change the mode of files",
        procfs_problem(*errno)
    )]
    NoProcfs {
        /// The error of the call; `None` if `/proc` is another file system.
        errno: Option<Errno>,
    },
    /// In each of several passes, the entry was moved or replaced while it was being changed.
    #[error(
        "fsGroup: {} is moved or replaced faster than it can be changed; \
         hint: retry, and fsGroup continues where it stopped; another pod or container is changing this volume",
        DisplayedPath(path)
    )]
    KeepsChanging {
        /// Path of the entry.
        path: PathBuf,
    },
    /// The walk listed the same directories over and over.
    #[error(
        "{}: \
         directories have several names, so the file system is corrupt or was manipulated; hint: stop \
         the pods and containers that use the volume, and run the file system's checker ({}) on its device",
        repeated_entries(*listed, *distinct),
        checkers()
    )]
    RepeatedEntries {
        /// Number of entries listed so far: names in directories.
        listed: u64,
        /// Estimated number of distinct entries among the listed ones.
        distinct: u64,
    },
    /// The deadline passed before all entries were changed.
    #[error(
        "fsGroup {group}: stopped at the deadline after {} entries, {} of them changed; \
         hint: retry, and fsGroup continues where it stopped; entries that are already changed are only checked; \
         with fsGroupChangePolicy OnRootMismatch, fsGroup is applied only once",
        counts.entries,
        counts.changed
    )]
    Stopped {
        /// The group that was asked for.
        group: u32,
        /// Numbers of entries that were checked and changed before the deadline.
        counts: EntryCounts,
    },
}

impl FsGroupError {
    /// Returns what failed, without the hints for a file system on a device.
    #[must_use]
    pub fn problem(&self) -> String {
        match self {
            Self::Call { call, path, errno } => failed_call(call, path, *errno),
            Self::RepeatedEntries { listed, distinct } => repeated_entries(*listed, *distinct),
            other => other.to_string(),
        }
    }
}

fn failed_call(call: &str, path: &Path, errno: Errno) -> String {
    format!("fsGroup: {call}({}): {}", DisplayedPath(path), Name(errno))
}

fn repeated_entries(listed: u64, distinct: u64) -> String {
    format!("fsGroup: stopped after {listed} entries, of which only about {distinct} are distinct")
}

/// Directory of links to the open descriptors of the calling thread.
pub(super) const PROC_DESCRIPTORS: &str = "/proc/thread-self/fd";

fn procfs_problem(errno: Option<Errno>) -> String {
    let problem = errno.map(|errno| Name(errno).to_string());
    problem.unwrap_or_else(|| "not on a procfs".to_owned())
}

fn hint(errno: Errno) -> Cow<'static, str> {
    let hint = match errno {
        Errno::ROFS => {
            "; hint: see the kernel's log (dmesg); the file system is mounted read-only, or became read-only after \
             an error"
        }
        Errno::DQUOT => "; hint: raise the new group's quota in this volume; it is used up",
        // The walk follows no symbolic links, so ELOOP means that a directory contains one of its own parents.
        Errno::LOOP => return hint_for_volume_error(Errno::UCLEAN).into(),
        Errno::MFILE => {
            "; hint: raise the limit on open files (ulimit -n); the walk needs about 100 descriptors"
        }
        errno => return hint_for_volume_error(errno).into(),
    };
    hint.into()
}

/// Displays a path quoted and on one line. Only the end of a very long path is written.
struct DisplayedPath<'a>(&'a Path);

impl fmt::Display for DisplayedPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_LEN: usize = 1024;
        let bytes = self.0.as_os_str().as_bytes();
        match bytes.len().checked_sub(MAX_LEN + 1) {
            _ if bytes.is_empty() => f.write_str("the volume's root"),
            Some(cut) => {
                f.write_str("…")?;
                fmt::Debug::fmt(OsStr::from_bytes(&bytes[cut + 1..]), f)
            }
            None => fmt::Debug::fmt(self.0, f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &str) -> String {
        FsGroupError::Call {
            call: "fchownat",
            path: path.into(),
            errno: Errno::ROFS,
        }
        .to_string()
    }

    #[test]
    fn the_message_names_the_call_and_the_path_on_one_line() {
        assert!(message("a\nb").starts_with("fsGroup: fchownat(\"a\\nb\"): EROFS; hint: "));
        assert!(message("").starts_with("fsGroup: fchownat(the volume's root): EROFS"));
    }

    #[test]
    fn only_the_end_of_a_very_long_path_is_displayed() {
        let message = message(&format!("{}/end", "d/".repeat(5000)));
        assert!(
            message.len() < 1300 && message.contains("/end\")"),
            "{message}"
        );
    }
}
