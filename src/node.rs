//! This node, as planning asks about it.

mod path_kind;
mod targets;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crust_blockfs::identity::{CachedIdentity, Identity, LookupError, MountId};
use crust_blockfs::mount_kind::MountKind;
use crust_blockfs::mountinfo::has_option;
use crust_blockfs::place::{Place, PlaceError, Places};
use crust_blockfs::{Deadline, DeviceNumber};
use crust_blockfs::{errno, kernel, openat2, overlay};
use crust_state::crust::{EntryError, StagedDigests};
use crust_state::files::FileError;
use crust_state::sandbox::SandboxRecord;
use crust_state::target::pod_csi_directory;
use crust_state::trust::is_rootless;
use crust_state::{Config, CrustDirectory, StateDirectory, TargetPath, Volume};
use crust_volume::{VolumeError, bare_directory};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};

use crate::matching::{Node, NonCsiTargets, PodError, Resolved};
use crate::plan::{PlanError, Records};
use path_kind::PathKind;
use targets::Targets;

/// More names than the sources of an ordinary config have in all. Whoever writes a pod may give it
/// thousands of mounts, and sources of thousands of names: from there on it is a list of what is
/// staged that knows, made once, and no longer the kernel, name by name.
const MANY: usize = 1000;

/// The number of volumes whose entries stay open for the create. A process may have few open files, and whoever
/// stages can give a pod many volumes: what is beyond is read when it is asked for.
const MOST_OPEN: usize = 64;

/// This node, as one create looks at it: what was read once isn't read again.
#[derive(Debug)]
pub(crate) struct CachedNode<'a> {
    config: &'a Config,
    crust: &'a CrustDirectory,
    /// Whether anything may be staged.
    is_used: bool,
    /// Number of path components looked up so far.
    names: Cell<usize>,
    /// Listed once it is asked for; None where it can't be.
    index: OnceCell<Option<StagedDigests>>,
    /// Lookups of target paths, for sources that don't match by path.
    targets: Targets<'a>,
    /// Lookups by the mount table, which is read once for all of them.
    places: Places,
    /// Volumes that were found, each by its target path and by the path that it was found at.
    volumes: RefCell<Vec<(TargetPath, Rc<Volume>)>>,
    /// Volumes that are staged in directories of pods, by directory. Each is listed once.
    listed: RefCell<BTreeMap<PathBuf, Vec<TargetPath>>>,
    /// Deadline for deciding the create.
    deadline: Deadline,
}

impl<'a> CachedNode<'a> {
    /// `crust` is the directory that the configuration names; `deadline` is the create's.
    pub(crate) fn new(
        config: &'a Config,
        crust: &'a CrustDirectory,
        deadline: Deadline,
    ) -> Result<Self, FileError> {
        let is_used = match crust.may_hold_volumes() {
            // What only root may see no rootless container can be given either.
            Err(FileError::Call { source, .. })
                if source.kind() == ErrorKind::PermissionDenied && is_rootless() =>
            {
                false
            }
            may => may?,
        };
        Ok(Self {
            config,
            crust,
            is_used,
            names: Cell::new(0),
            index: OnceCell::new(),
            targets: Targets::new(config, is_used),
            places: Places::default(),
            volumes: RefCell::default(),
            listed: RefCell::default(),
            deadline,
        })
    }
}

impl Node for CachedNode<'_> {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        if !self.is_used {
            return Ok(None);
        }
        if let Some(volume) = self.kept(path) {
            return Ok(Some(volume.target().clone()));
        }
        let volume = self.crust.volume(path)?.map(Rc::new);
        Ok(volume.map(|volume| self.keep(path, volume)))
    }

    fn staged_lengths(&self, path: &TargetPath) -> Option<Vec<usize>> {
        if !self.is_used {
            return None;
        }
        self.names.set(self.names.get() + path.depth());
        if self.names.get() <= MANY {
            return None;
        }
        let index = self.index.get_or_init(|| self.crust.staged_digests().ok());
        Some(index.as_ref()?.lengths_of(path))
    }

    fn resolve(&self, path: &Path) -> Result<Resolved, LookupError> {
        // containerd and CRI-O resolve them before.
        match PathKind::of(path, self.targets.asks_for_root_mount(self)) {
            PathKind::Other => Ok(Resolved {
                // What can't be looked up isn't a volume's where none is staged.
                path: match resolved(path) {
                    Err(_) if !self.is_used => None,
                    resolved => resolved?,
                },
                ..Resolved::default()
            }),
            PathKind::OnRootMount => Ok(Resolved {
                only_by_path: true,
                ..Resolved::default()
            }),
            PathKind::Plain(opened) => Ok(Resolved {
                identity: match self.targets.elsewhere() {
                    Some(_) => Some(Identity::of_opened(&opened, path)?),
                    None => None,
                },
                ..Resolved::default()
            }),
        }
    }

    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError> {
        if let Some(volumes) = self.listed.borrow().get(csi_directory) {
            return Ok(volumes.clone());
        }
        let volumes = self.list_staged(csi_directory)?;
        let mut listed = self.listed.borrow_mut();
        listed.insert(csi_directory.to_owned(), volumes.clone());
        Ok(volumes)
    }

    fn is_overdue(&self) -> bool {
        self.deadline.expired()
    }

    fn place(&self, path: &Path) -> Result<Option<Place>, PlaceError> {
        self.places.of(path)
    }

    fn target_place(&self, target: &TargetPath) -> Result<Option<Place>, PlaceError> {
        self.places.of_target(target.as_path())
    }

    fn paths_to(&self, place: &Place) -> Vec<TargetPath> {
        let paths = self.places.paths_to(place).into_iter();
        paths
            .filter_map(|path| TargetPath::new(path).ok())
            .collect()
    }

    fn targets_elsewhere(&self) -> Option<&NonCsiTargets> {
        self.targets.elsewhere()
    }

    fn identity_at_once(&self, path: &Path) -> CachedIdentity {
        Identity::at_once(path)
    }

    fn identity(&self, path: &Path) -> Result<Option<Identity>, LookupError> {
        Identity::of(path)
    }

    fn is_indexed(&self, device: DeviceNumber) -> bool {
        self.targets.is_indexed(device)
    }

    fn is_usual_mount(&self, mount: MountId) -> bool {
        self.targets.is_usual_mount(mount)
    }

    fn is_read_only(&self, path: &Path) -> Result<bool, PlaceError> {
        let found = self.places.mounted(path)?;
        Ok(found.is_some_and(|(mount, _)| has_option(&mount.options, "ro")))
    }

    fn mount_kind(&self, path: &Path, mount: MountId) -> Result<MountKind, PlaceError> {
        if let Some(kind) = MountKind::of(mount) {
            return Ok(kind);
        }
        let found = self.places.mounted(path)?;
        Ok(found.map_or(MountKind::Other, |(mount, _)| {
            MountKind::by_type(&mount.fstype)
        }))
    }

    fn overlay_layers(&self, path: &Path) -> Result<Vec<PathBuf>, PlaceError> {
        let Some((mount, Some(below))) = self.places.mounted(path)? else {
            return Ok(Vec::new());
        };
        Ok(overlay::layers_of(&mount, &below))
    }

    fn trigger_automount(&self, path: &Path) -> Result<Option<Identity>, LookupError> {
        Identity::of_automount(path)
    }

    fn is_bare_directory(&self, directory: &Path) -> Result<bool, LookupError> {
        match bare_directory::is_bare_directory(directory) {
            // As for links.
            Err(_) if !self.is_used => Ok(false),
            found => found,
        }
    }

    fn within(&self, rootfs: &Path, path: &Path) -> PathBuf {
        openat2::resolve_in_root(rootfs, path)
    }
}

impl CachedNode<'_> {
    /// Returns the volume with this target path as it was found.
    pub(crate) fn volume(&self, target: &TargetPath) -> Result<Rc<Volume>, VolumeError> {
        match self.kept(target) {
            Some(volume) => Ok(volume),
            None => crust_volume::staged(self.crust, target).map(Rc::new),
        }
    }

    fn kept(&self, path: &TargetPath) -> Option<Rc<Volume>> {
        let volumes = self.volumes.borrow();
        let found = volumes.iter().find(|(kept, _)| kept == path);
        found.map(|(_, volume)| Rc::clone(volume))
    }

    /// Keeps a volume for later steps of the create, and returns its target path.
    fn keep(&self, path: &TargetPath, volume: Rc<Volume>) -> TargetPath {
        let target = volume.target().clone();
        let mut volumes = self.volumes.borrow_mut();
        if volumes.len() < MOST_OPEN {
            if *path != target {
                volumes.push((path.clone(), Rc::clone(&volume)));
            }
            volumes.push((target.clone(), volume));
        }
        target
    }

    fn list_staged(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError> {
        let mut volumes = Vec::new();
        if !self.is_used {
            return Ok(volumes);
        }
        let failed = |source| PodError::Listing {
            directory: csi_directory.to_owned(),
            source,
        };
        let entries = match std::fs::read_dir(csi_directory) {
            Ok(entries) => entries,
            // A pod without CSI volumes has no such directory.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(volumes),
            Err(error) => return Err(failed(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let Ok(path) = TargetPath::new(entry.path().join("mount")) else {
                continue;
            };
            // Behind a link there are two entries: one of them alone is an error, not nothing.
            let resolved = path.resolved().map_err(|error| errno::of(&error));
            let resolved = LookupError::unless_missing("realpath", path.as_path(), resolved);
            let resolved = resolved.map_err(PodError::Lookup)?;
            let resolved = resolved.filter(|resolved| *resolved != path);
            for spelling in [Some(path), resolved].into_iter().flatten() {
                let staged = self.staged(&spelling);
                volumes.extend(staged.map_err(|source| PodError::Staged {
                    volume: spelling.volume_name(),
                    source,
                })?);
            }
        }
        volumes.sort();
        volumes.dedup();
        Ok(volumes)
    }
}

/// Returns the path with its links resolved; `None` where that is the path itself.
fn resolved(path: &Path) -> Result<Option<TargetPath>, LookupError> {
    // Opening for the path alone touches no device and waits for none. What doesn't exist
    // can't be bound either: the delegate says so.
    let opened = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let Some(found) = LookupError::unless_missing("openat", path, opened)? else {
        return Ok(None);
    };
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let real = readlinkat(CWD, link, Vec::with_capacity(256));
    let real = real.map_err(|errno| LookupError::new("readlink /proc/self/fd of", path, errno))?;
    let real = TargetPath::new(OsStr::from_bytes(real.as_bytes())).ok();
    Ok(real.filter(|real| real.as_path() != path))
}

impl Records for CachedNode<'_> {
    /// The one listing that a sandbox's create makes.
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError> {
        let mut volumes = Vec::new();
        for kubelet_dir in &self.config.kubelet_dirs {
            volumes.extend(self.staged_in(&pod_csi_directory(kubelet_dir, pod_uid))?);
        }
        volumes.sort();
        volumes.dedup();
        Ok(volumes)
    }

    fn enforces_selinux(&self) -> bool {
        kernel::enforces_selinux()
    }

    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError> {
        let read = || match StateDirectory::open(&self.config.state_dir)? {
            Some(state) => state.sandbox(id),
            None => Ok(None),
        };
        read().map_err(|source| PlanError::Sandbox {
            id: id.to_owned(),
            source,
        })
    }
}
