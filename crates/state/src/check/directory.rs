//! The runtime's own directories.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::Finding;
use crate::files::is_in_memory;
use crate::files::{Directory, FileError};

/// A directory as it is.
#[derive(Debug)]
struct Seen<'a> {
    path: &'a Path,
    /// Its mode; `None` where it isn't there.
    mode: Option<u32>,
    /// Nothing can be written there.
    read_only: bool,
    /// It is in memory, or will be where its first parent that is there is; `None`: nobody can tell.
    in_memory: Option<bool>,
}

/// A directory of records, which are of this boot, and root's alone. That it isn't there is fine.
#[must_use]
pub fn directory(what: &'static str, path: &Path) -> Finding {
    match look(path) {
        Ok(seen) => judge(what, &seen),
        Err(error) => Finding::failed(what, &error).or_else("it has to be root's, mode 0700"),
    }
}

fn look(path: &Path) -> Result<Seen<'_>, FileError> {
    // As every user of it does.
    let there = Directory::open(path)?;
    let metadata = std::fs::metadata(path).ok().filter(|_| there.is_some());
    let existing = path.ancestors().find(|path| path.exists());
    let mount = existing.and_then(|path| statvfs(path).ok());
    Ok(Seen {
        path,
        mode: metadata.map(|it| it.mode() & 0o7777),
        read_only: mount.is_some_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY)),
        in_memory: existing.and_then(is_in_memory),
    })
}

fn judge(what: &'static str, seen: &Seen<'_>) -> Finding {
    let path = seen.path.display();
    if seen.read_only {
        let fix = "mount it to be written to, as /run is";
        return Finding::fail(what, format!("{path} is on a read-only mount"), fix);
    }
    if seen.in_memory == Some(false) {
        return Finding::warn(
            what,
            format!("{path} isn't on a tmpfs: its records outlive the boot that they are of"),
            "put it below /run, or mount a tmpfs there",
        );
    }
    match seen.mode {
        None => Finding::pass(what, format!("{path} will be made")),
        Some(0o700) => Finding::pass(what, path.to_string()),
        Some(mode) => Finding::warn(
            what,
            format!("{path} has mode {mode:04o}: others than root can look into it"),
            format!("chmod 0700 {path}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{DirBuilder, set_permissions};
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};

    use super::*;
    use crate::check::Verdict;

    #[test]
    fn records_are_in_memory_and_roots_alone() {
        let path = Path::new("/run/x");
        let (memory, disk) = (Some(true), Some(false));
        for (mode, in_memory, read_only, expected, words) in [
            (Some(0o700), memory, false, Verdict::Pass, "/run/x"),
            (None, memory, false, Verdict::Pass, "/run/x will be made"),
            (Some(0o700), None, false, Verdict::Pass, "/run/x"),
            (Some(0o755), memory, false, Verdict::Warn, "mode 0755"),
            (Some(0o700), disk, false, Verdict::Warn, "isn't on a tmpfs"),
            (None, disk, false, Verdict::Warn, "isn't on a tmpfs"),
            (Some(0o700), memory, true, Verdict::Fail, "read-only"),
            (None, disk, true, Verdict::Fail, "read-only"),
        ] {
            let seen = Seen {
                path,
                mode,
                read_only,
                in_memory,
            };
            let finding = judge("state directory", &seen);
            assert_eq!(finding.verdict, expected, "{seen:?}");
            assert!(finding.found.contains(words), "{finding}");
        }
    }

    #[test]
    fn what_others_can_change_fails() {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        let at = |name: &str| lab.path().join(name);
        let found = |name: &str| directory("x", &at(name)).found;
        DirBuilder::new().mode(0o700).create(at("d")).unwrap();
        for name in ["d", "none"] {
            assert_ne!(
                directory("x", &at(name)).verdict,
                Verdict::Fail,
                "{}",
                found(name)
            );
        }
        symlink("d", at("link")).unwrap();
        assert!(found("link").contains("is a link"), "{}", found("link"));
        set_permissions(at("d"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(found("d").contains("can be written"), "{}", found("d"));
        assert_eq!(directory("x", &at("d")).verdict, Verdict::Fail);
        // As everybody who uses it sees it.
        set_permissions(at("d"), PermissionsExt::from_mode(0o700)).unwrap();
        for (mode, fails) in [(0o777, true), (0o1777, false)] {
            set_permissions(lab.path(), PermissionsExt::from_mode(mode)).unwrap();
            let finding = directory("x", &at("d"));
            assert_eq!(finding.verdict == Verdict::Fail, fails, "{finding}");
        }
    }
}
