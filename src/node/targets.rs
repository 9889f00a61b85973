//! Lookups of the node's target paths for sources that don't match by path.

use std::cell::OnceCell;
use std::path::Path;

use crust_blockfs::DeviceNumber;
use crust_blockfs::identity::{FileIdentity, MountId};
use crust_state::{Config, TargetIndex};

use crate::matching::{NodeLookup, NonCsiTargets};

/// The node's target paths. Each field is read at most once for a create.
#[derive(Debug)]
pub(super) struct TargetLookups<'a> {
    config: &'a Config,
    /// Whether any volume may be staged on the node.
    may_have_volumes: bool,
    /// The index. `None` if it is missing or unreadable: every file system may contain target paths then.
    index: OnceCell<Option<TargetIndex>>,
    usual_mounts: OnceCell<UsualMounts>,
    /// Target paths that don't have the form of a CSI volume's path.
    non_csi: OnceCell<NonCsiTargets>,
}

/// The mounts of the root directory and of the kubelets' directories, without those whose lookup failed.
#[derive(Debug)]
struct UsualMounts {
    root: Option<MountId>,
    kubelets: Vec<MountId>,
}

impl<'a> TargetLookups<'a> {
    pub(super) fn new(config: &'a Config, may_have_volumes: bool) -> Self {
        Self {
            config,
            may_have_volumes,
            index: OnceCell::new(),
            usual_mounts: OnceCell::new(),
            non_csi: OnceCell::new(),
        }
    }

    /// Returns the index; `None` if it is missing or unreadable.
    fn index(&self) -> Option<&TargetIndex> {
        let read = || {
            if self.may_have_volumes {
                TargetIndex::read(&self.config.state_dir).ok().flatten()
            } else {
                Some(TargetIndex::default())
            }
        };
        self.index.get_or_init(read).as_ref()
    }

    /// Returns the target paths that don't have the form of a CSI volume's path; `None` if nothing was ever indexed.
    pub(super) fn non_csi(&self) -> Option<&NonCsiTargets> {
        let index = self.index();
        let is_needed = index.is_none_or(|index| !index.is_empty());
        let paths = || index.map(|index| index.non_csi_paths().collect());
        let non_csi = || NonCsiTargets::new(paths());
        is_needed.then(|| self.non_csi.get_or_init(non_csi))
    }

    /// Returns whether it is worth checking if sources are on the root directory's mount. A source on that mount can
    /// lead to a volume only by its path.
    ///
    /// The check is useless if a target path is on another mount. It isn't worth its cost if a kubelet's directory is
    /// known to be on its own mount, because most sources are there.
    pub(super) fn should_check_root_mount(&self, node: &impl NodeLookup) -> bool {
        let Some(non_csi) = self.non_csi() else {
            return false;
        };
        let usual = self.usual_mounts.get();
        let kubelets_are_on_root = |usual: &UsualMounts| {
            let mut kubelets = usual.kubelets.iter();
            kubelets.all(|mount| Some(*mount) == usual.root)
        };
        let targets_are_on_root = || {
            let root = self.usual_mounts().root;
            root.is_some_and(|root| non_csi.are_on(root, node))
        };
        usual.is_none_or(kubelets_are_on_root) && (non_csi.is_empty() || targets_are_on_root())
    }

    /// Returns whether target paths may be on the file system with this device number.
    pub(super) fn is_indexed(&self, device: DeviceNumber) -> bool {
        self.index()
            .is_none_or(|index| index.has_file_system(device))
    }

    /// Returns whether a mount is the root directory's or a kubelet directory's.
    pub(super) fn is_root_or_kubelet_mount(&self, mount: MountId) -> bool {
        let usual = self.usual_mounts();
        usual.root == Some(mount) || usual.kubelets.contains(&mount)
    }

    fn usual_mounts(&self) -> &UsualMounts {
        self.usual_mounts.get_or_init(|| {
            let mount = |path: &Path| Some(FileIdentity::look_up(path).ok()??.mount);
            let kubelets = self.config.kubelet_dirs.iter();
            UsualMounts {
                root: mount(Path::new("/")),
                kubelets: kubelets.filter_map(|dir| mount(dir)).collect(),
            }
        })
    }
}
