//! The check of a directory that holds runcrust's records: the state directory or the crust directory.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::Finding;
use crate::files::is_in_memory;
use crate::files::{Directory, FileError};

#[derive(Debug)]
struct DirectoryState<'a> {
    path: &'a Path,
    /// The permission bits. `None` if the directory doesn't exist.
    mode: Option<u32>,
    read_only: bool,
    /// Whether the directory, or the nearest parent that exists, is on a file system in memory. `None` if that is
    /// unknown.
    in_memory: Option<bool>,
}

/// Checks that a directory of records belongs to root alone, can be written, and is on a file system that a reboot
/// empties, because records are only valid in the boot in which they were written. A directory that doesn't exist yet
/// passes.
#[must_use]
pub fn directory(check: &'static str, path: &Path) -> Finding {
    match inspect(path) {
        Ok(state) => finding(check, &state),
        Err(error) => Finding::from_error(check, &error)
            .or_fix("make it a directory that only root can read and write (mode 0700)"),
    }
}

fn inspect(path: &Path) -> Result<DirectoryState<'_>, FileError> {
    // Opened in the same way as in normal operation, so that the same errors are found.
    let opened = Directory::open(path)?;
    let metadata = std::fs::metadata(path).ok().filter(|_| opened.is_some());
    let existing = path.ancestors().find(|path| path.exists());
    let mount = existing.and_then(|path| statvfs(path).ok());
    Ok(DirectoryState {
        path,
        mode: metadata.map(|metadata| metadata.mode() & 0o7777),
        read_only: mount.is_some_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY)),
        in_memory: existing.and_then(is_in_memory),
    })
}

fn finding(check: &'static str, state: &DirectoryState<'_>) -> Finding {
    let path = state.path.display();
    if state.read_only {
        let fix = "mount it read-write, as /run is";
        return Finding::fail(check, format!("{path} is on a read-only mount"), fix);
    }
    if state.in_memory == Some(false) {
        return Finding::warn(
            check,
            format!(
                "{path} isn't on a tmpfs: its records survive a reboot, and are wrong after it"
            ),
            "put it below /run, or mount a tmpfs there",
        );
    }
    match state.mode {
        None => Finding::pass(check, format!("{path} will be created")),
        Some(0o700) => Finding::pass(check, path.to_string()),
        Some(mode) => Finding::warn(
            check,
            format!("{path} has mode {mode:04o}: users other than root can access it"),
            format!("chmod 0700 {path}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{DirBuilder, set_permissions};
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

    use super::*;
    use crate::check::CheckVerdict;

    #[test]
    fn records_have_to_be_in_memory_and_accessible_to_root_alone() {
        let path = Path::new("/run/x");
        let (memory, disk) = (Some(true), Some(false));
        for (mode, in_memory, read_only, expected, words) in [
            (Some(0o700), memory, false, CheckVerdict::Pass, "/run/x"),
            (
                None,
                memory,
                false,
                CheckVerdict::Pass,
                "/run/x will be created",
            ),
            (Some(0o700), None, false, CheckVerdict::Pass, "/run/x"),
            (Some(0o755), memory, false, CheckVerdict::Warn, "mode 0755"),
            (
                Some(0o700),
                disk,
                false,
                CheckVerdict::Warn,
                "isn't on a tmpfs",
            ),
            (None, disk, false, CheckVerdict::Warn, "isn't on a tmpfs"),
            (Some(0o700), memory, true, CheckVerdict::Fail, "read-only"),
            (None, disk, true, CheckVerdict::Fail, "read-only"),
        ] {
            let state = DirectoryState {
                path,
                mode,
                read_only,
                in_memory,
            };
            let finding = finding("state directory", &state);
            assert_eq!(finding.verdict, expected, "{state:?}");
            assert!(finding.found.contains(words), "{finding}");
        }
    }

    #[test]
    fn a_directory_that_others_can_change_fails() {
        let temporary = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| temporary.path().join(name);
        let found = |name: &str| directory("x", &at(name)).found;
        DirBuilder::new().mode(0o700).create(at("d")).unwrap();
        for name in ["d", "none"] {
            assert_ne!(
                directory("x", &at(name)).verdict,
                CheckVerdict::Fail,
                "{}",
                found(name)
            );
        }
        symlink("d", at("link")).unwrap();
        assert!(found("link").contains("is a link"), "{}", found("link"));
        set_permissions(at("d"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(found("d").contains("can be written"), "{}", found("d"));
        assert_eq!(directory("x", &at("d")).verdict, CheckVerdict::Fail);
        // The parents are checked as well: a sticky directory is fine, another writable one is not.
        set_permissions(at("d"), PermissionsExt::from_mode(0o700)).unwrap();
        for (mode, fails) in [(0o777, true), (0o1777, false)] {
            set_permissions(temporary.path(), PermissionsExt::from_mode(mode)).unwrap();
            let finding = directory("x", &at("d"));
            assert_eq!(finding.verdict == CheckVerdict::Fail, fails, "{finding}");
        }
    }
}
