//! Lookups of the node's target paths, for sources that don't match by path.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crust_mount::mountinfo::MountInfoError;
use crust_mount::place::{Identity, Place, Places};
use crust_state::files::FileError;
use crust_state::{Config, CrustDirectory, DeviceNumber, TargetIndex, TargetPath};

/// The node's target paths, each part of it read at most once for a create.
#[derive(Debug)]
pub(super) struct Targets<'a> {
    config: &'a Config,
    /// None where nothing is staged.
    crust: Option<&'a CrustDirectory>,
    /// The index; `None` if it is missing or can't be read, so that every file system may hold target paths.
    index: OnceCell<Option<TargetIndex>>,
    usual_mounts: OnceCell<Vec<u64>>,
    /// A source was on a kubelet directory's own mount. Others will be too, and asking whether they are on
    /// the root's would be a call too many.
    is_kubelet_mounted: Cell<bool>,
    all: OnceCell<Vec<TargetPath>>,
    identities: RefCell<BTreeMap<TargetPath, Option<Identity>>>,
    places: RefCell<BTreeMap<TargetPath, Option<Place>>>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(config: &'a Config, crust: Option<&'a CrustDirectory>) -> Self {
        Self {
            config,
            crust,
            index: OnceCell::new(),
            usual_mounts: OnceCell::new(),
            is_kubelet_mounted: Cell::new(false),
            all: OnceCell::new(),
            identities: RefCell::default(),
            places: RefCell::default(),
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

    pub(super) fn elsewhere(&self) -> Vec<TargetPath> {
        if let Some(index) = self.index() {
            return index.elsewhere().collect();
        }
        let mut all = self.all().unwrap_or_default();
        all.retain(|target| target.csi_volume().is_none());
        all
    }

    /// Whether a source on the root directory's mount can lead to a volume only by its path, so that it is
    /// worth asking whether it is on that mount.
    pub(super) fn are_usual(&self) -> bool {
        let index = self.index();
        let is_worth =
            |index: &TargetIndex| !index.is_empty() && index.elsewhere().next().is_none();
        index.is_some_and(is_worth) && !self.is_kubelet_mounted.get()
    }

    /// One call, and none where nothing is indexed.
    pub(super) fn identity(&self, path: &Path) -> Option<Identity> {
        let is_asked = self.index().is_none_or(|index| !index.is_empty());
        is_asked.then(|| Identity::of(path)).flatten()
    }

    pub(super) fn identity_of_target(&self, target: &TargetPath) -> Option<Identity> {
        if let Some(known) = self.identities.borrow().get(target) {
            return *known;
        }
        let found = self.identity(target.as_path());
        self.identities.borrow_mut().insert(target.clone(), found);
        found
    }

    pub(super) fn places(
        &self,
        targets: &[TargetPath],
        places: &Places,
    ) -> Result<Vec<Option<Place>>, MountInfoError> {
        let mut known = self.places.borrow_mut();
        let unknown = targets.iter().filter(|target| !known.contains_key(*target));
        let unknown: Vec<&TargetPath> = unknown.collect();
        let paths: Vec<&Path> = unknown.iter().map(|target| target.as_path()).collect();
        let found = places.of_targets(&paths)?;
        known.extend(unknown.into_iter().cloned().zip(found));
        let place = |target| known.get(target).cloned().flatten();
        Ok(targets.iter().map(place).collect())
    }

    pub(super) fn are_on(&self, device: DeviceNumber) -> bool {
        self.index()
            .is_none_or(|index| index.has_file_system(device))
    }

    pub(super) fn is_usual_mount(&self, id: u64) -> bool {
        let usual = self.usual_mounts.get_or_init(|| {
            let root = PathBuf::from("/");
            let places = self.config.kubelet_dirs.iter().chain([&root]);
            let mounts = places.filter_map(|place| Identity::of(place));
            mounts.map(|found| found.mount).collect()
        });
        let is_usual = usual.contains(&id);
        self.is_kubelet_mounted.set(is_usual);
        is_usual
    }

    pub(super) fn all(&self) -> Result<Vec<TargetPath>, FileError> {
        if let Some(all) = self.all.get() {
            return Ok(all.clone());
        }
        let found = self.crust.map_or(Ok(Vec::new()), CrustDirectory::survey)?;
        let targets = found.iter().filter_map(|found| found.target().cloned());
        Ok(self.all.get_or_init(|| targets.collect()).clone())
    }
}
