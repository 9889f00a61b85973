//! Lookups on the node that matching needs, and the node's target paths that don't have the form of a CSI volume's
//! path. The parents of a source don't lead to such a target path. The directories of these target paths are therefore
//! looked up, at most once for each create.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crust_blockfs::DeviceNumber;
use crust_blockfs::identity::{CachedIdentity, FileIdentity, LookupError, MountId};
use crust_blockfs::location::{FsLocation, LocationError};
use crust_blockfs::mount_kind::MountKind;
use crust_state::TargetPath;
use crust_state::crust::EntryError;

/// Lookups on the node. A lookup returns "nothing" only if the kernel reports that nothing exists there. Any other
/// failure is returned as an error: if it were taken for "nothing", a volume's directory could be passed through.
pub(crate) trait NodeLookup {
    /// Returns the target path, as given to stage, of the volume that is staged at `path`.
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError>;
    /// Returns the lengths of those paths, among `path` and its parents, at which something may be staged. Returns
    /// `None` if each path has to be looked up.
    fn staged_lengths(&self, _path: &TargetPath) -> Option<Vec<usize>> {
        None
    }
    /// Resolves the symbolic links of a source's path.
    fn resolve(&self, path: &Path) -> Result<ResolvedSource, LookupError>;
    /// Lists a pod's directory of CSI volumes, and returns the volumes that are staged in it.
    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, StagedListError>;
    /// Returns the location in its file system that a path leads to; `None` if nothing is there, or if the file system
    /// doesn't report locations.
    fn locate(&self, path: &Path) -> Result<Option<FsLocation>, LocationError>;
    /// Returns the location that a target path leads to. The part of the path that doesn't exist is taken to be below
    /// the location of the nearest parent that exists.
    fn locate_target(&self, target: &TargetPath) -> Result<Option<FsLocation>, LocationError> {
        self.locate(target.as_path())
    }
    /// Returns the paths that lead to a location by the mounts of this mount namespace. Something else may be mounted
    /// over them.
    fn paths_to(&self, _location: &FsLocation) -> Vec<TargetPath> {
        Vec::new()
    }
    /// Returns the target paths that don't have the form of a CSI volume's path; `None` if a source can lead to a
    /// volume only by its path. The methods below are called only if this returns `Some`.
    fn non_csi_targets(&self) -> Option<&NonCsiTargets> {
        None
    }
    /// Returns the identity of what a path leads to, with links followed, without waiting for a disk or a server.
    fn cached_identity(&self, _path: &Path) -> CachedIdentity {
        CachedIdentity::Missing
    }
    /// Returns the identity of what a path leads to, with links followed; `None` if nothing is there.
    fn identity(&self, _path: &Path) -> Result<Option<FileIdentity>, LookupError> {
        Ok(None)
    }
    /// Returns whether the index lists the file system with this `st_dev`. The index lists the file systems that target
    /// paths were on when they were staged.
    fn is_indexed(&self, _device: DeviceNumber) -> bool {
        false
    }
    /// Returns whether the mount that a path leads to is read-only. A read-only superblock doesn't count.
    fn is_read_only(&self, _path: &Path) -> Result<bool, LocationError> {
        Ok(false)
    }
    /// Returns whether the root directory or a kubelet's directory is on this mount.
    fn is_root_or_kubelet_mount(&self, _mount: MountId) -> bool {
        true
    }
    /// Returns the kind of the mount that `path` leads to.
    fn mount_kind(&self, _path: &Path, _mount: MountId) -> Result<MountKind, LocationError> {
        Ok(MountKind::Other)
    }
    /// Returns the layers of the overlay that a path leads to, and the path's counterpart in each layer.
    fn overlay_layers(&self, _path: &Path) -> Result<Vec<PathBuf>, LocationError> {
        Ok(Vec::new())
    }
    /// Triggers the automount at a path, as the delegate's bind would, and returns the identity of what was mounted;
    /// `None` if nothing is there.
    fn trigger_automount(&self, _path: &Path) -> Result<Option<FileIdentity>, LookupError> {
        Ok(None)
    }
    /// Returns whether the create's deadline has passed. A pod can have thousands of mounts, so the time for lookups is
    /// limited.
    fn is_overdue(&self) -> bool {
        false
    }
    /// Returns whether a volume's directory is not the root of a mount and holds no files. A directory that doesn't
    /// exist is bare.
    fn is_bare_directory(&self, directory: &Path) -> Result<bool, LookupError>;
    /// Resolves a path in the root file system of a container that doesn't run yet.
    fn resolve_in_rootfs(&self, rootfs: &Path, path: &Path) -> PathBuf;
}

/// A source's path with its links resolved.
#[derive(Debug, Default)]
pub(crate) struct ResolvedSource {
    /// The path with its symbolic links resolved; `None` if that is the path itself, or nothing is there.
    pub(crate) path: Option<TargetPath>,
    /// Whether the path crosses no mount point and all target paths are CSI volumes'. Such a source leads to a volume
    /// by its path or not at all. The exception is a kubelet's directory that is a bind mount: its volumes also have a
    /// path of CSI form on the root directory's mount.
    pub(crate) matches_only_by_path: bool,
    /// The identity of what the path leads to; `None` if it still has to be looked up.
    pub(crate) identity: Option<FileIdentity>,
}

/// A failure to list the volumes that are staged for a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StagedListError {
    #[error("getdents64 {}: {source}", directory.display())]
    Listing {
        directory: PathBuf,
        source: std::io::Error,
    },
    #[error("volume {volume}: {source}")]
    Staged { volume: String, source: EntryError },
    #[error(transparent)]
    Lookup(LookupError),
}

/// The node's target paths that don't have the form of a CSI volume's path. Some may no longer be staged.
#[derive(Debug)]
pub(crate) struct NonCsiTargets {
    /// The paths, sorted; `None` if the node has no index, in which case any path may be a target path.
    paths: Option<Vec<TargetPath>>,
    directories: OnceCell<Directories>,
    /// Locations that are known to be in no volume. They are cached so that a directory that is bound thousands of
    /// times is matched once.
    unrelated: RefCell<BTreeSet<FsLocation>>,
}

/// Directories that target paths lead to.
#[derive(Debug, Default)]
struct Directories {
    /// Indexes of target paths by [`FileIdentity::file`]. Two target paths may lead to one directory.
    files: BTreeMap<(DeviceNumber, u64), Vec<usize>>,
    /// The mounts that lead to the directories, for each file system's `st_dev`.
    mounts: BTreeMap<DeviceNumber, BTreeSet<MountId>>,
    has_missing: bool,
    has_unknown: bool,
}

impl NonCsiTargets {
    /// `paths` are the target paths of the index; `None` if there is no index.
    pub(crate) fn new(mut paths: Option<Vec<TargetPath>>) -> Self {
        if let Some(paths) = &mut paths {
            paths.sort_unstable();
            paths.dedup();
        }
        Self {
            paths,
            directories: OnceCell::new(),
            unrelated: RefCell::default(),
        }
    }

    /// Returns whether all target paths in the index have the form of a CSI volume's path. False if there is no index.
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns whether a path may be one of the target paths.
    pub(super) fn may_contain(&self, path: &TargetPath) -> bool {
        let paths = self.paths.as_ref();
        paths.is_none_or(|paths| paths.binary_search(path).is_ok())
    }

    /// Returns the target paths that are known to lead to the source's directory.
    pub(super) fn same_directory(
        &self,
        source: &FileIdentity,
        node: &impl NodeLookup,
    ) -> impl Iterator<Item = &TargetPath> {
        let indexes = self.directories(node).files.get(&source.file());
        let indexes = indexes.into_iter().flatten();
        indexes.filter_map(|index| self.paths.as_ref()?.get(*index))
    }

    /// Returns whether one of the directories may be the source's, or contain it, by a path other than the source's.
    /// The mount table is read only in this case. If both are reached by the same mount, their paths show whether one
    /// is below the other.
    pub(super) fn may_hold(&self, source: &FileIdentity, node: &impl NodeLookup) -> bool {
        let directories = self.directories(node);
        let is_by_other_mount = |mounts: &BTreeSet<MountId>| {
            source.is_mount_root || mounts.iter().any(|mount| *mount != source.mount)
        };
        let mounts = directories.mounts.get(&source.device);
        // A target path that doesn't exist can only have been bound before it was removed. Such a bind is the root of a
        // mount, and nothing is left below it.
        let may_be_removed =
            || directories.has_missing && source.is_mount_root && node.is_indexed(source.device);
        directories.has_unknown || mounts.is_some_and(is_by_other_mount) || may_be_removed()
    }

    /// Returns whether every directory that exists is reached by this mount.
    pub(crate) fn are_on(&self, mount: MountId, node: &impl NodeLookup) -> bool {
        let directories = self.directories(node);
        let mut mounts = directories.mounts.values().flatten();
        !directories.has_unknown && mounts.all(|other| *other == mount)
    }

    /// Returns whether a location is known not to be a volume's.
    pub(super) fn is_unrelated(&self, location: &FsLocation) -> bool {
        self.unrelated.borrow().contains(location)
    }

    /// Remembers that a location is not a volume's.
    pub(super) fn remember_unrelated(&self, location: FsLocation) {
        self.unrelated.borrow_mut().insert(location);
    }

    fn directories(&self, node: &impl NodeLookup) -> &Directories {
        self.directories.get_or_init(|| {
            let mut directories = Directories {
                has_unknown: self.paths.is_none(),
                ..Directories::default()
            };
            for (index, path) in self.paths.iter().flatten().enumerate() {
                // A server that doesn't answer must not hold up every create of the node.
                let found = if node.is_overdue() {
                    CachedIdentity::Unknown
                } else {
                    node.cached_identity(path.as_path())
                };
                directories.add(index, found);
            }
            directories
        })
    }
}

impl Directories {
    fn add(&mut self, index: usize, found: CachedIdentity) {
        match found {
            CachedIdentity::Missing => self.has_missing = true,
            CachedIdentity::Unknown => self.has_unknown = true,
            CachedIdentity::Found(found) => {
                self.files.entry(found.file()).or_default().push(index);
                let mounts = self.mounts.entry(found.device).or_default();
                mounts.insert(found.mount);
            }
        }
    }
}
