//! Lookups on the node for planning a create, cached for that create.

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

use crust_blockfs::identity::{CachedIdentity, FileIdentity, LookupError, MountId};
use crust_blockfs::location::{FsLocation, LocationError, LocationResolver};
use crust_blockfs::mount_kind::MountKind;
use crust_blockfs::mountinfo::has_option;
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

use crate::matching::{NodeLookup, NonCsiTargets, ResolvedSource, StagedListError};
use crate::plan::{PlanError, PlanLookup};
use path_kind::PathKind;
use targets::TargetLookups;

/// Number of path components that are looked up one by one before the crust directory is listed instead.
///
/// The sources of an ordinary config have fewer in total. A pod's author can add thousands of mounts whose sources have
/// thousands of components. One listing then replaces the lookups.
const MAX_SINGLE_LOOKUPS: usize = 1000;

/// Number of volumes whose entries stay open during the create.
///
/// The limit of open files may be low, and a pod can have many volumes. The entries of further volumes are read again
/// whenever they are needed.
const MAX_OPEN_VOLUMES: usize = 64;

/// The node as seen by one create. It reads most things at most once.
#[derive(Debug)]
pub(crate) struct CachedNode<'a> {
    config: &'a Config,
    crust: &'a CrustDirectory,
    /// Whether any volume may be staged on the node.
    may_have_volumes: bool,
    /// Number of path components looked up so far.
    looked_up_components: Cell<usize>,
    /// The listing of the crust directory, made on first use; `None` if it failed.
    staged_digests: OnceCell<Option<StagedDigests>>,
    /// Lookups of target paths for sources that don't match by path.
    targets: TargetLookups<'a>,
    /// Lookups in the mount table, which is read once.
    locations: LocationResolver,
    /// Open volumes by target path. A volume that was found at another path is listed under that path, too.
    volumes: RefCell<Vec<(TargetPath, Rc<Volume>)>>,
    /// Target paths of the volumes staged for a pod, by the pod's directory of CSI volumes.
    staged_by_directory: RefCell<BTreeMap<PathBuf, Vec<TargetPath>>>,
    /// Deadline for planning the create.
    deadline: Deadline,
}

impl<'a> CachedNode<'a> {
    /// Creates the node's cache. `crust` is the configured crust directory. Fails if it can't be determined whether
    /// volumes may be staged.
    pub(crate) fn new(
        config: &'a Config,
        crust: &'a CrustDirectory,
        deadline: Deadline,
    ) -> Result<Self, FileError> {
        let may_have_volumes = match crust.may_hold_volumes() {
            // The container of a rootless caller can't be given volumes from a directory that the caller may not read.
            Err(FileError::Call { source, .. })
                if source.kind() == ErrorKind::PermissionDenied && is_rootless() =>
            {
                false
            }
            result => result?,
        };
        Ok(Self {
            config,
            crust,
            may_have_volumes,
            looked_up_components: Cell::new(0),
            staged_digests: OnceCell::new(),
            targets: TargetLookups::new(config, may_have_volumes),
            locations: LocationResolver::default(),
            volumes: RefCell::default(),
            staged_by_directory: RefCell::default(),
            deadline,
        })
    }
}

impl NodeLookup for CachedNode<'_> {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        if !self.may_have_volumes {
            return Ok(None);
        }
        if let Some(volume) = self.find_open(path) {
            return Ok(Some(volume.target().clone()));
        }
        let volume = self.crust.volume(path)?.map(Rc::new);
        Ok(volume.map(|volume| self.keep_open(path, volume)))
    }

    fn staged_lengths(&self, path: &TargetPath) -> Option<Vec<usize>> {
        if !self.may_have_volumes {
            return None;
        }
        self.looked_up_components
            .set(self.looked_up_components.get() + path.depth());
        if self.looked_up_components.get() <= MAX_SINGLE_LOOKUPS {
            return None;
        }
        let index = self
            .staged_digests
            .get_or_init(|| self.crust.staged_digests().ok());
        Some(index.as_ref()?.staged_prefix_lengths(path))
    }

    fn resolve(&self, path: &Path) -> Result<ResolvedSource, LookupError> {
        // containerd and CRI-O have already resolved most sources, so the common case takes one or two calls.
        match PathKind::lookup(path, self.targets.should_check_root_mount(self)) {
            PathKind::Other => Ok(ResolvedSource {
                // A failed lookup doesn't matter if no volume is staged.
                path: match resolve_links(path) {
                    Err(_) if !self.may_have_volumes => None,
                    resolved => resolved?,
                },
                ..ResolvedSource::default()
            }),
            PathKind::OnRootMount => Ok(ResolvedSource {
                matches_only_by_path: true,
                ..ResolvedSource::default()
            }),
            PathKind::Plain(opened) => Ok(ResolvedSource {
                identity: match self.targets.non_csi() {
                    Some(_) => Some(FileIdentity::from_descriptor(&opened, path)?),
                    None => None,
                },
                ..ResolvedSource::default()
            }),
        }
    }

    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, StagedListError> {
        if let Some(volumes) = self.staged_by_directory.borrow().get(csi_directory) {
            return Ok(volumes.clone());
        }
        let volumes = self.list_staged(csi_directory)?;
        let mut listed = self.staged_by_directory.borrow_mut();
        listed.insert(csi_directory.to_owned(), volumes.clone());
        Ok(volumes)
    }

    fn is_overdue(&self) -> bool {
        self.deadline.is_expired()
    }

    fn locate(&self, path: &Path) -> Result<Option<FsLocation>, LocationError> {
        self.locations.locate(path)
    }

    fn locate_target(&self, target: &TargetPath) -> Result<Option<FsLocation>, LocationError> {
        self.locations.locate_target(target.as_path())
    }

    fn paths_to(&self, location: &FsLocation) -> Vec<TargetPath> {
        let paths = self.locations.paths_to(location).into_iter();
        paths
            .filter_map(|path| TargetPath::new(path).ok())
            .collect()
    }

    fn non_csi_targets(&self) -> Option<&NonCsiTargets> {
        self.targets.non_csi()
    }

    fn cached_identity(&self, path: &Path) -> CachedIdentity {
        FileIdentity::from_cache(path)
    }

    fn identity(&self, path: &Path) -> Result<Option<FileIdentity>, LookupError> {
        FileIdentity::look_up(path)
    }

    fn is_indexed(&self, device: DeviceNumber) -> bool {
        self.targets.is_indexed(device)
    }

    fn is_root_or_kubelet_mount(&self, mount: MountId) -> bool {
        self.targets.is_root_or_kubelet_mount(mount)
    }

    fn is_read_only(&self, path: &Path) -> Result<bool, LocationError> {
        let found = self.locations.find_mount(path)?;
        Ok(found.is_some_and(|(mount, _)| has_option(&mount.options, "ro")))
    }

    fn mount_kind(&self, path: &Path, mount: MountId) -> Result<MountKind, LocationError> {
        if let Some(kind) = MountKind::read(mount) {
            return Ok(kind);
        }
        let found = self.locations.find_mount(path)?;
        Ok(found.map_or(MountKind::Other, |(mount, _)| {
            MountKind::from_fstype(&mount.fstype)
        }))
    }

    fn overlay_layers(&self, path: &Path) -> Result<Vec<PathBuf>, LocationError> {
        let Some((mount, Some(below))) = self.locations.find_mount(path)? else {
            return Ok(Vec::new());
        };
        Ok(overlay::layers_of_mount(&mount, &below))
    }

    fn trigger_automount(&self, path: &Path) -> Result<Option<FileIdentity>, LookupError> {
        FileIdentity::look_up_automount(path)
    }

    fn is_bare_directory(&self, directory: &Path) -> Result<bool, LookupError> {
        match bare_directory::is_bare_directory(directory) {
            // A failed lookup doesn't matter if no volume is staged.
            Err(_) if !self.may_have_volumes => Ok(false),
            result => result,
        }
    }

    fn resolve_in_rootfs(&self, rootfs: &Path, path: &Path) -> PathBuf {
        openat2::resolve_in_root(rootfs, path)
    }
}

impl CachedNode<'_> {
    /// Returns the volume with this target path. Reads its entry only if the volume isn't open.
    pub(crate) fn volume(&self, target: &TargetPath) -> Result<Rc<Volume>, VolumeError> {
        match self.find_open(target) {
            Some(volume) => Ok(volume),
            None => crust_volume::read_staged(self.crust, target).map(Rc::new),
        }
    }

    fn find_open(&self, path: &TargetPath) -> Option<Rc<Volume>> {
        let volumes = self.volumes.borrow();
        let found = volumes.iter().find(|(known, _)| known == path);
        found.map(|(_, volume)| Rc::clone(volume))
    }

    /// Keeps a volume that was found at `path` open for later steps of the create, and returns its target path.
    fn keep_open(&self, path: &TargetPath, volume: Rc<Volume>) -> TargetPath {
        let target = volume.target().clone();
        let mut volumes = self.volumes.borrow_mut();
        if volumes.len() < MAX_OPEN_VOLUMES {
            if *path != target {
                volumes.push((path.clone(), Rc::clone(&volume)));
            }
            volumes.push((target.clone(), volume));
        }
        target
    }

    fn list_staged(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, StagedListError> {
        let mut volumes = Vec::new();
        if !self.may_have_volumes {
            return Ok(volumes);
        }
        let failed = |source| StagedListError::Listing {
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
            // If the path leads through a symbolic link, the volume has an entry for both paths. One of them without
            // the other is an error.
            let resolved = path
                .resolved()
                .map_err(|error| errno::from_io_error(&error));
            let resolved = LookupError::unless_missing("realpath", path.as_path(), resolved);
            let resolved = resolved.map_err(StagedListError::Lookup)?;
            let resolved = resolved.filter(|resolved| *resolved != path);
            for spelling in [Some(path), resolved].into_iter().flatten() {
                let staged = self.staged(&spelling);
                volumes.extend(staged.map_err(|source| StagedListError::Staged {
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

/// Resolves the symbolic links of a path. Returns `None` if that is the path itself, or if nothing is there.
fn resolve_links(path: &Path) -> Result<Option<TargetPath>, LookupError> {
    // O_PATH doesn't open or wait for a device. A path that doesn't exist isn't an error here: the delegate reports it.
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

impl PlanLookup for CachedNode<'_> {
    /// Lists the pod's directories of CSI volumes, one for each kubelet directory.
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
