//! The error of a state file or its directory, with the next step if the node can't keep files.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The error of a file or directory of the runtime's state.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A system call failed.
    #[error("{call} {}: {source}{}", path.display(), hint(source))]
    Call {
        /// The call, as strace names it.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// It would be larger than what is read.
    #[error("{} would be larger than 16 MiB; hint: does a container mount a volume thousands of times?", path.display())]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
    },
    /// A directory has more entries than a listing collects.
    #[error(
        "{} has more than 100,000 entries, and no more are listed; hint: there is one for each staged volume, container or \
         device: find out what makes so many, and unstage the volumes that no pod needs", path.display()
    )]
    TooMany {
        /// The directory's path.
        path: PathBuf,
    },
    /// It is there, but isn't what root would have left there.
    #[error("{} {reason}; it is refused; hint: only root may own and write it; correct that, or remove it and stage the volume again", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
}

/// Returns the error of a failed system call.
pub(crate) fn failed(call: &'static str, path: &Path, source: impl Into<io::Error>) -> FileError {
    FileError::Call {
        call,
        path: path.to_owned(),
        source: source.into(),
    }
}

impl FileError {
    /// Whether the file system, or its owner's share of it, is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Call { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// Whether the process or the system is short of something, or a disk failed: the file may be as it should be, and
    /// another try may succeed.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        let Self::Call { source, .. } = self else {
            return false;
        };
        matches!(
            Errno::from_io_error(source),
            Some(
                Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::INTR | Errno::AGAIN
            )
        )
    }

    /// Returns the path of the file or directory that the error is about.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Call { path, .. }
            | Self::TooLarge { path }
            | Self::TooMany { path }
            | Self::Untrusted { path, .. } => path,
        }
    }
}

/// Returns the hint that is appended to an error's sentence; empty where the error says enough.
fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "; hint: its file system is full (df, df -i), or a quota is: make room and try again"
        }
        Some(Errno::ROFS) => {
            "; hint: its file system is read-only: mount it read-write, or configure a directory on \
             another one (crust_root, state_dir)"
        }
        Some(Errno::IO) => "; hint: the kernel's log (dmesg) says what the disk answered",
        Some(Errno::MFILE) => {
            "; hint: this process may not have more files open (ulimit -n; LimitNOFILE= of a unit)"
        }
        Some(Errno::NFILE) => {
            "; hint: the node may not have more files open: see /proc/sys/fs/file-nr, and raise \
             fs.file-max"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_cannot_keep_files_is_told_what_to_do() {
        for (errno, words) in [
            (Errno::NOSPC, "(os error 28); hint: its file system is full"),
            (Errno::DQUOT, "a quota is"),
            (Errno::ROFS, "hint: its file system is read-only"),
            (Errno::IO, "dmesg"),
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "fs.file-max"),
        ] {
            let error = failed("write", Path::new("/run/crust/x"), errno).to_string();
            let start = error.starts_with("write /run/crust/x: ");
            assert!(start && error.contains(words), "{error}");
        }
        let other = failed("openat", Path::new("/x"), Errno::PERM).to_string();
        assert!(!other.contains("hint"), "{other}");
    }
}
