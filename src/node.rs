//! What planning asks of the node, answered by the node.

mod links;
mod targets;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_mount::bare;
use crust_mount::mountinfo::MountInfoError;
use crust_mount::place::{Identity, Place, Places};
use crust_mount::{overlay, selinux, within};
use crust_state::crust::{EntryError, Index};
use crust_state::files::FileError;
use crust_state::privilege::is_rootless;
use crust_state::sandbox::SandboxRecord;
use crust_state::target::pod_csi_directory;
use crust_state::{Config, CrustDirectory, Deadline, DeviceNumber, StateDirectory, TargetPath};
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, openat, readlinkat, statvfs};

use crate::matching::{Node, PodError, Way};
use crate::plan::{PlanError, Records};
use targets::Targets;

/// More names than the sources of an ordinary config have in all. Whoever writes a pod may give it
/// thousands of mounts, and sources of thousands of names: from there on it is a list of what is
/// staged that knows, made once, and no longer the kernel, name by name.
const MANY: usize = 1000;

/// This node.
#[derive(Debug)]
pub(crate) struct ThisNode<'a> {
    config: &'a Config,
    /// None where nothing is staged.
    crust: Option<&'a CrustDirectory>,
    /// Number of path components looked up so far.
    names: Cell<usize>,
    /// Listed once it is asked for; None where it can't be.
    index: OnceCell<Option<Index>>,
    /// Lookups of target paths, for sources that don't match by path.
    targets: Targets<'a>,
    /// Lookups by the mount table, which is read once for all of them.
    places: Places,
    /// Volumes that are staged in directories of pods, by directory. Each is listed once.
    listed: RefCell<HashMap<PathBuf, Vec<TargetPath>>>,
    /// Deadline for deciding the create.
    deadline: Deadline,
}

impl<'a> ThisNode<'a> {
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
        let crust = is_used.then_some(crust);
        Ok(Self {
            config,
            crust,
            names: Cell::new(0),
            index: OnceCell::new(),
            targets: Targets::new(config, crust),
            places: Places::default(),
            listed: RefCell::default(),
            deadline,
        })
    }
}

impl Node for ThisNode<'_> {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        let Some(crust) = self.crust else {
            return Ok(None);
        };
        Ok(crust.volume(path)?.map(|volume| volume.target().clone()))
    }

    fn staged_on_the_way(&self, path: &TargetPath) -> Option<Vec<usize>> {
        let crust = self.crust?;
        self.names.set(self.names.get() + path.depth());
        if self.names.get() <= MANY {
            return None;
        }
        let index = self.index.get_or_init(|| crust.index().ok());
        Some(index.as_ref()?.on_the_way(path))
    }

    fn resolved(&self, path: &Path) -> Option<TargetPath> {
        self.way(path).resolved
    }

    fn way(&self, path: &Path) -> Way {
        // containerd and CRI-O resolve them before.
        let way = links::way(path, self.targets.are_usual());
        Way {
            resolved: (way == links::Way::Other).then(|| resolved(path)).flatten(),
            is_usual: way == links::Way::OnRootMount,
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

    fn places(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError> {
        self.places.of(paths)
    }

    fn target_places(&self, targets: &[TargetPath]) -> Result<Vec<Option<Place>>, MountInfoError> {
        self.targets.places(targets, &self.places)
    }

    fn target_identity(&self, target: &TargetPath) -> Option<Identity> {
        self.targets.identity_of_target(target)
    }

    fn targets_elsewhere(&self) -> Vec<TargetPath> {
        self.targets.elsewhere()
    }

    fn all_staged(&self) -> Result<Vec<TargetPath>, PodError> {
        self.targets.all().map_err(PodError::Crust)
    }

    fn identity(&self, path: &Path) -> Option<Identity> {
        self.targets.identity(path)
    }

    fn holds_targets(&self, device: DeviceNumber) -> bool {
        self.targets.are_on(device)
    }

    fn is_usual_mount(&self, id: u64) -> bool {
        self.targets.is_usual_mount(id)
    }

    fn is_read_only(&self, path: &Path) -> bool {
        statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    fn is_overlay(&self, path: &Path) -> bool {
        overlay::is_at(path)
    }

    fn overlay_layers(&self, path: &Path) -> Result<Vec<PathBuf>, MountInfoError> {
        let found = self.places.mounted(path)?;
        Ok(found.map_or_else(Vec::new, |(mount, below)| {
            overlay::layers_of(&mount, &below)
        }))
    }

    fn is_bare_directory(&self, directory: &Path) -> bool {
        bare::is_bare_directory(directory)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn within(&self, rootfs: &Path, path: &Path) -> PathBuf {
        within::resolve(rootfs, path)
    }
}

impl ThisNode<'_> {
    fn list_staged(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError> {
        let mut volumes = Vec::new();
        if self.crust.is_none() {
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
            let resolved = path.resolved().ok().filter(|resolved| *resolved != path);
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
fn resolved(path: &Path) -> Option<TargetPath> {
    // Opening for the path alone touches no device and waits for none. What doesn't exist
    // can't be bound either: the delegate says so.
    let found = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let real = readlinkat(CWD, link, Vec::with_capacity(256)).ok()?;
    let real = TargetPath::new(OsStr::from_bytes(real.as_bytes())).ok()?;
    (real.as_path() != path).then_some(real)
}

impl Records for ThisNode<'_> {
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
        selinux::enforces()
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
