//! The log file of runcrust and its hook, which `log` in the configuration names. It gets messages other than the
//! errors of commands.
//!
//! Events from modules with the name `progress` are shown on the terminal as well, if standard error is one: they tell
//! an operator what a command waits for. Those of level `DEBUG` are only shown there.

mod subscriber;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;

use subscriber::LogSubscriber;

use crate::StatusLine;
use crate::trust::is_owned_by_root;
use crate::trust::{self, PathKind, TrustError};

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Users other than root can change the path.
    #[error(transparent)]
    Untrusted(TrustError),
    #[error("open {}: {source}; hint: check the directory, which has to exist; runcrust creates only the file", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The path isn't a regular file, root doesn't own it, or it has more than one hard link.
    #[error("{} isn't a regular file that root owns and that has one hard link; hint: remove it, or configure another path", .0.display())]
    NotALogFile(PathBuf),
}

/// Starts logging to the end of the file at `path`, and showing progress on a terminal. Without a path, nothing is
/// logged: standard output and standard error belong to the container. A log that can't be opened is ignored, because a
/// container has to start without it. [`check`] returns the error.
pub fn start(path: Option<&Path>) {
    let file = path.and_then(|path| open(path, true).ok());
    // Fails only if there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(LogSubscriber { file });
}

/// The progress that is shown on the terminal. A process has one terminal.
static PROGRESS: Mutex<StatusLine> = Mutex::new(StatusLine::new());

fn show_progress(text: &str) {
    let mut progress = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    progress.show(text);
}

/// Removes the progress from the terminal. It has to be removed before the command prints its result or an error, and
/// before a container gets the terminal.
pub fn clear_progress() {
    let mut progress = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    progress.clear();
}

/// Checks that the log file can be opened or created. Doesn't create it.
pub fn check(path: &Path) -> Result<(), LogError> {
    match open(path, false) {
        Err(LogError::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            real_path(path).map(drop)
        }
        other => other.map(drop),
    }
}

/// Opens the log. Another user must not be able to make root write to another file that root owns, through a symbolic
/// or hard link. A pipe must not delay the start of a container.
fn open(path: &Path, create: bool) -> Result<File, LogError> {
    let real = real_path(path)?;
    let failed = |source| LogError::Open {
        path: path.to_owned(),
        source,
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.append(true).create(create).mode(0o600);
    options.custom_flags(flags.bits().cast_signed());
    let file = options.open(real).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() && is_owned_by_root(metadata.uid()) && metadata.nlink() == 1 {
        Ok(file)
    } else {
        Err(LogError::NotALogFile(path.to_owned()))
    }
}

/// Returns the resolved path of the log. Symbolic links are followed if root owns them. If the file doesn't exist, only
/// its directory is resolved.
fn real_path(path: &Path) -> Result<PathBuf, LogError> {
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
    fn only_a_regular_file_of_roots_with_one_link_is_a_log() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        check(&at("new")).unwrap();
        assert!(!at("new").exists(), "a check creates nothing");
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
    fn a_log_directory_may_be_writable_for_its_group_only() {
        let temporary = tempfile::tempdir().unwrap();
        let log = temporary.path().join("log");
        for (mode, expected) in [(0o775, true), (0o777, false), (0o1777, true)] {
            std::fs::set_permissions(temporary.path(), PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(opens(&log), expected, "{mode:o}");
        }
    }
}
