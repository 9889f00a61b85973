//! Lookups of the node's target paths, for sources that don't match by path.

use std::cell::OnceCell;
use std::path::Path;

use crust_mount::identity::{Identity, MountId};
use crust_state::crust::EntryError;
use crust_state::{Config, CrustDirectory, DeviceNumber, TargetIndex, TargetPath};

use crate::matching::{PodError, Tables};

/// The node's target paths, each part of it read at most once for a create.
#[derive(Debug)]
pub(super) struct Targets<'a> {
    config: &'a Config,
    /// None where nothing is staged.
    crust: Option<&'a CrustDirectory>,
    /// The index; `None` if it is missing or can't be read, so that every file system may hold target paths.
    index: OnceCell<Option<TargetIndex>>,
    usual_mounts: OnceCell<UsualMounts>,
    tables: Tables,
}

/// The mounts that the root directory and the kubelets' directories are on; one that can't be looked up isn't
/// usual.
#[derive(Debug)]
struct UsualMounts {
    root: Option<MountId>,
    kubelets: Vec<MountId>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(config: &'a Config, crust: Option<&'a CrustDirectory>) -> Self {
        Self {
            config,
            crust,
            index: OnceCell::new(),
            usual_mounts: OnceCell::new(),
            tables: Tables::default(),
        }
    }

    /// Returns the index; `None` if it is missing or can't be read.
    fn index(&self) -> Option<&TargetIndex> {
        let read = || match self.crust {
            Some(_) => TargetIndex::read(&self.config.state_dir).ok().flatten(),
            None => Some(TargetIndex::default()),
        };
        self.index.get_or_init(read).as_ref()
    }

    /// Returns the tables; `None` where nothing was ever indexed.
    pub(super) fn tables(&self) -> Option<&Tables> {
        let is_needed = self.index().is_none_or(|index| !index.is_empty());
        is_needed.then_some(&self.tables)
    }

    pub(super) fn elsewhere(&self) -> Result<Vec<TargetPath>, PodError> {
        if let Some(index) = self.index() {
            return Ok(index.elsewhere().collect());
        }
        let mut all = self.all()?;
        all.retain(|target| target.csi_volume().is_none());
        Ok(all)
    }

    /// Whether it is worth asking if a source is on the root directory's mount: then it can lead to a volume
    /// only by its path. It isn't once a kubelet's directory is known to be on a mount of its own, where most
    /// sources will be.
    pub(super) fn asks_for_root_mount(&self) -> bool {
        let is_worth =
            |index: &TargetIndex| !index.is_empty() && index.elsewhere().next().is_none();
        let usual = self.usual_mounts.get();
        let is_on_root = |usual: &UsualMounts| {
            let mut kubelets = usual.kubelets.iter();
            kubelets.all(|mount| Some(*mount) == usual.root)
        };
        usual.is_none_or(is_on_root) && self.index().is_some_and(is_worth)
    }

    pub(super) fn is_indexed(&self, device: DeviceNumber) -> bool {
        self.index()
            .is_none_or(|index| index.has_file_system(device))
    }

    pub(super) fn is_usual_mount(&self, mount: MountId) -> bool {
        let usual = self.usual_mounts.get_or_init(|| {
            let mount = |path: &Path| Some(Identity::of(path).ok()??.mount);
            let kubelets = self.config.kubelet_dirs.iter();
            UsualMounts {
                root: mount(Path::new("/")),
                kubelets: kubelets.filter_map(|dir| mount(dir)).collect(),
            }
        });
        usual.root == Some(mount) || usual.kubelets.contains(&mount)
    }

    /// Returns the target paths of all staged volumes. Fails if an entry can't be read at the moment: it may be the
    /// volume's that a source leads to. Left out are entries that name no target path, as a CSI driver may write
    /// them, and those that aren't valid or that others than root can write: none of them is ever served, and one
    /// of them must not keep all other pods of the node from starting.
    pub(super) fn all(&self) -> Result<Vec<TargetPath>, PodError> {
        let found = self.crust.map_or(Ok(Vec::new()), CrustDirectory::survey);
        let mut targets = Vec::new();
        for found in found.map_err(PodError::Crust)? {
            match found.info {
                Ok(info) => targets.extend(info.target_path),
                Err(EntryError::File(error)) if error.is_temporary() => {
                    return Err(PodError::Staged {
                        volume: found.digest.short(),
                        source: error.into(),
                    });
                }
                Err(_) => {}
            }
        }
        Ok(targets)
    }
}
