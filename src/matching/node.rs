//! The node as matching asks about it, and its target paths that don't have a CSI volume's form: no parent of a source
//! leads to them, so their directories are looked up, at most once for a create.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crust_blockfs::DeviceNumber;
use crust_blockfs::identity::{CachedIdentity, Identity, LookupError, MountId};
use crust_blockfs::mount_kind::MountKind;
use crust_blockfs::place::{Place, PlaceError};
use crust_state::TargetPath;
use crust_state::crust::EntryError;

/// The node as matching asks about it. A lookup whose error doesn't say that nothing is there fails: whoever took
/// it for "nothing" would pass a volume's directory on.
pub(crate) trait Node {
    /// Returns the volume that is staged at a path, by the target path it was staged with.
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError>;
    /// Returns the lengths of those paths, of this one and its parents, at which something may be staged; `None`
    /// if each has to be asked about.
    fn staged_lengths(&self, _path: &TargetPath) -> Option<Vec<usize>> {
        None
    }
    /// Resolves the symbolic links of a source's path.
    fn resolve(&self, path: &Path) -> Result<Resolved, LookupError>;
    /// Returns the volumes that are staged in a pod's directory of CSI volumes, which is listed.
    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError>;
    /// Returns where in its file system a path leads to; `None` if nothing is there, or the file system doesn't
    /// tell.
    fn place(&self, path: &Path) -> Result<Option<Place>, PlaceError>;
    /// Returns the same of a target path. The end of a path that doesn't exist is taken to be below the place of
    /// its nearest existing parent.
    fn target_place(&self, target: &TargetPath) -> Result<Option<Place>, PlaceError> {
        self.place(target.as_path())
    }
    /// Returns the paths that lead to a place by the mounts of this namespace, unless something is mounted over them.
    fn paths_to(&self, _place: &Place) -> Vec<TargetPath> {
        Vec::new()
    }
    /// Returns the target paths that aren't a CSI volume's by their form; `None` if no source can lead to a volume
    /// except by its path. What follows is asked only where there are some.
    fn targets_elsewhere(&self) -> Option<&NonCsiTargets> {
        None
    }
    /// Returns the identity of what a path leads to, links followed, without waiting for a disk or a server.
    fn identity_at_once(&self, _path: &Path) -> CachedIdentity {
        CachedIdentity::Nothing
    }
    /// Returns the identity of what a path leads to, links followed; `None` if nothing is there.
    fn identity(&self, _path: &Path) -> Result<Option<Identity>, LookupError> {
        Ok(None)
    }
    /// Whether the index says that target paths were on the file system with this `st_dev` when they were staged.
    fn is_indexed(&self, _device: DeviceNumber) -> bool {
        false
    }
    /// Whether the mount that a path leads to is read-only, whatever its superblock is.
    fn is_read_only(&self, _path: &Path) -> Result<bool, PlaceError> {
        Ok(false)
    }
    /// Whether a mount is the one that the root directory, or a kubelet's directory, is on.
    fn is_usual_mount(&self, _mount: MountId) -> bool {
        true
    }
    /// Returns the kind of a mount, which the path leads to.
    fn mount_kind(&self, _path: &Path, _mount: MountId) -> Result<MountKind, PlaceError> {
        Ok(MountKind::Other)
    }
    /// Returns the directories of the overlay that a path leads to, and what each has at the path.
    fn overlay_layers(&self, _path: &Path) -> Result<Vec<PathBuf>, PlaceError> {
        Ok(Vec::new())
    }
    /// Has what belongs at an automount's trigger mounted, as the delegate's bind does, and returns its identity;
    /// `None` if nothing is there.
    fn trigger_automount(&self, _path: &Path) -> Result<Option<Identity>, LookupError> {
        Ok(None)
    }
    /// Whether the time for the create is over: whoever writes a pod may give it thousands of mounts.
    fn is_overdue(&self) -> bool {
        false
    }
    /// Whether a volume's directory isn't the root of a mount and holds no files. One that doesn't exist is bare.
    fn is_bare_directory(&self, directory: &Path) -> Result<bool, LookupError>;
    /// Returns where a path leads in the root file system of a container that is yet to be made.
    fn within(&self, rootfs: &Path, path: &Path) -> PathBuf;
}

/// The result of resolving a source's path.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// The path with its symbolic links resolved; `None` if that is the path itself, or nothing is there.
    pub(crate) path: Option<TargetPath>,
    /// It leads over no mount point but the root directory's, and all target paths are CSI volumes'. Then it
    /// leads to a volume by its path or not at all, unless a kubelet's directory is a bind mount: its volumes
    /// have a path of CSI form on the root directory's mount too.
    pub(crate) only_by_path: bool,
    /// The identity of what the path leads to, if the lookup has told it: without it, it has to be asked for.
    pub(crate) identity: Option<Identity>,
}

/// An error of finding out what is staged, for a pod or on the node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
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

/// The target paths of a node that aren't a CSI volume's by their form. Some may not be staged any more.
#[derive(Debug)]
pub(crate) struct NonCsiTargets {
    /// Sorted; `None` if the node has no index, so that each path may be one.
    paths: Option<Vec<TargetPath>>,
    directories: OnceCell<Directories>,
    /// Places that were found to be no volume's. Thousands of binds of one directory have as many paths.
    others: RefCell<BTreeSet<Place>>,
}

/// The directories that target paths lead to.
#[derive(Debug, Default)]
struct Directories {
    /// Indexes of target paths by [`Identity::file`]. Two may be one directory.
    files: BTreeMap<(DeviceNumber, u64), Vec<usize>>,
    /// The mounts that those on a file system are reached by, by its `st_dev`.
    mounts: BTreeMap<DeviceNumber, BTreeSet<MountId>>,
    has_missing: bool,
    has_unknown: bool,
}

impl NonCsiTargets {
    /// `paths` are those of the index; `None` if there is no index.
    pub(crate) fn new(mut paths: Option<Vec<TargetPath>>) -> Self {
        if let Some(paths) = &mut paths {
            paths.sort_unstable();
            paths.dedup();
        }
        Self {
            paths,
            directories: OnceCell::new(),
            others: RefCell::default(),
        }
    }

    /// Whether the index says that there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether a path may be one of them.
    pub(super) fn may_have(&self, path: &TargetPath) -> bool {
        let paths = self.paths.as_ref();
        paths.is_none_or(|paths| paths.binary_search(path).is_ok())
    }

    /// Returns the target paths whose directory the source is, as far as that is known.
    pub(super) fn same_directory(
        &self,
        source: &Identity,
        node: &impl Node,
    ) -> impl Iterator<Item = &TargetPath> {
        let indexes = self.directories(node).files.get(&source.file());
        let indexes = indexes.into_iter().flatten();
        indexes.filter_map(|index| self.paths.as_ref()?.get(*index))
    }

    /// Whether one of them may be the source's directory, or hold it, by another path than the source's: then it is
    /// worth reading the mount table. By one mount, paths tell what is below what.
    pub(super) fn may_hold(&self, source: &Identity, node: &impl Node) -> bool {
        let directories = self.directories(node);
        let is_by_another = |mounts: &BTreeSet<MountId>| {
            source.is_mount_root || mounts.iter().any(|mount| *mount != source.mount)
        };
        let mounts = directories.mounts.get(&source.device);
        // A target path that doesn't exist can only have been bound before it was removed, and nothing is left
        // below such a bind.
        let may_be_removed =
            || directories.has_missing && source.is_mount_root && node.is_indexed(source.device);
        directories.has_unknown || mounts.is_some_and(is_by_another) || may_be_removed()
    }

    /// Whether each of them that exists is reached by this mount.
    pub(crate) fn are_on(&self, mount: MountId, node: &impl Node) -> bool {
        let directories = self.directories(node);
        let mut mounts = directories.mounts.values().flatten();
        !directories.has_unknown && mounts.all(|other| *other == mount)
    }

    /// Whether a place is known to be no volume's.
    pub(super) fn is_known_as_none(&self, place: &Place) -> bool {
        self.others.borrow().contains(place)
    }

    /// Remembers that a place is no volume's.
    pub(super) fn know_as_none(&self, place: Place) {
        self.others.borrow_mut().insert(place);
    }

    fn directories(&self, node: &impl Node) -> &Directories {
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
                    node.identity_at_once(path.as_path())
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
            CachedIdentity::Nothing => self.has_missing = true,
            CachedIdentity::Unknown => self.has_unknown = true,
            CachedIdentity::Found(found) => {
                self.files.entry(found.file()).or_default().push(index);
                let mounts = self.mounts.entry(found.device).or_default();
                mounts.insert(found.mount);
            }
        }
    }
}
