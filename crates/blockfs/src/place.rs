//! Places of directories and files within their file systems. A place is the same wherever and however
//! often the file system is mounted, so it tells what a bind mount is a bind of.

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
use crate::mountinfo::{Mount, MountInfoError, Table};

/// A directory or file, by its file system.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// mountinfo's device: `st_dev` is another one in each of btrfs's subvolumes.
    pub device: DeviceNumber,
    /// From the root of the file system.
    pub path: PathBuf,
    /// It is mounted, but has been removed from where the path says.
    pub deleted: bool,
}

impl Place {
    /// Returns the rest of this place's path below a directory of the same file system; empty for the
    /// directory itself, and `None` if the place isn't below it.
    #[must_use]
    pub fn below(&self, directory: &Self) -> Option<&Path> {
        let rest = self.path.strip_prefix(&directory.path).ok()?;
        (self.device == directory.device).then_some(rest)
    }
}

/// The position of an open directory or file among the mounts of this namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The id of the mount that it was reached by.
    pub mount: u64,
    /// Its path in this mount namespace.
    pub path: PathBuf,
    /// It is the mount's root.
    pub is_mount_root: bool,
}

impl Position {
    /// Whether this mount, which has the id, is also where the path says that it is. An id is given to
    /// another mount once its own is gone, so an older table may have another mount by it.
    fn is_on(&self, mount: &Mount) -> bool {
        if self.is_mount_root {
            mount.mount_point == self.path
        } else {
            self.path.starts_with(&mount.mount_point)
        }
    }

    /// Returns the place, by the mount that it was reached by; `None` when the file system doesn't tell what
    /// is mounted.
    #[must_use]
    pub fn place(&self, mount: &Mount) -> Option<Place> {
        // NFS writes `/` for every root (nfs_show_path).
        if matches!(mount.fstype.as_bytes(), b"nfs" | b"nfs4") {
            return None;
        }
        let (root, deleted) = root(mount);
        let mut path = root.to_owned();
        if !self.is_mount_root {
            path.extend(self.path.strip_prefix(&mount.mount_point).ok()?);
        }
        Some(Place {
            device: mount.device,
            path,
            deleted,
        })
    }
}

/// Returns the path of a mount's root from the root of its file system, and whether it has been removed from there.
fn root(mount: &Mount) -> (&Path, bool) {
    let root = mount.root.as_os_str().as_bytes();
    let (root, deleted) = match root.strip_suffix(b"//deleted") {
        Some(root) => (root, true),
        None => (root, false),
    };
    (Path::new(OsStr::from_bytes(root)), deleted)
}

/// A map whose keys are hashed without a seed, which would be a system call in every create, also where no table
/// is read.
type Unseeded<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// A mount table that is read once.
#[derive(Debug, Default)]
struct Mounts {
    by_id: Unseeded<u64, Mount>,
    /// Ids of the mounts of a directory, by the device and the path from the root of its file system.
    by_root: Unseeded<DeviceNumber, Unseeded<PathBuf, Vec<u64>>>,
}

impl Mounts {
    fn new(all: Vec<Mount>) -> Self {
        let mut mounts = Self::default();
        for mount in all {
            let id = mount.id.into();
            let roots = mounts.by_root.entry(mount.device).or_default();
            let root = root(&mount).0.to_owned();
            roots.entry(root).or_default().push(id);
            mounts.by_id.insert(id, mount);
        }
        mounts
    }

    /// Returns the paths that lead to a place by each of the mounts, as far as nothing is mounted over it there.
    fn paths_to(&self, place: &Place) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let Some(roots) = self.by_root.get(&place.device) else {
            return paths;
        };
        for root in place.path.ancestors() {
            for mount in roots.get(root).into_iter().flatten() {
                let mut path = self.by_id[mount].mount_point.clone();
                let below = place.path.strip_prefix(root).unwrap_or(Path::new(""));
                if !below.as_os_str().is_empty() {
                    path.push(below);
                }
                paths.push(path);
            }
        }
        paths
    }
}

/// An error of finding out where a path leads.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The path can't be looked up.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The mount table can't be read.
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
}

/// Lookups of places by one mount table: it is read once, and again only for a path that leads over a mount
/// that it does not have. A container may have thousands of paths to look up, and a node as many mounts.
///
/// One path is held open at a time, so a lookup takes no more than two descriptors. Its mount can't go, nor
/// its id be given to another, until the table has been asked.
#[derive(Debug, Default)]
pub struct Places {
    mounts: RefCell<Mounts>,
}

impl Places {
    /// Lookups by these mounts.
    #[must_use]
    pub fn of_table(mounts: Vec<Mount>) -> Self {
        Self {
            mounts: RefCell::new(Mounts::new(mounts)),
        }
    }

    /// Returns the place that a path leads to, links followed; `None` if it leads to nothing, or the file system
    /// doesn't tell what of it is mounted.
    pub fn of(&self, path: &Path) -> Result<Option<Place>, PlaceError> {
        let Some(held) = Held::open(path)? else {
            return Ok(None);
        };
        let mount = self.mount(&held.position)?;
        Ok(mount.and_then(|mount| held.position.place(&mount)))
    }

    /// Returns the place of a target path. The end of a path that doesn't exist is taken to be below the place of
    /// its nearest existing parent.
    pub fn of_target(&self, path: &Path) -> Result<Option<Place>, PlaceError> {
        for existing in path.ancestors() {
            let Some(held) = Held::open(existing)? else {
                continue;
            };
            let mount = self.mount(&held.position)?;
            let place = mount.and_then(|mount| held.position.place(&mount));
            let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
            return Ok(place.map(|mut place| {
                place.path.extend(missing);
                place
            }));
        }
        Ok(None)
    }

    /// Returns the mount that a path leads to, links followed, and the path from the root of its file system,
    /// if that is known; `None` if the path leads to nothing.
    pub fn mounted(&self, path: &Path) -> Result<Option<(Mount, Option<PathBuf>)>, PlaceError> {
        let Some(held) = Held::open(path)? else {
            return Ok(None);
        };
        let mount = self.mount(&held.position)?;
        Ok(mount.map(|mount| {
            let place = held.position.place(&mount);
            (mount, place.map(|place| place.path))
        }))
    }

    /// Returns the paths that lead to a place which was looked up here, by each mount of its file system. A mount that
    /// something else is mounted over counts too, so what such a path leads to has to be looked up.
    #[must_use]
    pub fn paths_to(&self, place: &Place) -> Vec<PathBuf> {
        self.mounts.borrow().paths_to(place)
    }

    /// Returns the mount of a position that is held open. The mount table is read unless it is known to have it.
    fn mount(&self, position: &Position) -> Result<Option<Mount>, MountInfoError> {
        let known = |mounts: &Mounts| mounts.by_id.get(&position.mount).cloned();
        let found = known(&self.mounts.borrow()).filter(|mount| position.is_on(mount));
        if found.is_some() {
            return Ok(found);
        }
        let all = Table::own()?.select(|_| true)?;
        self.mounts.replace(Mounts::new(all));
        Ok(known(&self.mounts.borrow()))
    }
}

/// A directory or file that is open for its path alone, so that it stays what it is.
#[derive(Debug)]
struct Held {
    _file: OwnedFd,
    position: Position,
}

impl Held {
    /// Opens what a path leads to; `None` if that is nothing. No device is opened, no named pipe waited for, and
    /// no file server asked for more than the names.
    fn open(path: &Path) -> Result<Option<Self>, LookupError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty());
        let Some(file) = LookupError::unless_missing("openat", path, opened)? else {
            return Ok(None);
        };
        let as_cached = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let stat = rustix::fs::statx(&file, "", as_cached, StatxFlags::MNT_ID)
            .map_err(|errno| LookupError::new("statx", path, errno))?;
        // Fails without a procfs, which says nothing of the path.
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let real = std::fs::read_link(link).map_err(|error| {
            LookupError::new("readlink /proc/self/fd of", path, errno::of(&error))
        })?;
        let position = Position {
            mount: stat.stx_mnt_id,
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

    fn place(id: u64, path: Option<&str>) -> Option<Place> {
        let position = Position {
            mount: id,
            path: path.unwrap_or_default().into(),
            is_mount_root: path.is_none(),
        };
        position.place(&mount(id)?)
    }

    #[test]
    fn a_table_that_has_another_mount_by_an_id_is_read_again() {
        for (id, path, is_mount_root, expected) in [
            (22, "/srv/kubelet", true, true),
            (22, "/srv/kubelet/pods", false, true),
            (20, "/etc", false, true),
            (22, "/srv/other", true, false),
            (22, "/srv/kubelet/pods", true, false),
            (22, "/srv/kubelets", false, false),
        ] {
            let position = Position {
                mount: id,
                path: path.into(),
                is_mount_root,
            };
            let mount = mount(id).unwrap();
            assert_eq!(position.is_on(&mount), expected, "{position:?}");
        }
    }

    fn on(device: &str, path: &str, deleted: bool) -> Place {
        let (device, path) = (device.parse().unwrap(), path.into());
        Place {
            device,
            path,
            deleted,
        }
    }

    #[test]
    fn a_place_is_the_mounts_root_and_the_path_below() {
        for (mount, path, expected) in [
            (20, Some("/etc/hosts"), on("8:1", "/etc/hosts", false)),
            (20, None, on("8:1", "/", false)),
            (
                21,
                Some("/var/lib/kubelet/pods"),
                on("8:2", "/kubelet/pods", false),
            ),
            (
                22,
                Some("/srv/kubelet/pods"),
                on("8:2", "/kubelet/pods", false),
            ),
            (22, None, on("8:2", "/kubelet", false)),
            (
                23,
                Some("/var/lib/btrfs/pods"),
                on("0:40", "/@data/k/pods", false),
            ),
            (24, None, on("8:2", "/kubelet/pods/u/v/sub", false)),
            (28, None, on("8:2", "/conf/app.ini", false)),
        ] {
            assert_eq!(place(mount, path), Some(expected), "{mount} {path:?}");
        }
    }

    #[test]
    fn a_place_is_reached_by_each_mount_that_shows_it() {
        let lines: Vec<&str> = MOUNTS.trim().lines().map(str::trim).collect();
        let places = Places::of_table(mountinfo::parse(lines.join("\n").as_bytes()).unwrap());
        for (place, expected) in [
            (on("8:1", "/etc", false), &["/etc"][..]),
            (on("8:2", "/", false), &["/var/lib"]),
            (
                on("8:2", "/kubelet", false),
                &["/srv/kubelet", "/var/lib/kubelet"],
            ),
            (
                on("8:2", "/kubelet/pods/u/v/sub/x", false),
                &[
                    "/var/lib/bind/x",
                    "/srv/kubelet/pods/u/v/sub/x",
                    "/var/lib/kubelet/pods/u/v/sub/x",
                ],
            ),
            (
                on("8:2", "/kubelet/gone", true),
                &[
                    "/var/lib/gone",
                    "/srv/kubelet/gone",
                    "/var/lib/kubelet/gone",
                ],
            ),
            (on("8:2", "/kubelets", false), &["/var/lib/kubelets"]),
            (on("8:9", "/etc", false), &[]),
            (on("0:40", "/@data", false), &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(places.paths_to(&place), expected, "{place:?}");
        }
    }

    #[test]
    fn odd_names_are_the_bytes_they_stand_for() {
        assert_eq!(place(26, None), Some(on("8:2", "/a b\nc\\040", false)));
        let below = place(26, Some("/var/lib/odd place/x\ny z"));
        assert_eq!(below, Some(on("8:2", "/a b\nc\\040/x\ny z", false)));
    }

    #[test]
    fn what_was_removed_is_known_as_that() {
        assert_eq!(place(25, None), Some(on("8:2", "/kubelet/gone", true)));
        let below = place(25, Some("/var/lib/gone/x"));
        assert_eq!(below, Some(on("8:2", "/kubelet/gone/x", true)));
    }

    #[test]
    fn what_nothing_is_known_of_has_no_place() {
        assert_eq!(place(99, None), None, "no such mount");
        assert_eq!(place(22, Some("/elsewhere")), None, "not below its mount");
        assert_eq!(place(27, None), None, "NFS doesn't tell");
    }

    #[test]
    fn a_directory_holds_what_is_on_its_device_and_path() {
        let below = |place: &str, directory: &str| {
            let [place, directory] = [place, directory].map(|text| {
                let (device, path) = text.split_once(' ').unwrap();
                on(device, path, false)
            });
            place
                .below(&directory)
                .map(|rest| rest.to_str().unwrap().to_owned())
        };
        assert_eq!(below("8:2 /v/a/b", "8:2 /v"), Some("a/b".to_owned()));
        assert_eq!(below("8:2 /v", "8:2 /v"), Some(String::new()));
        assert_eq!(below("8:2 /v/a", "8:2 /"), Some("v/a".to_owned()));
        assert_eq!(below("8:2 /va", "8:2 /v"), None);
        assert_eq!(below("8:3 /v/a", "8:2 /v"), None);
    }

    #[test]
    fn the_kernels_answers_lead_to_a_place() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::create_dir_all(real.join("a b/c")).unwrap();
        std::os::unix::fs::symlink("a b", real.join("link")).unwrap();
        let places = Places::default();
        let of = |path: &Path| places.of(path).unwrap();
        let [whole, below] = [real.clone(), real.join("link/c")].map(|path| of(&path).unwrap());
        let proc = of(Path::new("/proc")).unwrap();
        assert_eq!(of(&real.join("missing")), None);
        assert_eq!(below.below(&whole), Some(Path::new("a b/c")));
        assert_eq!(proc.path, Path::new("/"));
        assert_eq!(proc.below(&whole), None);
    }

    #[test]
    fn a_target_path_is_below_what_exists_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        std::fs::write(real.join("file"), "").unwrap();
        let places = Places::default();
        let whole = places.of(&real).unwrap().unwrap();
        for below in ["", "a", "a/b", "file", "file/x"] {
            let place = places.of_target(&real.join(below)).unwrap().unwrap();
            assert_eq!(place.below(&whole), Some(Path::new(below)), "{below}");
        }
    }

    /// The limit is the process's: nextest gives each test one of its own.
    #[test]
    fn a_lookup_short_of_descriptors_fails() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let places = Places::default();
        let before = getrlimit(Resource::Nofile);
        let limit = |current| Rlimit { current, ..before };
        setrlimit(Resource::Nofile, limit(Some(0))).unwrap();
        let path = Path::new("/proc/self");
        let found = [
            places.of(path),
            places.of_target(path),
            places.mounted(path).map(|_| None),
        ];
        setrlimit(Resource::Nofile, before).unwrap();
        for found in found {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("/proc/self: EMFILE"), "{error}");
            assert!(error.contains("LimitNOFILE="), "{error}");
        }
    }
}
