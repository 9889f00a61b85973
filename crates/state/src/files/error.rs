//! The error of a file or directory of runcrust's state, with a hint if the node can't store files.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// The error of a file or directory of runcrust's state.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{call} {}: {source}{}", path.display(), hint(source))]
    Call {
        /// The name of the system call, as strace prints it.
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A file that is to be written is larger than [`super::MAX_RECORD_SIZE`], and couldn't be read again.
    #[error("{} would be larger than 16 MiB; hint: check whether a container mounts a volume thousands of times", path.display())]
    TooLarge { path: PathBuf },
    /// A directory has more entries than a listing collects.
    #[error(
        "{} has more than 100,000 entries; hint: there is one for each staged volume, container or device: find out what \
         creates so many, and unstage the volumes that no pod needs", path.display()
    )]
    TooMany { path: PathBuf },
    /// The file or directory isn't of the expected kind, or users other than root could have changed it.
    #[error("{} {reason}; hint: make root its owner and only writer (chown root:root, chmod go-w), or remove it and stage the volume again", path.display())]
    Untrusted { path: PathBuf, reason: &'static str },
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
    /// Returns whether the file system or a quota is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Call { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }

    /// Returns whether the call failed because a resource was exhausted, because of an I/O error, or because of a
    /// signal. The file may be valid, and a retry may succeed.
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

/// Returns the hint that is appended to the message of an error; empty for errors without a hint.
fn hint(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            "; hint: its file system or a quota is full (df, df -i): free some space, and retry"
        }
        Some(Errno::ROFS) => {
            "; hint: its file system is read-only: mount it read-write, or configure a directory on \
             another one (crust_root, state_dir)"
        }
        Some(Errno::IO) => "; hint: see the kernel's log (dmesg) for the error of the disk",
        Some(Errno::MFILE) => {
            "; hint: this process has too many open files: raise its limit (ulimit -n, or LimitNOFILE= of its unit)"
        }
        Some(Errno::NFILE) => {
            "; hint: the node has too many open files: see /proc/sys/fs/file-nr, and raise fs.file-max"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_node_that_cannot_store_files_have_a_hint() {
        for (errno, words) in [
            (Errno::NOSPC, "(os error 28); hint: its file system or"),
            (Errno::DQUOT, "a quota is full"),
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
