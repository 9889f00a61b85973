//! The mounts in a container's mount namespace while volumes are added. The mount table is long, because it also has
//! all mounts of the node, and so it is read once and not for each volume.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo::Mount;

/// The mount points in a container's namespace, and the mounts that don't propagate.
#[derive(Debug)]
pub(super) struct MountTable {
    /// Ordered by path components, so that the mount points within a directory follow it directly.
    mount_points: BTreeSet<PathBuf>,
    /// The ids of the mounts in no peer group: mounts on them don't propagate.
    unshared: HashSet<u32>,
}

impl MountTable {
    pub(super) fn new(mounts: Vec<Mount>) -> Self {
        let unshared = mounts.iter().filter(|it| it.propagation.shared.is_none());
        Self {
            unshared: unshared.map(|mount| mount.id).collect(),
            mount_points: mounts.into_iter().map(|mount| mount.mount_point).collect(),
        }
    }

    /// Returns a mount point that is `path` or within it, if there is one.
    pub(super) fn find_within(&self, path: &Path) -> Option<&Path> {
        let next = self.mount_points.range(path.to_owned()..).next()?;
        next.starts_with(path).then_some(next)
    }

    /// Returns true if mounts on the mount with this id are known not to propagate.
    pub(super) fn is_unshared(&self, id: u64) -> bool {
        u32::try_from(id).is_ok_and(|id| self.unshared.contains(&id))
    }

    /// Adds a private mount. If its id is `None`, other views can't be mounted on it.
    pub(super) fn add(&mut self, mount_point: PathBuf, id: Option<u32>) {
        self.mount_points.insert(mount_point);
        self.unshared.extend(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crust_blockfs::mountinfo::parse;

    fn table() -> MountTable {
        let text = b"1 1 0:1 / / rw - tmpfs tmpfs rw\n\
            2 1 0:2 / /a/b/c rw shared:7 - tmpfs tmpfs rw\n\
            3 1 0:3 / /a-b rw master:7 - tmpfs tmpfs rw\n\
            4 1 0:4 / /a/b.d rw master:7 shared:8 - tmpfs tmpfs rw\n";
        MountTable::new(parse(text).unwrap())
    }

    #[test]
    fn mount_points_within_a_directory_are_found_by_components() {
        let mut table = table();
        for (path, expected) in [
            ("/", Some("/")),
            ("/a", Some("/a/b/c")),
            ("/a/b", Some("/a/b/c")),
            ("/a/b/c", Some("/a/b/c")),
            ("/a/b/c/d", None),
            ("/a-b", Some("/a-b")),
            ("/a/b.", None),
            ("/a/z", None),
            ("/z", None),
        ] {
            assert_eq!(
                table.find_within(path.as_ref()),
                expected.map(Path::new),
                "{path}"
            );
        }
        table.add("/a/z/deep".into(), None);
        assert_eq!(
            table.find_within("/a/z".as_ref()),
            Some(Path::new("/a/z/deep"))
        );
        assert_eq!(table.find_within("/a/z/deep/er".as_ref()), None);
    }

    #[test]
    fn only_private_and_slave_mounts_count_as_unshared() {
        let mut table = table();
        table.add("/new".into(), Some(9));
        let ids = [1, 2, 3, 4, 5, 9, 1 << 32 | 1];
        let found = ids.map(|id| table.is_unshared(id));
        assert_eq!(found, [true, false, true, false, false, true, false]);
    }
}
