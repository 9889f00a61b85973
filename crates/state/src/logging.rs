//! What runcrust and its hook have to say beside errors, for the file that `log` names.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use rustix::fs::OFlags;

use crate::trust::{self, Kind};

/// Sends events to the end of `path`. Standard output and error are the container's, so without a
/// file nothing is written; a log that can't be opened, or isn't root's, is no reason not to start a
/// container.
pub fn start(path: Option<&Path>) {
    let Some(file) = path.and_then(open) else {
        return;
    };
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Mutex::new(file));
    // Only a second call could fail.
    let _ = subscriber.try_init();
}

/// What root writes to is no other file of root's, by somebody else's link, nor a pipe that holds a
/// container's start up until somebody reads it.
fn open(path: &Path) -> Option<File> {
    let real = match trust::way(path, Kind::File).ok()? {
        Some(real) => real,
        None => trust::way(path.parent()?, Kind::Directory)
            .ok()??
            .join(path.file_name()?),
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    options.custom_flags(flags.bits().cast_signed());
    options.open(real).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    fn only_a_file_of_roots_is_a_log() {
        let lab = tempfile::tempdir().unwrap();
        let at = |name: &str| lab.path().join(name);
        assert!(open(&at("new")).is_some());
        assert!(open(&at("new")).is_some());
        let mode = at("new").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        symlink("new", at("link")).unwrap();
        assert!(open(&at("link")).is_some(), "root's own link");
        lchown(at("link"), Some(1000), None).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::RUSR).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        for other in ["link", "fifo", "dangling", "none/log"] {
            assert!(open(&at(other)).is_none(), "{other}");
        }
        std::fs::set_permissions(lab.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(open(&at("new")).is_none());
    }
}
