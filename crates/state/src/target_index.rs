//! `targets.json`: an index of the target paths of staged volumes, for sources that don't match by path.
//!
//! An engine may bind a target path elsewhere and hand that on as a mount's source. Looking at every
//! staged volume to find out would make each create on the node slower. The index says which file
//! systems hold target paths, so that a source on any other one is settled by one statx(2).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::MAX_RECORD_SIZE;
use crate::record::Version;
use crate::target::{TargetLookup, TargetPath};
use crust_blockfs::DeviceNumber;
use crust_blockfs::bounded;

/// The file's name in the state directory.
pub(crate) const TARGETS: &str = "targets.json";

/// An index of target paths. It is a hint: a path in it may have been unstaged since, so the volume's own
/// entry decides.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetIndex {
    version: Version<1>,
    /// `st_dev` of the file systems that target paths were on when they were staged, as seen by who staged them.
    /// Never removed: one that holds none any more costs time. One that was mounted later is missing, so
    /// whoever reads this also asks which file systems the target paths in `elsewhere` are on.
    file_systems: Vec<DeviceNumber>,
    /// Target paths that aren't a CSI volume's by their form, as given and with links resolved.
    elsewhere: Vec<PathBuf>,
}

impl TargetIndex {
    /// Reads the index by its path; `None` where the file doesn't exist, so that nothing is known of what is staged.
    ///
    /// Unlike for records, the owners of the directories above aren't checked, which would be most of the
    /// cost: they were when the state directory was made, and nothing is acted upon by the index alone.
    pub fn read(state_dir: &Path) -> std::io::Result<Option<Self>> {
        match bounded::read(&state_dir.join(TARGETS), MAX_RECORD_SIZE) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether nothing was ever indexed: every volume on the node, if there is one, is found by path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.file_systems.is_empty() && self.elsewhere.is_empty()
    }

    /// Whether a target path is, or was, on the file system with this `st_dev`.
    #[must_use]
    pub fn has_file_system(&self, device: DeviceNumber) -> bool {
        self.file_systems.contains(&device)
    }

    /// The target paths that aren't a CSI volume's by their form. Some may not be staged any more.
    pub fn elsewhere(&self) -> impl Iterator<Item = TargetPath> {
        let paths = self.elsewhere.iter();
        paths.filter_map(|path| TargetPath::new(path).ok())
    }

    /// Whether the target path is indexed, with all its spellings.
    pub(crate) fn has(&self, target: &TargetLookup<'_>) -> bool {
        let device = target.device();
        device.map_or(true, |device| self.has_file_system(device))
            && elsewhere(target).iter().all(|path| self.names(path))
    }

    /// Adds a target path; whether that changed anything.
    pub(crate) fn add(&mut self, target: &TargetLookup<'_>) -> bool {
        let before = (self.file_systems.len(), self.elsewhere.len());
        // A path that leads to no directory holds no volume that could be bound elsewhere.
        if let Ok(device) = target.device()
            && !self.has_file_system(device)
        {
            self.file_systems.push(device);
        }
        for path in elsewhere(target) {
            if !self.names(&path) {
                self.elsewhere.push(path.as_path().to_owned());
            }
        }
        before != (self.file_systems.len(), self.elsewhere.len())
    }

    /// Whether a path is listed, byte by byte: a comparison of components would be most of the cost of a stage.
    fn names(&self, path: &TargetPath) -> bool {
        let path = path.as_path().as_os_str();
        self.elsewhere.iter().any(|known| known.as_os_str() == path)
    }

    /// Removes a path; whether it was there.
    pub(crate) fn remove(&mut self, path: &TargetPath) -> bool {
        let before = self.elsewhere.len();
        self.elsewhere.retain(|known| known != path.as_path());
        before != self.elsewhere.len()
    }
}

/// The spellings of a target path that a parent's lookup doesn't reach.
fn elsewhere(target: &TargetLookup<'_>) -> Vec<TargetPath> {
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
        let lab = tempfile::tempdir().unwrap();
        let lab = lab.path().canonicalize().unwrap();
        let stat = std::fs::metadata(&lab).unwrap();
        let device =
            DeviceNumber::new(rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
        std::fs::create_dir(lab.join("real")).unwrap();
        std::os::unix::fs::symlink("real", lab.join("link")).unwrap();
        let csi = "pods/u/volumes/kubernetes.io~csi/pv-1/mount";
        for (path, named) in [
            ("real/a", &["real/a"][..]),
            ("link/a", &["link/a", "real/a"]),
            (csi, &[]),
        ] {
            let target = TargetPath::new(lab.join(path)).unwrap();
            let mut index = TargetIndex::default();
            assert!(!index.has(&target.look()), "{path}");
            assert!(index.add(&target.look()), "{path}");
            assert!(index.has(&target.look()), "{path}");
            assert!(!index.add(&target.look()), "{path}: nothing new");
            assert!(index.has_file_system(device), "{path}");
            let named: Vec<TargetPath> = named
                .iter()
                .map(|path| TargetPath::new(lab.join(path)).unwrap())
                .collect();
            assert_eq!(index.elsewhere().collect::<Vec<_>>(), named, "{path}");
            for left in (0..named.len()).rev() {
                assert!(index.remove(&named[left]), "{path}");
                assert_eq!(index.elsewhere().collect::<Vec<_>>(), named[..left]);
            }
            assert!(!index.remove(&target), "{path}: it isn't there");
            assert!(index.has_file_system(device), "{path}: stays");
            assert_eq!(index.has(&target.look()), named.is_empty(), "{path}");
        }
    }
}
