//! The presence of a target path: how much of it exists.

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
pub(crate) const TARGET_FILE: &str = "target.json";

/// The deepest directory on a target path that exists, and its file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetPresence {
    pub version: Version<1>,
    /// The resolved path of the directory.
    pub directory: PathBuf,
    /// `st_dev` of the directory. On btrfs and similar file systems it isn't the number of a block device.
    pub device: DeviceNumber,
    /// The id of the boot in which the directory was looked up. In another boot, `device` may be another file system.
    /// Records of early versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
}

impl TargetPresence {
    /// Returns whether `earlier` is of another boot. Its device number then isn't valid any more.
    #[must_use]
    pub fn is_of_another_boot(&self, earlier: &Self) -> bool {
        earlier.boot_id.is_some() && earlier.boot_id != self.boot_id
    }

    /// Returns whether `earlier` should be replaced: more of the path exists now, or the same part of it in a later
    /// boot.
    pub(crate) fn supersedes(&self, earlier: &Self) -> bool {
        let is_newer = self.boot_id.is_some() && self.boot_id != earlier.boot_id;
        self.directory.starts_with(&earlier.directory)
            && (self.directory != earlier.directory || is_newer)
    }
}

/// The error of determining a target path's presence.
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
        self.look_up().presence()
    }
}

impl TargetLookup<'_> {
    /// Returns `st_dev` of the deepest directory on the path that exists.
    pub(crate) fn device(&self) -> Result<DeviceNumber, PresenceError> {
        match &self.link_free {
            Some(found) if found.is_directory => Ok(found.device),
            _ => Ok(self.presence()?.device),
        }
    }

    /// Returns how much of the path exists, as [`TargetPath::presence`] does.
    pub(crate) fn presence(&self) -> Result<TargetPresence, PresenceError> {
        let Some(found) = &self.link_free else {
            return presence_by_walk(self.path);
        };
        if !found.is_directory {
            return Err(not_a_directory(found.part));
        }
        Ok(new_presence(found.part.to_owned(), found.device))
    }
}

fn presence_by_walk(path: &TargetPath) -> Result<TargetPresence, PresenceError> {
    for path in path.as_path().ancestors() {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("lstat", path, error)),
            Ok(_) => return presence_of_directory(path),
        }
    }
    let not_found = io::Error::from(io::ErrorKind::NotFound);
    Err(failed("lstat", Path::new("/"), not_found))
}

/// Returns the presence of a path whose last component exists. Fails if that is a dangling link, or isn't a directory.
fn presence_of_directory(path: &Path) -> Result<TargetPresence, PresenceError> {
    let metadata = fs::metadata(path).map_err(|error| failed("stat", path, error))?;
    if !metadata.is_dir() {
        return Err(not_a_directory(path));
    }
    let real = fs::canonicalize(path).map_err(|error| failed("realpath", path, error))?;
    let device = DeviceNumber::new(major(metadata.dev()), minor(metadata.dev()));
    Ok(new_presence(real, device))
}

fn new_presence(directory: PathBuf, device: DeviceNumber) -> TargetPresence {
    TargetPresence {
        version: Version,
        directory,
        device,
        boot_id: boot_id().ok(),
    }
}

fn not_a_directory(path: &Path) -> PresenceError {
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
    fn a_presence_that_is_deeper_or_of_a_later_boot_supersedes() {
        let presence = |directory: &str, boot: Option<&str>| TargetPresence {
            version: Version,
            directory: directory.into(),
            device: "8:1".parse().unwrap(),
            boot_id: boot.map(str::to_owned),
        };
        for (earlier, now, supersedes, other_boot) in [
            (("/k/a", Some("1")), ("/k/a", Some("1")), false, false),
            (("/k/a", Some("1")), ("/k/a/b", Some("1")), true, false),
            (("/k/a", Some("1")), ("/k", Some("1")), false, false),
            (("/k/a", Some("1")), ("/k/a", Some("2")), true, true),
            // The file system may not be mounted yet in the second boot.
            (("/k/a", Some("1")), ("/k", Some("2")), false, true),
            (("/k/a", None), ("/k/a", Some("2")), true, false),
            (("/k/a", Some("1")), ("/k/a", None), false, true),
        ] {
            let case = format!("{earlier:?} {now:?}");
            let [earlier, now] = [earlier, now].map(|(path, boot)| presence(path, boot));
            assert_eq!(now.supersedes(&earlier), supersedes, "{case}");
            assert_eq!(now.is_of_another_boot(&earlier), other_boot, "{case}");
        }
    }

    #[test]
    fn the_presence_is_the_deepest_existing_directory() {
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
