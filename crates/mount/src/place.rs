//! Where a directory or file is within its file system: the same wherever and however often that
//! is mounted, so it tells what a bind mount is a bind of.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_state::DeviceNumber;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};

use crate::mountinfo::{Mount, MountInfoError, Table};

/// A directory or file, by its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// mountinfo's device: `st_dev` is another one in each of btrfs's subvolumes.
    pub device: DeviceNumber,
    /// From the root of the file system.
    pub path: PathBuf,
    /// It is mounted, but has been removed from where the path says.
    pub deleted: bool,
}

impl Place {
    /// What is left of this place's path below a directory of the same file system; empty for the
    /// directory itself.
    #[must_use]
    pub fn below(&self, directory: &Self) -> Option<&Path> {
        let rest = self.path.strip_prefix(&directory.path).ok()?;
        (self.device == directory.device).then_some(rest)
    }
}

/// The identity of the directory or file that a path leads to, and the mount that it is reached by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `st_dev`: in each of btrfs's subvolumes another one.
    pub device: DeviceNumber,
    /// `st_ino`, unique on its file system while the file exists.
    pub inode: u64,
    /// The id of the mount that it is reached by.
    pub mount: u64,
    /// It is that mount's root.
    pub is_mount_root: bool,
}

impl Identity {
    /// Returns the identity of what a path leads to, links followed; `None` where nothing is there. One
    /// statx(2), which opens no device and waits for no file server.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        let stat = rustix::fs::statx(CWD, path, flags, wanted).ok()?;
        Some(Self {
            device: DeviceNumber::new(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            mount: stat.stx_mnt_id,
            is_mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
        })
    }

    /// Whether both are one directory or file, by whichever mounts they are reached.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
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
        let root = mount.root.as_os_str().as_bytes();
        let (root, deleted) = match root.strip_suffix(b"//deleted") {
            Some(root) => (root, true),
            None => (root, false),
        };
        let mut path = PathBuf::from(OsStr::from_bytes(root));
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

/// Mounts by their ids.
type Mounts = HashMap<u64, Mount>;

/// Lookups of places by one mount table: it is read once, and again only for a path that leads over a mount
/// that it does not have. A container may have thousands of paths to look up, and a node as many mounts.
#[derive(Debug, Default)]
pub struct Places {
    mounts: RefCell<Mounts>,
}

impl Places {
    /// Returns the places that paths lead to, links followed; `None` for what isn't there, or isn't known.
    pub fn of(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError> {
        let held: Vec<Option<Held>> = paths.iter().map(|path| hold(path)).collect();
        self.of_held(&held)
    }

    /// Returns the places of target paths. Where the end of a path isn't there, it would be below the place of
    /// what is.
    pub fn of_targets(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError> {
        let mut places = Vec::with_capacity(paths.len());
        for paths in paths.chunks(AT_ONCE) {
            let existing = |path: &&'_ Path| -> (Option<Held>, PathBuf) {
                let found = path.ancestors().find_map(|part| Some((hold(part)?, part)));
                found.map_or_else(Default::default, |(held, part)| {
                    let missing = path.strip_prefix(part).unwrap_or(Path::new(""));
                    (Some(held), missing.to_owned())
                })
            };
            let (held, missing): (Vec<Option<Held>>, Vec<PathBuf>) =
                paths.iter().map(existing).unzip();
            for (place, missing) in self.of_held(&held)?.into_iter().zip(missing) {
                places.push(place.map(|mut place| {
                    place.path.extend(&missing);
                    place
                }));
            }
        }
        Ok(places)
    }

    /// All are held before the mounts are read, so that no id is given to another mount in between.
    fn of_held(&self, held: &[Option<Held>]) -> Result<Vec<Option<Place>>, MountInfoError> {
        self.read_for(held.iter().flatten().map(|(_, position)| position))?;
        let mounts = self.mounts.borrow();
        let place = |(_, position): &Held| position.place(mounts.get(&position.mount)?);
        Ok(held.iter().map(|held| place(held.as_ref()?)).collect())
    }

    /// Returns the mount that a path leads to, links followed, and the path from the root of its file system;
    /// `None` for what isn't there, or isn't known.
    pub fn mounted(&self, path: &Path) -> Result<Option<(Mount, PathBuf)>, MountInfoError> {
        let Some((_held, position)) = hold(path) else {
            return Ok(None);
        };
        self.read_for([&position])?;
        let mounts = self.mounts.borrow();
        let mount = mounts.get(&position.mount);
        Ok(mount.and_then(|mount| Some((mount.clone(), position.place(mount)?.path))))
    }

    /// Reads the mount table unless it is known to have the mounts of all these.
    fn read_for<'p>(
        &self,
        positions: impl IntoIterator<Item = &'p Position>,
    ) -> Result<(), MountInfoError> {
        let is_known = {
            let mounts = self.mounts.borrow();
            let mount = |position: &Position| mounts.get(&position.mount);
            let mut positions = positions.into_iter();
            positions.all(|it| mount(it).is_some_and(|mount| it.is_on(mount)))
        };
        if !is_known {
            let all = Table::own()?.select(|_| true)?;
            let by_id = all.into_iter().map(|mount| (mount.id.into(), mount));
            self.mounts.replace(by_id.collect());
        }
        Ok(())
    }
}

/// What a path leads to, opened for the path alone.
type Held = (OwnedFd, Position);

/// How many target paths are held open at once: a process may have few files.
const AT_ONCE: usize = 100;

fn hold(path: &Path) -> Option<Held> {
    // For the path alone: no device is opened, and no named pipe waited for.
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let held = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
    // And no server asked.
    let as_known = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&held, "", as_known, StatxFlags::MNT_ID).ok()?;
    let link = format!("/proc/self/fd/{}", held.as_raw_fd());
    let position = Position {
        mount: stat.stx_mnt_id,
        path: std::fs::read_link(link).ok()?,
        is_mount_root: stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    };
    Some((held, position))
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
    fn a_place_is_the_mounts_root_and_what_is_below_the_mount_point() {
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
        let paths = [
            real.clone(),
            real.join("link/c"),
            real.join("missing"),
            "/proc".into(),
        ];
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let places = Places::default().of(&paths).unwrap();
        let [Some(whole), Some(below), None, Some(proc)] = &places[..] else {
            panic!("{places:?}");
        };
        assert_eq!(below.below(whole), Some(Path::new("a b/c")));
        assert_eq!(proc.path, Path::new("/"));
        assert_eq!(proc.below(whole), None);
    }
}
