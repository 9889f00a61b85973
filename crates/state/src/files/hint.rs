//! The next step for errors of a node that can't keep files.

use std::io;

use rustix::io::Errno;

/// Returns the hint that is appended to an error's sentence; empty where the error says enough.
pub(super) fn of(error: &io::Error) -> &'static str {
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
    use std::path::Path;

    use super::*;
    use crate::files::failed;

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
