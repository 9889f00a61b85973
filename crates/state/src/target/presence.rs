//! How much of a target path exists.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};

use super::{TargetLookup, TargetPath};
use crate::process::boot_id;
use crate::record::Version;
use crust_blockfs::DeviceNumber;

/// The name of the file with a [`TargetPresence`] in an entry.
pub(crate) const TARGET: &str = "target.json";

/// The deepest directory of a target path that exists, and its file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetPresence {
    /// 1.
    pub version: Version<1>,
    /// The directory's path without links.
    pub directory: PathBuf,
    /// `st_dev`, which is no block device's on btrfs and its like.
    pub device: DeviceNumber,
    /// The boot in which it was looked up: in another one the number may be another file system's. Records of early
    /// versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

impl TargetPresence {
    /// Whether an earlier presence is of another boot, so that its device number means nothing any more.
    #[must_use]
    pub fn is_of_another_boot(&self, earlier: &Self) -> bool {
        earlier.boot_id.is_some() && earlier.boot_id != self.boot_id
    }

    /// Whether it says more than an earlier presence: more of the path exists, or as much in this boot.
    pub(crate) fn says_more_than(&self, earlier: &Self) -> bool {
        let is_newer = self.boot_id.is_some() && self.boot_id != earlier.boot_id;
        self.directory.starts_with(&earlier.directory)
            && (self.directory != earlier.directory || is_newer)
    }
}

/// A failed lookup of a target path's presence.
#[derive(Debug, thiserror::Error)]
#[error("{call} {}: {source}", path.display())]
pub struct PresenceError {
    call: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl TargetPath {
    /// Returns how much of the path exists now.
    pub fn presence(&self) -> Result<TargetPresence, PresenceError> {
        self.look().presence()
    }
}

impl TargetLookup<'_> {
    /// Returns `st_dev` of the deepest directory of the path that exists.
    pub(crate) fn device(&self) -> Result<DeviceNumber, PresenceError> {
        match &self.plain {
            Some(plain) if plain.is_directory => Ok(plain.device),
            _ => Ok(self.presence()?.device),
        }
    }

    /// See [`TargetPath::presence`].
    pub(crate) fn presence(&self) -> Result<TargetPresence, PresenceError> {
        let Some(plain) = &self.plain else {
            return walked(self.path);
        };
        if !plain.is_directory {
            return Err(no_directory(plain.part));
        }
        Ok(presence(plain.part.to_owned(), plain.device))
    }
}

fn walked(path: &TargetPath) -> Result<TargetPresence, PresenceError> {
    for path in path.as_path().ancestors() {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("lstat", path, error)),
            Ok(_) => return directory(path),
        }
    }
    let nothing = io::Error::from(io::ErrorKind::NotFound);
    Err(failed("lstat", Path::new("/"), nothing))
}

/// A link that leads nowhere isn't nothing, and no directory either.
fn directory(path: &Path) -> Result<TargetPresence, PresenceError> {
    let found = fs::metadata(path).map_err(|error| failed("stat", path, error))?;
    if !found.is_dir() {
        return Err(no_directory(path));
    }
    let real = fs::canonicalize(path).map_err(|error| failed("realpath", path, error))?;
    let device = DeviceNumber::new(major(found.dev()), minor(found.dev()));
    Ok(presence(real, device))
}

fn presence(directory: PathBuf, device: DeviceNumber) -> TargetPresence {
    TargetPresence {
        version: Version,
        directory,
        device,
        boot_id: boot_id().ok(),
    }
}

fn no_directory(path: &Path) -> PresenceError {
    failed("stat", path, io::ErrorKind::NotADirectory.into())
}

fn failed(call: &'static str, path: &Path, source: io::Error) -> PresenceError {
    PresenceError {
        call,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_look_that_saw_more_or_sees_it_in_this_boot_counts() {
        let presence = |directory: &str, boot: Option<&str>| TargetPresence {
            version: Version,
            directory: directory.into(),
            device: "8:1".parse().unwrap(),
            boot_id: boot.map(str::to_owned),
        };
        for (earlier, now, is_more, is_over) in [
            (("/k/a", Some("1")), ("/k/a", Some("1")), false, false),
            (("/k/a", Some("1")), ("/k/a/b", Some("1")), true, false),
            (("/k/a", Some("1")), ("/k", Some("1")), false, false),
            (("/k/a", Some("1")), ("/k/a", Some("2")), true, true),
            // Its file system may not be mounted yet.
            (("/k/a", Some("1")), ("/k", Some("2")), false, true),
            (("/k/a", None), ("/k/a", Some("2")), true, false),
            (("/k/a", Some("1")), ("/k/a", None), false, true),
        ] {
            let told = format!("{earlier:?} {now:?}");
            let [earlier, now] = [earlier, now].map(|(path, boot)| presence(path, boot));
            assert_eq!(now.says_more_than(&earlier), is_more, "{told}");
            assert_eq!(now.is_of_another_boot(&earlier), is_over, "{told}");
        }
    }

    #[test]
    fn a_path_stands_as_far_as_its_directories_do() {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("data/pods/a/mount")).unwrap();
        symlink("data", root.join("kubelet")).unwrap();
        symlink("nowhere", root.join("dangling")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        let presence = |path: &str| TargetPath::new(root.join(path)).unwrap().presence();
        for (path, expected) in [
            ("kubelet/pods/a/mount", "data/pods/a/mount"),
            ("kubelet/pods/b/mount", "data/pods"),
            ("data/pods/a/mount/sub/sub", "data/pods/a/mount"),
            ("elsewhere/a", ""),
        ] {
            let found = presence(path).unwrap();
            assert_eq!(
                found.directory.join(""),
                root.join(expected).join(""),
                "{path}"
            );
            let text = serde_json::to_string(&found).unwrap();
            assert_eq!(
                serde_json::from_str::<TargetPresence>(&text).unwrap(),
                found
            );
        }
        let first = r#"{"version":1,"directory":"/","device":"8:1"}"#;
        assert_eq!(
            serde_json::from_str::<TargetPresence>(first)
                .unwrap()
                .boot_id,
            None
        );
        for (path, call) in [
            ("file", "stat "),
            ("file/a", "lstat "),
            ("dangling/a", "stat "),
        ] {
            let error = presence(path).unwrap_err().to_string();
            assert!(error.starts_with(call), "{error}");
        }
    }
}
