//! Target paths that aren't a CSI volume's by their form, so that no parent of a source leads to them. Their
//! directories are looked up at most once for a create, and only if one of its sources asks.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crust_blockfs::DeviceNumber;
use crust_blockfs::identity::{AtOnce, Identity, MountId};
use crust_blockfs::place::Place;
use crust_state::TargetPath;

use super::Node;

/// The target paths of a node that aren't a CSI volume's by their form. Some may not be staged any more.
#[derive(Debug)]
pub(crate) struct TargetsElsewhere {
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

impl TargetsElsewhere {
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

    /// Whether the index says that no target path is elsewhere.
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
                    AtOnce::Unknown
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
    fn add(&mut self, index: usize, found: AtOnce) {
        match found {
            AtOnce::Nothing => self.has_missing = true,
            AtOnce::Unknown => self.has_unknown = true,
            AtOnce::Found(found) => {
                self.files.entry(found.file()).or_default().push(index);
                let mounts = self.mounts.entry(found.device).or_default();
                mounts.insert(found.mount);
            }
        }
    }
}
