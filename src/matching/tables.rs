//! Tables of target paths, by each of the ways in which a source can lead to one. They are prepared at most once
//! for a create, and only as far as its sources ask: a pod may have thousands of mounts, and a node as many
//! volumes.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crust_mount::identity::{Identity, MountId};
use crust_mount::place::{Place, PlaceError};
use crust_state::{DeviceNumber, TargetPath};

use super::{MatchError, Node};

/// The target paths of a node.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    elsewhere: OnceCell<Table>,
    others: OnceCell<Table>,
}

impl Tables {
    /// Returns the table of target paths that aren't a CSI volume's by their form, so that no parent of a source
    /// leads to them. Some may not be staged any more.
    pub(super) fn elsewhere(&self, node: &impl Node) -> Result<&Table, MatchError> {
        if let Some(table) = self.elsewhere.get() {
            return Ok(table);
        }
        let table = Table::new(node.targets_elsewhere()?);
        Ok(self.elsewhere.get_or_init(|| table))
    }

    /// Returns the table of all other target paths. Each entry of the crust directory is read for that.
    pub(super) fn others(&self, node: &impl Node) -> Result<&Table, MatchError> {
        if let Some(table) = self.others.get() {
            return Ok(table);
        }
        let elsewhere = self.elsewhere(node)?;
        let mut targets = node.all_staged()?;
        targets.retain(|target| !elsewhere.has(target));
        let table = Table::new(targets);
        Ok(self.others.get_or_init(|| table))
    }

    /// Whether target paths are on the file system with this `st_dev`. The index has what was found when each
    /// volume was staged: a file system may have been mounted at a target path since, and one who stages in a
    /// mount namespace of its own may see another. So the target paths are asked as well.
    pub(super) fn are_on(
        &self,
        device: DeviceNumber,
        node: &impl Node,
    ) -> Result<bool, MatchError> {
        if node.is_indexed(device) {
            return Ok(true);
        }
        let elsewhere = self.elsewhere(node)?.identities(node)?;
        Ok(elsewhere.mounts.contains_key(&device))
    }
}

/// A table of target paths, by name, by identity and by place.
#[derive(Debug)]
pub(super) struct Table {
    /// In the order of their names.
    targets: Vec<TargetPath>,
    identities: OnceCell<Identities>,
    places: OnceCell<Places>,
}

/// Numbers of target paths by their places: mountinfo's device, and the path from the root of the file system.
type Places = BTreeMap<(DeviceNumber, PathBuf), Vec<usize>>;

/// The directories that target paths lead to.
#[derive(Debug, Default)]
struct Identities {
    /// The mount that each is reached by; `None` if nothing is there.
    reached_by: Vec<Option<MountId>>,
    /// Numbers of target paths by [`Identity::file`]. Two may be one directory.
    files: BTreeMap<(DeviceNumber, u64), Vec<usize>>,
    /// The mounts that those on a file system are reached by, by its `st_dev`.
    mounts: BTreeMap<DeviceNumber, BTreeSet<MountId>>,
    has_missing: bool,
}

impl Table {
    fn new(mut targets: Vec<TargetPath>) -> Self {
        targets.sort_unstable();
        targets.dedup();
        Self {
            targets,
            identities: OnceCell::new(),
            places: OnceCell::new(),
        }
    }

    fn has(&self, target: &TargetPath) -> bool {
        self.targets.binary_search(target).is_ok()
    }

    /// Returns the target paths that a path lies below, nearest first.
    pub(super) fn above(&self, path: &TargetPath) -> impl Iterator<Item = TargetPath> {
        let parents = (!self.targets.is_empty()).then(|| path.ancestors().skip(1));
        let parents = parents.into_iter().flatten().map(|(parent, _)| parent);
        parents.filter(|parent| self.has(parent))
    }

    /// Returns the target paths whose directory the source is.
    pub(super) fn same_file(
        &self,
        source: &Identity,
        node: &impl Node,
    ) -> Result<impl Iterator<Item = &TargetPath>, MatchError> {
        let found = self.identities(node)?.files.get(&source.file());
        Ok(self.numbered(found))
    }

    /// Whether a target path may hold the source though its path doesn't say so, so that it is worth reading the
    /// mount table.
    pub(super) fn may_hold(&self, source: &Identity, node: &impl Node) -> Result<bool, MatchError> {
        let identities = self.identities(node)?;
        let mounts = identities.mounts.get(&source.device);
        let by_another = |mounts: &BTreeSet<MountId>| {
            source.is_mount_root || mounts.len() > 1 || !mounts.contains(&source.mount)
        };
        // A target path that doesn't exist can only have been bound before it was removed, and nothing is left
        // below such a bind.
        Ok(mounts.is_some_and(by_another) || (identities.has_missing && source.is_mount_root))
    }

    /// Returns the target paths at a place, but for those that are reached by the source's own mount: by one
    /// mount, paths tell what is below what.
    pub(super) fn at(
        &self,
        place: (DeviceNumber, &Path),
        source: &Identity,
        node: &impl Node,
    ) -> Result<impl Iterator<Item = &TargetPath>, MatchError> {
        let identities = self.identities(node)?;
        let is_told_by_path = |number: &usize| {
            !source.is_mount_root && identities.reached_by[*number] == Some(source.mount)
        };
        let found = self.places(node)?.get(&(place.0, place.1.to_owned()));
        let found = found.into_iter().flatten();
        let found = found.filter(move |number| !is_told_by_path(number));
        Ok(found.map(|number| &self.targets[*number]))
    }

    fn numbered(&self, numbers: Option<&Vec<usize>>) -> impl Iterator<Item = &TargetPath> {
        let numbers = numbers.into_iter().flatten();
        numbers.map(|number| &self.targets[*number])
    }

    fn identities(&self, node: &impl Node) -> Result<&Identities, MatchError> {
        if let Some(identities) = self.identities.get() {
            return Ok(identities);
        }
        let mut identities = Identities::default();
        for (number, target) in self.targets.iter().enumerate() {
            let found = node.identity(target.as_path());
            let found = found.map_err(|source| failed(target, source.into()))?;
            identities.add(number, found);
        }
        Ok(self.identities.get_or_init(|| identities))
    }

    fn places(&self, node: &impl Node) -> Result<&Places, MatchError> {
        if let Some(places) = self.places.get() {
            return Ok(places);
        }
        let mut places = Places::new();
        for (number, target) in self.targets.iter().enumerate() {
            let place = node.target_place(target);
            let place = place.map_err(|source| failed(target, source))?;
            if let Some(Place { device, path, .. }) = place {
                places.entry((device, path)).or_default().push(number);
            }
        }
        Ok(self.places.get_or_init(|| places))
    }
}

impl Identities {
    fn add(&mut self, number: usize, found: Option<Identity>) {
        self.reached_by.push(found.map(|found| found.mount));
        let Some(found) = found else {
            self.has_missing = true;
            return;
        };
        self.files.entry(found.file()).or_default().push(number);
        let mounts = self.mounts.entry(found.device).or_default();
        mounts.insert(found.mount);
    }
}

fn failed(target: &TargetPath, source: PlaceError) -> MatchError {
    MatchError::Place {
        volume: target.volume_name(),
        source,
    }
}
