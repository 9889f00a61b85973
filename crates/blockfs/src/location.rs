//! Finds the location of a directory or file within its file system. The location doesn't depend on where the file
//! system is mounted, so it shows which directory a bind mount was made from.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};

use crate::DeviceNumber;
use crate::errno;
use crate::identity::LookupError;
use crate::mountinfo::{Mount, MountInfo, MountInfoError};

/// The location of a directory or file: its file system, and its path there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FsLocation {
    /// The device number in mountinfo. It is not `st_dev`, which differs between the subvolumes of a btrfs.
    pub device: DeviceNumber,
    /// The path from the root of the file system.
    pub path: PathBuf,
    /// Whether the directory or file has been removed from that path and is only still mounted.
    pub is_deleted: bool,
}

impl FsLocation {
    /// Returns the path from `directory` to this location: empty if they are the same, and `None` if this location is
    /// not below the directory.
    #[must_use]
    pub fn path_below(&self, directory: &Self) -> Option<&Path> {
        let rest = self.path.strip_prefix(&directory.path).ok()?;
        (self.device == directory.device).then_some(rest)
    }
}

/// The position of an open directory or file among the mounts of this mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPosition {
    /// The id of the mount that the directory or file was reached through.
    pub mount_id: u64,
    /// The path in this mount namespace.
    pub path: PathBuf,
    /// Whether the directory or file is the root of that mount.
    pub is_mount_root: bool,
}

impl MountPosition {
    /// Returns whether `mount`, which has the same id, is also mounted where the path says. The kernel reuses ids, so a
    /// table that was read earlier may list another mount under this one.
    fn is_on(&self, mount: &Mount) -> bool {
        if self.is_mount_root {
            mount.mount_point == self.path
        } else {
            self.path.starts_with(&mount.mount_point)
        }
    }

    /// Returns the location, given the mount with this position's id; `None` if the path is not below the mount point,
    /// or if the file system doesn't report which directory is mounted.
    #[must_use]
    pub fn location(&self, mount: &Mount) -> Option<FsLocation> {
        // NFS shows `/` as the root of every mount (nfs_show_path).
        if matches!(mount.fstype.as_bytes(), b"nfs" | b"nfs4") {
            return None;
        }
        let (root, is_deleted) = mount_root(mount);
        let mut path = root.to_owned();
        if !self.is_mount_root {
            path.extend(self.path.strip_prefix(&mount.mount_point).ok()?);
        }
        Some(FsLocation {
            device: mount.device,
            path,
            is_deleted,
        })
    }
}

/// Returns the path of a mount's root from the root of its file system, and whether it has been removed from there.
fn mount_root(mount: &Mount) -> (&Path, bool) {
    let root = mount.root.as_os_str().as_bytes();
    let (root, is_deleted) = match root.strip_suffix(b"//deleted") {
        Some(root) => (root, true),
        None => (root, false),
    };
    (Path::new(OsStr::from_bytes(root)), is_deleted)
}

/// A hash map without a random seed. The seed would cost every create a system call, even if no mount table is read.
type UnseededMap<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// The mounts of a mount table, indexed by id and by the directory that is mounted.
#[derive(Debug, Default)]
struct MountIndex {
    by_id: UnseededMap<u64, Mount>,
    /// Ids of the mounts of a directory, by the device and the path from the root of its file system.
    by_root: UnseededMap<DeviceNumber, UnseededMap<PathBuf, Vec<u64>>>,
}

impl MountIndex {
    fn new(all: Vec<Mount>) -> Self {
        let mut index = Self::default();
        for mount in all {
            let id = mount.id.into();
            let roots = index.by_root.entry(mount.device).or_default();
            let root = mount_root(&mount).0.to_owned();
            roots.entry(root).or_default().push(id);
            index.by_id.insert(id, mount);
        }
        index
    }

    /// Returns the path of a location through each mount that covers it. A path is also returned if another mount hides
    /// it.
    fn paths_to(&self, location: &FsLocation) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let Some(roots) = self.by_root.get(&location.device) else {
            return paths;
        };
        for root in location.path.ancestors() {
            for mount in roots.get(root).into_iter().flatten() {
                let mut path = self.by_id[mount].mount_point.clone();
                let below = location.path.strip_prefix(root).unwrap_or(Path::new(""));
                if !below.as_os_str().is_empty() {
                    path.push(below);
                }
                paths.push(path);
            }
        }
        paths
    }
}

/// The error of finding the location that a path leads to.
#[derive(Debug, thiserror::Error)]
pub enum LocationError {
    /// The path can't be looked up.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The mount table can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
}

/// Finds the locations that paths lead to.
///
/// The mount table is read once, and again only if a path leads through a mount that it lacks: a container may have
/// thousands of paths to look up, and a node thousands of mounts.
///
/// One path is held open at a time, so a lookup takes at most two descriptors. Until the lookup has finished, the mount
/// can't go away and its id can't be reused.
#[derive(Debug, Default)]
pub struct LocationResolver {
    mounts: RefCell<MountIndex>,
}

impl LocationResolver {
    /// Creates a resolver that starts with these mounts.
    #[must_use]
    pub fn from_mounts(mounts: Vec<Mount>) -> Self {
        Self {
            mounts: RefCell::new(MountIndex::new(mounts)),
        }
    }

    /// Returns the location that a path leads to, following symbolic links; `None` if it leads to nothing, or if the
    /// file system doesn't report which directory is mounted.
    pub fn locate(&self, path: &Path) -> Result<Option<FsLocation>, LocationError> {
        let Some(open) = OpenPath::open(path)? else {
            return Ok(None);
        };
        let mount = self.mount_at(&open.position)?;
        Ok(mount.and_then(|mount| open.position.location(&mount)))
    }

    /// Returns the location of a target path. If the end of the path doesn't exist, it is taken to be below the
    /// location of its nearest existing parent.
    pub fn locate_target(&self, path: &Path) -> Result<Option<FsLocation>, LocationError> {
        for existing in path.ancestors() {
            let Some(open) = OpenPath::open(existing)? else {
                continue;
            };
            let mount = self.mount_at(&open.position)?;
            let location = mount.and_then(|mount| open.position.location(&mount));
            let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return Ok(location.map(|mut location| {
                location.path.extend(missing);
                location
            }));
        }
        Ok(None)
    }

    /// Returns the mount that a path leads to, following symbolic links, and the path from the root of its file system
    /// if that is known; `None` if the path leads to nothing.
    pub fn find_mount(
        &self,
        path: &Path,
    ) -> Result<Option<(Mount, Option<PathBuf>)>, LocationError> {
        let Some(open) = OpenPath::open(path)? else {
            return Ok(None);
        };
        let mount = self.mount_at(&open.position)?;
        Ok(mount.map(|mount| {
            let location = open.position.location(&mount);
            (mount, location.map(|location| location.path))
        }))
    }

    /// Returns the path of a location through each mount that covers it, by the mount table as it was read last.
    /// Another mount may hide such a path, so the caller has to look up what it leads to.
    #[must_use]
    pub fn paths_to(&self, location: &FsLocation) -> Vec<PathBuf> {
        self.mounts.borrow().paths_to(location)
    }

    /// Returns the mount at the position of an open file. Reads the mount table unless the mount is in it already.
    fn mount_at(&self, position: &MountPosition) -> Result<Option<Mount>, MountInfoError> {
        let find = |mounts: &MountIndex| mounts.by_id.get(&position.mount_id).cloned();
        let found = find(&self.mounts.borrow()).filter(|mount| position.is_on(mount));
        if found.is_some() {
            return Ok(found);
        }
        let all = MountInfo::read_own()?.select(|_| true)?;
        self.mounts.replace(MountIndex::new(all));
        Ok(find(&self.mounts.borrow()))
    }
}

/// A directory or file that is open with `O_PATH`, which keeps its mount and its inode from going away.
#[derive(Debug)]
struct OpenPath {
    _file: OwnedFd,
    position: MountPosition,
}

impl OpenPath {
    /// Opens the directory or file that a path leads to; `None` if the path leads to nothing. Doesn't open a device or
    /// wait for a named pipe, and asks a file server only for the names.
    fn open(path: &Path) -> Result<Option<Self>, LookupError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
        let Some(file) = LookupError::unless_missing("openat", path, opened)? else {
            return Ok(None);
        };
        let as_cached = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&file, "", as_cached, StatxFlags::MNT_ID)
            .map_err(|errno| LookupError::new("statx", path, errno))?;
        // Without a procfs this fails with ENOENT, which doesn't mean that the path leads to nothing.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let real = std::fs::read_link(link).map_err(|error| {
            LookupError::new(
                "readlink /proc/self/fd of",
                path,
                errno::from_io_error(&error),
            )
        })?;
        let position = MountPosition {
            mount_id: stat.stx_mnt_id,
            path: real,
            is_mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        };
        Ok(Some(Self {
            _file: file,
            position,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo;

    const MOUNTS: &str = r"
        20 1 8:1 / / rw - ext4 /dev/sda1 rw
        21 20 8:2 / /var/lib rw - ext4 /dev/sda2 rw
        22 21 8:2 /kubelet /srv/kubelet rw - ext4 /dev/sda2 rw
        23 21 0:40 /@data/k /var/lib/btrfs rw - btrfs /dev/sdc rw
        24 21 8:2 /kubelet/pods/u/v/sub /var/lib/bind rw - ext4 /dev/sda2 rw
        25 21 8:2 /kubelet/gone//deleted /var/lib/gone rw - ext4 /dev/sda2 rw
        26 21 8:2 /a\040b\012c\134040 /var/lib/odd\040place rw - ext4 /dev/sda2 rw
        27 21 0:50 / /var/lib/nfs rw - nfs4 server:/export rw
        28 21 8:2 /conf/app.ini /var/lib/file rw - ext4 /dev/sda2 rw";

    fn mount(id: u64) -> Option<Mount> {
        let lines: Vec<&str> = MOUNTS.trim().lines().map(str::trim).collect();
        let mounts = mountinfo::parse(lines.join("\n").as_bytes()).unwrap();
        mounts.into_iter().find(|mount| u64::from(mount.id) == id)
    }

    fn location(id: u64, path: Option<&str>) -> Option<FsLocation> {
        let position = MountPosition {
            mount_id: id,
            path: path.unwrap_or_default().into(),
            is_mount_root: path.is_none(),
        };
        position.location(&mount(id)?)
    }

    #[test]
    fn a_mount_that_reuses_an_id_is_not_taken_for_the_earlier_one() {
        for (id, path, is_mount_root, expected) in [
            (22, "/srv/kubelet", true, true),
            (22, "/srv/kubelet/pods", false, true),
            (20, "/etc", false, true),
            (22, "/srv/other", true, false),
            (22, "/srv/kubelet/pods", true, false),
            (22, "/srv/kubelets", false, false),
        ] {
            let position = MountPosition {
                mount_id: id,
                path: path.into(),
                is_mount_root,
            };
            let mount = mount(id).unwrap();
            assert_eq!(position.is_on(&mount), expected, "{position:?}");
        }
    }

    fn at(device: &str, path: &str, is_deleted: bool) -> FsLocation {
        let (device, path) = (device.parse().unwrap(), path.into());
        FsLocation {
            device,
            path,
            is_deleted,
        }
    }

    #[test]
    fn a_location_is_the_mounts_root_and_the_path_below_it() {
        for (mount, path, expected) in [
            (20, Some("/etc/hosts"), at("8:1", "/etc/hosts", false)),
            (20, None, at("8:1", "/", false)),
            (
                21,
                Some("/var/lib/kubelet/pods"),
                at("8:2", "/kubelet/pods", false),
            ),
            (
                22,
                Some("/srv/kubelet/pods"),
                at("8:2", "/kubelet/pods", false),
            ),
            (22, None, at("8:2", "/kubelet", false)),
            (
                23,
                Some("/var/lib/btrfs/pods"),
                at("0:40", "/@data/k/pods", false),
            ),
            (24, None, at("8:2", "/kubelet/pods/u/v/sub", false)),
            (28, None, at("8:2", "/conf/app.ini", false)),
        ] {
            assert_eq!(location(mount, path), Some(expected), "{mount} {path:?}");
        }
    }

    #[test]
    fn a_location_has_a_path_through_each_mount_that_covers_it() {
        let lines: Vec<&str> = MOUNTS.trim().lines().map(str::trim).collect();
        let resolver =
            LocationResolver::from_mounts(mountinfo::parse(lines.join("\n").as_bytes()).unwrap());
        for (location, expected) in [
            (at("8:1", "/etc", false), &["/etc"][..]),
            (at("8:2", "/", false), &["/var/lib"]),
            (
                at("8:2", "/kubelet", false),
                &["/srv/kubelet", "/var/lib/kubelet"],
            ),
            (
                at("8:2", "/kubelet/pods/u/v/sub/x", false),
                &[
                    "/var/lib/bind/x",
                    "/srv/kubelet/pods/u/v/sub/x",
                    "/var/lib/kubelet/pods/u/v/sub/x",
                ],
            ),
            (
                at("8:2", "/kubelet/gone", true),
                &[
                    "/var/lib/gone",
                    "/srv/kubelet/gone",
                    "/var/lib/kubelet/gone",
                ],
            ),
            (at("8:2", "/kubelets", false), &["/var/lib/kubelets"]),
            (at("8:9", "/etc", false), &[]),
            (at("0:40", "/@data", false), &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(resolver.paths_to(&location), expected, "{location:?}");
        }
    }

    #[test]
    fn escaped_names_are_decoded() {
        assert_eq!(location(26, None), Some(at("8:2", "/a b\nc\\040", false)));
        let below = location(26, Some("/var/lib/odd place/x\ny z"));
        assert_eq!(below, Some(at("8:2", "/a b\nc\\040/x\ny z", false)));
    }

    #[test]
    fn a_removed_directory_is_marked_as_deleted() {
        assert_eq!(location(25, None), Some(at("8:2", "/kubelet/gone", true)));
        let below = location(25, Some("/var/lib/gone/x"));
        assert_eq!(below, Some(at("8:2", "/kubelet/gone/x", true)));
    }

    #[test]
    fn an_unknown_location_is_none() {
        assert_eq!(location(99, None), None, "no such mount");
        assert_eq!(
            location(22, Some("/elsewhere")),
            None,
            "not below its mount"
        );
        assert_eq!(
            location(27, None),
            None,
            "NFS doesn't report the mounted directory"
        );
    }

    #[test]
    fn a_location_is_below_a_prefix_of_its_path_on_its_device() {
        let path_below = |location: &str, directory: &str| {
            let [location, directory] = [location, directory].map(|text| {
                let (device, path) = text.split_once(' ').unwrap();
                at(device, path, false)
            });
            location
                .path_below(&directory)
                .map(|rest| rest.to_str().unwrap().to_owned())
        };
        assert_eq!(path_below("8:2 /v/a/b", "8:2 /v"), Some("a/b".to_owned()));
        assert_eq!(path_below("8:2 /v", "8:2 /v"), Some(String::new()));
        assert_eq!(path_below("8:2 /v/a", "8:2 /"), Some("v/a".to_owned()));
        assert_eq!(path_below("8:2 /va", "8:2 /v"), None);
        assert_eq!(path_below("8:3 /v/a", "8:2 /v"), None);
    }

    #[test]
    fn a_path_is_located_by_the_kernels_mount_table() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("a b/c")).unwrap();
        std::os::unix::fs::symlink("a b", real.join("link")).unwrap();
        let resolver = LocationResolver::default();
        let locate = |path: &Path| resolver.locate(path).unwrap();
        let [whole, below] = [real.clone(), real.join("link/c")].map(|path| locate(&path).unwrap());
        let proc = locate(Path::new("/proc")).unwrap();
        assert_eq!(locate(&real.join("missing")), None);
        assert_eq!(below.path_below(&whole), Some(Path::new("a b/c")));
        assert_eq!(proc.path, Path::new("/"));
        assert_eq!(proc.path_below(&whole), None);
    }

    #[test]
    fn a_missing_target_is_located_below_its_existing_parent() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::write(real.join("file"), "").unwrap();
        let resolver = LocationResolver::default();
        let whole = resolver.locate(&real).unwrap().unwrap();
        for below in ["", "a", "a/b", "file", "file/x"] {
            let location = resolver.locate_target(&real.join(below)).unwrap().unwrap();
            assert_eq!(
                location.path_below(&whole),
                Some(Path::new(below)),
                "{below}"
            );
        }
    }

    /// The limit is process-wide, and nextest runs each test in a process of its own.
    #[test]
    fn a_lookup_without_a_free_descriptor_fails() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let resolver = LocationResolver::default();
        let before = getrlimit(Resource::Nofile);
        let limit = |current| Rlimit { current, ..before };
        setrlimit(Resource::Nofile, limit(Some(0))).unwrap();
        let path = Path::new("/proc/self");
        let found = [
            resolver.locate(path),
            resolver.locate_target(path),
            resolver.find_mount(path).map(|_| None),
        ];
        setrlimit(Resource::Nofile, before).unwrap();
        for found in found {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("/proc/self: EMFILE"), "{error}");
            assert!(error.contains("LimitNOFILE="), "{error}");
        }
    }
}
