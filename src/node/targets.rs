//! Lookups of the node's target paths, for sources that don't match by path.

use std::cell::OnceCell;
use std::path::Path;

use crust_blockfs::DeviceNumber;
use crust_blockfs::identity::{Identity, MountId};
use crust_state::{Config, TargetIndex};

use crate::matching::{Node, NonCsiTargets};

/// The node's target paths, each part of it read at most once for a create.
#[derive(Debug)]
pub(super) struct Targets<'a> {
    config: &'a Config,
    /// Whether anything may be staged.
    is_used: bool,
    /// The index; `None` if it is missing or can't be read, so that every file system may hold target paths.
    index: OnceCell<Option<TargetIndex>>,
    usual_mounts: OnceCell<UsualMounts>,
    elsewhere: OnceCell<NonCsiTargets>,
}

/// The mounts that the root directory and the kubelets' directories are on; one that can't be looked up isn't
/// usual.
#[derive(Debug)]
struct UsualMounts {
    root: Option<MountId>,
    kubelets: Vec<MountId>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(config: &'a Config, is_used: bool) -> Self {
        Self {
            config,
            is_used,
            index: OnceCell::new(),
            usual_mounts: OnceCell::new(),
            elsewhere: OnceCell::new(),
        }
    }

    /// Returns the index; `None` if it is missing or can't be read.
    fn index(&self) -> Option<&TargetIndex> {
        let read = || {
            if self.is_used {
                TargetIndex::read(&self.config.state_dir).ok().flatten()
            } else {
                Some(TargetIndex::default())
            }
        };
        self.index.get_or_init(read).as_ref()
    }

    /// Returns the target paths that aren't a CSI volume's by their form; `None` where nothing was ever indexed.
    pub(super) fn elsewhere(&self) -> Option<&NonCsiTargets> {
        let index = self.index();
        let is_needed = index.is_none_or(|index| !index.is_empty());
        let paths = || index.map(|index| index.elsewhere().collect());
        let elsewhere = || NonCsiTargets::new(paths());
        is_needed.then(|| self.elsewhere.get_or_init(elsewhere))
    }

    /// Whether it is worth asking if a source is on the root directory's mount: then it can lead to a volume
    /// only by its path. It isn't if a target path can be reached by another mount, nor once a kubelet's directory is
    /// known to be on a mount of its own, where most sources will be.
    pub(super) fn asks_for_root_mount(&self, node: &impl Node) -> bool {
        let Some(elsewhere) = self.elsewhere() else {
            return false;
        };
        let usual = self.usual_mounts.get();
        let is_on_root = |usual: &UsualMounts| {
            let mut kubelets = usual.kubelets.iter();
            kubelets.all(|mount| Some(*mount) == usual.root)
        };
        let are_on_root = || {
            let root = self.usual_mounts().root;
            root.is_some_and(|root| elsewhere.are_on(root, node))
        };
        usual.is_none_or(is_on_root) && (elsewhere.is_empty() || are_on_root())
    }

    pub(super) fn is_indexed(&self, device: DeviceNumber) -> bool {
        self.index()
            .is_none_or(|index| index.has_file_system(device))
    }

    pub(super) fn is_usual_mount(&self, mount: MountId) -> bool {
        let usual = self.usual_mounts();
        usual.root == Some(mount) || usual.kubelets.contains(&mount)
    }

    fn usual_mounts(&self) -> &UsualMounts {
        self.usual_mounts.get_or_init(|| {
            let mount = |path: &Path| Some(Identity::of(path).ok()??.mount);
            let kubelets = self.config.kubelet_dirs.iter();
            UsualMounts {
                root: mount(Path::new("/")),
                kubelets: kubelets.filter_map(|dir| mount(dir)).collect(),
            }
        })
    }
}
