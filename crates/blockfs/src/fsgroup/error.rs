//! The errors of applying fsGroup.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::io::Errno;

use super::progress::EntryCounts;
use crate::errno::Name;
use crate::fstypes::{checkers, hint_for_volume_error};

/// Paths are relative to the volume's root, which itself is the empty path. After each of these the
/// root hasn't been changed: the next try goes on.
#[derive(Debug, thiserror::Error)]
pub enum FsGroupError {
    /// 4294967295 is chown's "leave it alone".
    #[error("fsGroup {group}: not a group id; hint: group ids end at 4294967294")]
    InvalidGroup {
        /// The group that was given.
        group: u32,
    },
    /// A system call failed on an entry.
    #[error("fsGroup: {call}({}): {}{}", Shown(path), Name(*errno), hint(*errno))]
    Call {
        /// The call.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// The error number.
        errno: Errno,
    },
    /// `/proc` isn't a procfs, or can't be opened. The volume has nothing to do with it.
    #[error(
        "fsGroup: {PROC_DESCRIPTORS}: {}; hint: mount a procfs on /proc where runcrust runs: \
         before Linux 6.6 (fchmodat2(2)) a file's mode is changed through it",
        procfs_problem(*errno)
    )]
    NoProcfs {
        /// The error of the call; `None` if another file system is there.
        errno: Option<Errno>,
    },
    /// Each look found something else there, in each of several passes.
    #[error(
        "fsGroup: {}: is moved or replaced faster than it can be changed; \
         hint: another pod or container is at work in this volume; the next try goes on",
        Shown(path)
    )]
    KeepsChanging {
        /// The entry.
        path: PathBuf,
    },
    /// The walk listed the same directories over and over.
    #[error(
        "fsGroup: stopped after {listed} entries, of which only about {different} are different: \
         the file system gives one directory several names, and is corrupt or made to be; hint: end \
         the pods and containers that use the volume, and run the file system's checker ({}) on its device",
        checkers()
    )]
    RepeatedEntries {
        /// Number of entries listed so far: names in directories.
        listed: u64,
        /// Estimated number of different entries among them.
        different: u64,
    },
    /// The deadline has passed, or the caller wants no more.
    #[error(
        "fsGroup {group}: stopped at the deadline after {} entries, {} of them changed; \
         hint: the next try goes on, entries that are right cost one look each; \
         fsGroupChangePolicy OnRootMismatch does this only once",
        counts.entries,
        counts.changed
    )]
    Stopped {
        /// The group.
        group: u32,
        /// How far it got.
        counts: EntryCounts,
    },
}

/// The descriptors of the calling thread.
pub(super) const PROC_DESCRIPTORS: &str = "/proc/thread-self/fd";

fn procfs_problem(errno: Option<Errno>) -> String {
    let problem = errno.map(|errno| Name(errno).to_string());
    problem.unwrap_or_else(|| "not on a procfs".to_owned())
}

fn hint(errno: Errno) -> Cow<'static, str> {
    let hint = match errno {
        Errno::ROFS => {
            "; hint: the file system is read-only: mounted so, or by itself after an error (dmesg)"
        }
        Errno::DQUOT => "; hint: the new group's quota in this volume is used up",
        // No link is followed: it is a directory that holds one that it is in.
        Errno::LOOP => return hint_for_volume_error(Errno::UCLEAN).into(),
        Errno::MFILE => "; hint: the walk needs about 100 descriptors (ulimit -n)",
        errno => return hint_for_volume_error(errno).into(),
    };
    hint.into()
}

/// A path on one line, quoted; of a very long one the end.
struct Shown<'a>(&'a PathBuf);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 1024;
        let bytes = self.0.as_os_str().as_bytes();
        match bytes.len().checked_sub(LONGEST + 1) {
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

    fn sentence(path: &str) -> String {
        FsGroupError::Call {
            call: "fchownat",
            path: path.into(),
            errno: Errno::ROFS,
        }
        .to_string()
    }

    #[test]
    fn the_sentence_retells_the_call_on_one_line() {
        assert!(sentence("a\nb").starts_with("fsGroup: fchownat(\"a\\nb\"): EROFS; hint: "));
        assert!(sentence("").starts_with("fsGroup: fchownat(the volume's root): EROFS"));
    }

    #[test]
    fn of_a_path_as_long_as_a_deep_tree_the_end_is_shown() {
        let sentence = sentence(&format!("{}/end", "d/".repeat(5000)));
        assert!(
            sentence.len() < 1300 && sentence.contains("/end\")"),
            "{sentence}"
        );
    }
}
