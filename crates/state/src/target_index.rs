//! The index of the target paths of staged volumes, `targets.json`, for mounts whose source isn't a target path.
//!
//! An engine may bind-mount a target path to another path, and pass that path on as the source of a mount. Comparing
//! such a source with every staged volume would make each create on the node slower. The index lists the file systems
//! that target paths are on, so that one statx(2) suffices for a source on any other file system.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::MAX_RECORD_SIZE;
use crate::record::Version;
use crate::target::{TargetLookup, TargetPath};
use crust_blockfs::DeviceNumber;
use crust_blockfs::bounded;

/// The name of the file in the state directory.
pub(crate) const TARGETS_FILE: &str = "targets.json";

/// An index of target paths. A path in it may have been unstaged since, so the volume's entry decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetIndex {
    version: Version<1>,
    /// `st_dev` of the file systems that target paths were on when they were staged, as the stager saw them. None is
    /// ever removed: a number without target paths only costs time. A file system that was mounted later is missing, so
    /// readers also look up the file systems of `non_csi_paths`.
    file_systems: Vec<DeviceNumber>,
    /// Target paths that don't have the form of a CSI volume's path, as given and with symbolic links resolved.
    #[serde(rename = "elsewhere")]
    non_csi_paths: Vec<PathBuf>,
}

impl TargetIndex {
    /// Reads the index. Returns `None` if the file doesn't exist, which means that the staged volumes are unknown.
    ///
    /// Unlike for records, the owners of the parent directories aren't checked. That would be most of the cost. They
    /// were checked when the state directory was created, and no decision is made by the index alone.
    pub fn read(state_dir: &Path) -> std::io::Result<Option<Self>> {
        match bounded::read(&state_dir.join(TARGETS_FILE), MAX_RECORD_SIZE) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether no target path was ever indexed. Every staged volume can then be found by its path, because no
    /// target path led to a directory that could be bind-mounted to another path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file_systems.is_empty() && self.non_csi_paths.is_empty()
    }

    /// Returns whether a target path is, or was, on the file system with this `st_dev`.
    #[must_use]
    pub fn has_file_system(&self, device: DeviceNumber) -> bool {
        self.file_systems.contains(&device)
    }

    /// Returns the target paths that don't have the form of a CSI volume's path. Some may have been unstaged since.
    pub fn non_csi_paths(&self) -> impl Iterator<Item = TargetPath> {
        let paths = self.non_csi_paths.iter();
        paths.filter_map(|path| TargetPath::new(path).ok())
    }

    /// Returns whether the target path is indexed with all its spellings.
    pub(crate) fn has(&self, target: &TargetLookup<'_>) -> bool {
        let device = target.device();
        device.map_or(true, |device| self.has_file_system(device))
            && non_csi_spellings(target)
                .iter()
                .all(|path| self.lists(path))
    }

    /// Adds a target path. Returns whether the index has changed.
    pub(crate) fn add(&mut self, target: &TargetLookup<'_>) -> bool {
        let before = (self.file_systems.len(), self.non_csi_paths.len());
        // A path that leads to no directory has no volume that could be bind-mounted.
        if let Ok(device) = target.device()
            && !self.has_file_system(device)
        {
            self.file_systems.push(device);
        }
        for path in non_csi_spellings(target) {
            if !self.lists(&path) {
                self.non_csi_paths.push(path.as_path().to_owned());
            }
        }
        before != (self.file_systems.len(), self.non_csi_paths.len())
    }

    /// Returns whether a path is among the indexed ones. The bytes are compared: a comparison by components would be
    /// most of the cost of a stage.
    fn lists(&self, path: &TargetPath) -> bool {
        let path = path.as_path().as_os_str();
        let mut paths = self.non_csi_paths.iter();
        paths.any(|known| known.as_os_str() == path)
    }

    /// Removes a path. Returns whether it was indexed.
    pub(crate) fn remove(&mut self, path: &TargetPath) -> bool {
        let before = self.non_csi_paths.len();
        self.non_csi_paths.retain(|known| known != path.as_path());
        before != self.non_csi_paths.len()
    }
}

/// Returns the spellings of a target path that don't have the form of a CSI volume's path.
fn non_csi_spellings(target: &TargetLookup<'_>) -> Vec<TargetPath> {
    let mut paths = target.spellings();
    paths.retain(|path| path.csi_volume().is_none());
    paths
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_target_path_is_indexed_by_file_system_and_name() {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        let stat = std::fs::metadata(&root).unwrap();
        let device =
            DeviceNumber::new(rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
        std::fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        let csi = "pods/u/volumes/kubernetes.io~csi/pv-1/mount";
        for (path, named) in [
            ("real/a", &["real/a"][..]),
            ("link/a", &["link/a", "real/a"]),
            (csi, &[]),
        ] {
            let target = TargetPath::new(root.join(path)).unwrap();
            let mut index = TargetIndex::default();
            assert!(!index.has(&target.look_up()), "{path}");
            assert!(index.add(&target.look_up()), "{path}");
            assert!(index.has(&target.look_up()), "{path}");
            assert!(!index.add(&target.look_up()), "{path}: nothing new");
            assert!(index.has_file_system(device), "{path}");
            let named: Vec<TargetPath> = named
                .iter()
                .map(|path| TargetPath::new(root.join(path)).unwrap())
                .collect();
            assert_eq!(index.non_csi_paths().collect::<Vec<_>>(), named, "{path}");
            for left in (0..named.len()).rev() {
                assert!(index.remove(&named[left]), "{path}");
                assert_eq!(index.non_csi_paths().collect::<Vec<_>>(), named[..left]);
            }
            assert!(!index.remove(&target), "{path}: it isn't there");
            assert!(index.has_file_system(device), "{path}: stays");
            assert_eq!(index.has(&target.look_up()), named.is_empty(), "{path}");
        }
    }
}
