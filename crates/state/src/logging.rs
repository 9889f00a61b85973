//! The log of runcrust and its hook: messages other than errors, for the file that `log` names.

mod subscriber;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use subscriber::FileSubscriber;

use crate::trust::is_owned_by_root;
use crate::trust::{self, PathKind, TrustError};

/// The error of opening the log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Others than root can change what leads to it.
    #[error(transparent)]
    Untrusted(TrustError),
    /// It can't be opened.
    #[error("open {}: {source}; hint: runcrust makes the file, in a directory that is there", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Something else has that name.
    #[error("{} isn't a file of root's with one name; hint: remove it, or name another", .0.display())]
    NotOurs(PathBuf),
}

/// Sends events to the end of `path`. Standard output and error are the container's, so without a
/// file nothing is written; a log that can't be opened, or isn't root's, is no reason not to start a
/// container: [`check`] tells that.
pub fn start(path: Option<&Path>) {
    let Some(Ok(file)) = path.map(|path| open(path, true)) else {
        return;
    };
    // Only a second call could fail.
    let _ = tracing::subscriber::set_global_default(FileSubscriber(file));
}

/// Whether there is, or can be, such a log.
pub fn check(path: &Path) -> Result<(), LogError> {
    match open(path, false) {
        Err(LogError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            place(path).map(drop)
        }
        other => other.map(drop),
    }
}

/// What root writes to is no other file of root's, by somebody else's link or name for it, nor a pipe
/// that holds a container's start up until somebody reads it.
fn open(path: &Path, create: bool) -> Result<File, LogError> {
    let place = place(path)?;
    let failed = |source| LogError::Open {
        path: path.to_owned(),
        source,
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.append(true).create(create).mode(0o600);
    options.custom_flags(flags.bits().cast_signed());
    let file = options.open(place).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() && is_owned_by_root(metadata.uid()) && metadata.nlink() == 1 {
        Ok(file)
    } else {
        Err(LogError::NotOurs(path.to_owned()))
    }
}

/// Where root's own links lead, and else the name in its directory.
fn place(path: &Path) -> Result<PathBuf, LogError> {
    if let Ok(Some(real)) = trust::resolve_existing(path, PathKind::File) {
        return Ok(real);
    }
    let missing = || LogError::Open {
        path: path.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    };
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(missing());
    };
    let directory =
        trust::resolve_existing(directory, PathKind::LogDirectory).map_err(LogError::Untrusted)?;
    Ok(directory.ok_or_else(missing)?.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    fn opens(path: &Path) -> bool {
        let checked = check(path);
        let opened = open(path, true);
        assert_eq!(checked.is_ok(), opened.is_ok(), "{checked:?} {opened:?}");
        opened.is_ok()
    }

    #[test]
    fn only_a_file_of_roots_is_a_log() {
        let lab = tempfile::tempdir().unwrap();
        let at = |name: &str| lab.path().join(name);
        check(&at("new")).unwrap();
        assert!(!at("new").exists(), "a look makes nothing");
        assert!(opens(&at("new")) && opens(&at("new")));
        let mode = at("new").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        symlink("new", at("link")).unwrap();
        assert!(opens(&at("link")), "root's own link");
        lchown(at("link"), Some(1000), None).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        File::create(at("others")).unwrap();
        lchown(at("others"), Some(1000), None).unwrap();
        File::create(at("one")).unwrap();
        std::fs::hard_link(at("one"), at("two")).unwrap();
        for other in [
            "link",
            "fifo",
            "dangling",
            "directory",
            "others",
            "two",
            "none/log",
        ] {
            assert!(!opens(&at(other)), "{other}");
        }
    }

    #[test]
    fn a_directory_of_logs_may_be_a_groups_but_not_everybodys() {
        let lab = tempfile::tempdir().unwrap();
        let log = lab.path().join("log");
        for (mode, works) in [(0o775, true), (0o777, false), (0o1777, true)] {
            std::fs::set_permissions(lab.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(opens(&log), works, "{mode:o}");
        }
    }
}
