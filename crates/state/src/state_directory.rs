//! `<state_dir>`, `/run/runcrust` unless configured otherwise: the runtime's own indexes.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crust_blockfs::device::OwnerListVersion;
use crust_blockfs::{Deadline, DeviceNumber};
use rustix::fs::Stat;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bundle::BundleRecord;
use crate::files::{FileError, LazyDirectory, LeftoverVisitor};
use crate::lock::{Lock, LockError, LockName};
use crate::process::boot_id;
use crate::record::Version;
use crate::sandbox::{InvalidId, SandboxRecord, check_id};
use crate::target::{Digest, TargetLookup, TargetPath};
use crate::target_index::{TARGETS_FILE, TargetIndex};

/// The error of one of the runtime's own records.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or directory can't be read or written, or isn't root's.
    #[error(transparent)]
    File(#[from] FileError),
    /// An id that names no record.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// A record can't be understood.
    #[error("{}: {source}; hint: a record of another runcrust? remove it once its pod or container has ended", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        source: serde_json::Error,
    },
    /// The index of target paths can't be understood.
    #[error("{}: {source}; hint: remove it and stage the node's volumes again, which writes it anew", path.display())]
    Targets {
        /// The index's file.
        path: PathBuf,
        /// The syntax error or wrong type in it.
        source: serde_json::Error,
    },
    /// A sandbox's record stands under another one's name.
    #[error("{}: it is of sandbox {id:?}; hint: was it copied? remove it", path.display())]
    OtherSandbox {
        /// The file.
        path: PathBuf,
        /// The id in it.
        id: String,
    },
}

/// The state directory. Root's, mode 0700; every directory in it is made when it is first needed.
#[derive(Debug)]
pub struct StateDirectory {
    root: LazyDirectory,
    /// A daemon stages many volumes on one file system.
    targets: Mutex<KnownTargets>,
}

/// The index of target paths as it was last read.
#[derive(Debug, Default)]
struct KnownTargets {
    index: TargetIndex,
    /// `None` if there was no file.
    file: Option<Stat>,
}

impl KnownTargets {
    /// Whether the file is the one that was read. It is only ever replaced whole. Not on each file system does its
    /// successor have another inode number: ext4 gives them out again.
    fn is_of(&self, file: Option<&Stat>) -> bool {
        let which = |file: &Stat| (file.st_ino, file.st_ctime, file.st_ctime_nsec);
        self.file.as_ref().map(which) == file.map(which)
    }
}

/// `owners/<major>:<minor>.json`: the volumes on a device that have, or may have, users.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Owners {
    version: Version<1>,
    volumes: Vec<PathBuf>,
    /// The numbers of devices are of one boot. The first lists didn't name theirs, and count as of
    /// this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
}

impl Owners {
    fn are_of_now(&self) -> bool {
        let Some(boot) = &self.boot_id else {
            return true;
        };
        boot_id().map_or(true, |now| now == *boot)
    }

    fn targets(&self) -> Vec<TargetPath> {
        let paths = self.volumes.iter();
        paths
            .filter_map(|path| TargetPath::new(path).ok())
            .collect()
    }
}

/// Records by their names, each with what became of reading it.
pub type Records<N, R> = Vec<(N, Result<R, StateError>)>;

const LOCKS: &str = "locks";
const SANDBOXES: &str = "sandboxes";
const OWNERS: &str = "owners";
const BUNDLES: &str = "bundles";

impl StateDirectory {
    /// Opens it; `None` if runcrust never had anything to remember since the node booted.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let state = Self::at(path)?;
        Ok(state.root.get()?.is_some().then_some(state))
    }

    /// Opens it, made where it is missing.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let state = Self::at(path)?;
        state.root.create()?;
        Ok(state)
    }

    /// Opens it where it is there; where it isn't, nothing is remembered, and it is made when
    /// something has to be.
    pub fn at(path: &Path) -> Result<Self, FileError> {
        let directory = LazyDirectory::new(path);
        directory.get()?;
        Ok(Self {
            root: directory,
            targets: Mutex::default(),
        })
    }

    /// Whether this may be kept for the next time: it was opened, and leads to no other directory by now.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.root.is_current()
    }

    /// Whether it was opened and is in memory: then no disk is waited for.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.root.is_in_memory()
    }

    /// Takes a lock.
    pub fn lock(&self, name: LockName, deadline: Deadline) -> Result<Lock, LockError> {
        let locks = self.root.create()?.create_directory(LOCKS)?;
        Lock::acquire(&locks, name, deadline)
    }

    /// Takes a lock for a look, at once or not at all; `None` where nobody ever took it.
    pub fn glance(&self, name: LockName) -> Result<Option<Lock>, LockError> {
        match self.root.open_directory(LOCKS)? {
            Some(locks) => Lock::glance(&locks, name),
            None => Ok(None),
        }
    }

    /// Lets a lock go, and takes its file away: what it was for is no more.
    pub fn retire(&self, lock: Lock, name: LockName) -> Result<(), FileError> {
        lock.retire(&self.root.create()?.create_directory(LOCKS)?, name)
    }

    /// Visits the locks of volumes and of devices with their files, however many there are, until `visit` breaks.
    /// It may retire those that it was given.
    pub fn visit_locks(
        &self,
        mut visit: impl FnMut(LockName, PathBuf) -> ControlFlow<()>,
    ) -> Result<(), FileError> {
        let Some(locks) = self.root.open_directory(LOCKS)? else {
            return Ok(());
        };
        for name in locks.entries()? {
            let (name, _) = name?;
            if let Some(lock) = LockName::of_file(&name)
                && visit(lock, locks.path().join(name)).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// The record of a sandbox; `None` if the sandbox was made without a `/.crust`, or has ended.
    pub fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, StateError> {
        check_id(id)?;
        let record: Option<SandboxRecord> = self.read(SANDBOXES, id)?;
        match record {
            Some(other) if other.id != id => Err(StateError::OtherSandbox {
                path: self.root.path().join(SANDBOXES).join(format!("{id}.json")),
                id: other.id,
            }),
            record => Ok(record),
        }
    }

    /// All records of sandboxes.
    pub fn sandbox_records(&self) -> Result<Records<String, SandboxRecord>, StateError> {
        let ids = self.stems(SANDBOXES)?.into_iter();
        let ids = ids.filter(|id| check_id(id).is_ok());
        Ok(there(ids.map(|id| (self.sandbox(&id), id))))
    }

    /// All records of sandboxes; fails where one can't be read.
    pub fn every_sandbox(&self) -> Result<Vec<SandboxRecord>, StateError> {
        let records = self.sandbox_records()?.into_iter();
        records.map(|(_, record)| record).collect()
    }

    /// Writes the record of a sandbox.
    pub fn write_sandbox(&self, record: &SandboxRecord) -> Result<(), StateError> {
        check_id(&record.id)?;
        self.write(SANDBOXES, &record.id, record)
    }

    /// Removes the record of a sandbox; that there is none is fine.
    pub fn remove_sandbox(&self, id: &str) -> Result<(), StateError> {
        check_id(id)?;
        self.remove(SANDBOXES, id)
    }

    /// Removes the record of a sandbox if that is over by what it says then: another one of its id may
    /// have come. Whether it was.
    pub fn remove_sandbox_if(
        &self,
        id: &str,
        is_over: impl FnOnce(&SandboxRecord) -> bool,
    ) -> Result<bool, StateError> {
        check_id(id)?;
        self.remove_if(SANDBOXES, id, is_over)
    }

    /// The record of a container's bundle, by [`BundleRecord::name`].
    pub fn bundle(&self, name: Digest) -> Result<Option<BundleRecord>, StateError> {
        self.read(BUNDLES, &name.to_string())
    }

    /// All records of bundles.
    pub fn bundle_records(&self) -> Result<Records<Digest, BundleRecord>, StateError> {
        let names = self.stems(BUNDLES)?.into_iter();
        let names = names.filter_map(|name| name.parse::<Digest>().ok());
        Ok(there(names.map(|name| (self.bundle(name), name))))
    }

    /// The same without those that can't be understood, or aren't ours: they stand in nobody's way.
    pub fn bundles(&self) -> Result<Vec<(Digest, BundleRecord)>, StateError> {
        let records = self.bundle_records()?.into_iter();
        let readable = records.filter_map(|(name, record)| match record {
            Err(
                error @ (StateError::Record { .. } | StateError::File(FileError::Untrusted { .. })),
            ) => {
                tracing::warn!("{error}");
                None
            }
            record => Some(record.map(|record| (name, record))),
        });
        readable.collect()
    }

    /// Writes the record of a container's bundle.
    pub fn write_bundle(&self, name: Digest, record: &BundleRecord) -> Result<(), StateError> {
        self.write(BUNDLES, &name.to_string(), record)
    }

    /// Removes the record of a container's bundle; that there is none is fine.
    pub fn remove_bundle(&self, name: Digest) -> Result<(), StateError> {
        self.remove(BUNDLES, &name.to_string())
    }

    /// Removes the record of a container's bundle if that is over by what it says then: the bundle may
    /// have been made anew. Whether it was.
    pub fn remove_bundle_if(
        &self,
        name: Digest,
        is_over: impl FnOnce(&BundleRecord) -> bool,
    ) -> Result<bool, StateError> {
        self.remove_if(BUNDLES, &name.to_string(), is_over)
    }

    /// The devices that have owners.
    pub fn owned_devices(&self) -> Result<Vec<DeviceNumber>, StateError> {
        let lists = self.owner_lists()?.into_iter();
        Ok(lists.map(|list| list.device).collect())
    }

    /// The lists of owners, in the order of their devices.
    pub fn owner_lists(&self) -> Result<Vec<OwnerListVersion>, StateError> {
        let Some(directory) = self.root.open_directory(OWNERS)? else {
            return Ok(Vec::new());
        };
        let mut lists = Vec::new();
        for (name, inode) in directory.inodes()? {
            let stem = name.strip_suffix(".json");
            if let Some(device) = stem.and_then(|stem| stem.parse().ok()) {
                // On a tmpfs the numbers of inodes go on: another file doesn't have one that was used before for long.
                lists.push(OwnerListVersion {
                    device,
                    number: inode,
                });
            }
        }
        lists.sort_unstable();
        Ok(lists)
    }

    /// The volumes on a device. The list is replaced whole: who only looks needs no lock. One of an
    /// earlier boot, when the number was another device's, is none.
    pub fn owners_of(&self, device: DeviceNumber) -> Result<Vec<TargetPath>, StateError> {
        let owners = self.owners(device)?.filter(Owners::are_of_now);
        Ok(owners.unwrap_or_default().targets())
    }

    /// The volumes on what had a device's number in an earlier boot, where the list is from then.
    pub fn earlier_owners_of(&self, device: DeviceNumber) -> Result<Vec<TargetPath>, StateError> {
        let owners = self.owners(device)?.filter(|owners| !owners.are_of_now());
        Ok(owners.unwrap_or_default().targets())
    }

    fn owners(&self, device: DeviceNumber) -> Result<Option<Owners>, StateError> {
        self.read(OWNERS, &device.to_string())
    }

    /// Adds a volume to those on a device. Under [`LockName::Owners`].
    pub fn add_owner(&self, device: DeviceNumber, volume: &TargetPath) -> Result<(), StateError> {
        let mut volumes = self.owners_of(device)?;
        if volumes.contains(volume) {
            return Ok(());
        }
        volumes.push(volume.clone());
        self.write_owners(device, &volumes)
    }

    /// Removes a volume from those on a device; that it isn't there is fine, and a list of an earlier
    /// boot goes whole. Under [`LockName::Owners`].
    pub fn remove_owner(
        &self,
        device: DeviceNumber,
        volume: &TargetPath,
    ) -> Result<(), StateError> {
        let mut volumes = self.owners_of(device)?;
        volumes.retain(|other| other != volume);
        self.write_owners(device, &volumes)
    }

    fn write_owners(&self, device: DeviceNumber, volumes: &[TargetPath]) -> Result<(), StateError> {
        if volumes.is_empty() {
            return self.remove(OWNERS, &device.to_string());
        }
        let volumes = volumes
            .iter()
            .map(|volume| volume.as_path().to_owned())
            .collect();
        self.write(
            OWNERS,
            &device.to_string(),
            &Owners {
                version: Version,
                volumes,
                boot_id: boot_id().ok(),
            },
        )
    }

    /// Whether the index of target paths has this one. The file is read again only if it has been replaced, which
    /// another process may do, or an operator who was told to remove it.
    pub fn has_target(&self, target: &TargetLookup<'_>) -> Result<bool, StateError> {
        let mut known = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let root = self.root.get()?;
        let file = root.map_or(Ok(None), |root| root.stat(TARGETS_FILE))?;
        if !known.is_of(file.as_ref()) {
            // Read after the look at it: where it is replaced in between, the next call reads it again.
            let index = self.targets()?;
            *known = KnownTargets { index, file };
        }
        Ok(known.index.has(target))
    }

    /// Whether there is an index of target paths, whatever it is worth. Without one, nothing is known of what is
    /// staged.
    pub fn has_index(&self) -> Result<bool, StateError> {
        let root = self.root.get()?;
        Ok(root.map_or(Ok(0), |root| root.size_of(TARGETS_FILE))? > 0)
    }

    /// Adds target paths to the index, and makes it where there is none. A target path has to be there before
    /// the volume is staged: one that isn't is not found where an engine has bound it elsewhere. Under
    /// [`LockName::Targets`].
    pub fn add_targets(&self, targets: &[TargetLookup<'_>]) -> Result<(), StateError> {
        let found = self.index()?;
        let mut is_changed = found.is_none();
        let mut index = found.unwrap_or_default();
        for target in targets {
            is_changed |= index.add(target);
        }
        if is_changed {
            self.write_targets(&index)?;
        }
        Ok(())
    }

    /// Removes a path from the index, and no other form of it: that may be another volume's. That it isn't there is
    /// fine. Under [`LockName::Targets`].
    pub fn remove_target(&self, path: &TargetPath) -> Result<(), StateError> {
        let mut index = self.targets()?;
        if index.remove(path) {
            self.write_targets(&index)?;
        }
        Ok(())
    }

    fn targets(&self) -> Result<TargetIndex, StateError> {
        Ok(self.index()?.unwrap_or_default())
    }

    fn index(&self) -> Result<Option<TargetIndex>, StateError> {
        let directory = self.root.get()?;
        let bytes = directory.map_or(Ok(None), |directory| directory.read_record(TARGETS_FILE))?;
        let index = bytes.map(|bytes| serde_json::from_slice(&bytes));
        index
            .transpose()
            .map_err(|source| self.targets_error(source))
    }

    fn write_targets(&self, index: &TargetIndex) -> Result<(), StateError> {
        let bytes = serde_json::to_vec(index).map_err(|source| self.targets_error(source))?;
        Ok(self.root.create()?.write(TARGETS_FILE, &bytes)?)
    }

    fn targets_error(&self, source: serde_json::Error) -> StateError {
        StateError::Targets {
            path: self.root.path().join(TARGETS_FILE),
            source,
        }
    }

    /// Finds temporary files among the records.
    pub fn leftovers(&self, found: &mut LeftoverVisitor<'_>) {
        match self.root.get() {
            Ok(Some(root)) => root.leftovers(found),
            Ok(None) => {}
            Err(error) => found(Err(error)),
        }
        for name in [SANDBOXES, OWNERS, BUNDLES] {
            match self.root.open_directory(name) {
                Ok(Some(directory)) => directory.leftovers(found),
                Ok(None) => {}
                Err(error) => found(Err(error)),
            }
        }
    }

    fn stems(&self, directory: &str) -> Result<Vec<String>, StateError> {
        let Some(directory) = self.root.open_directory(directory)? else {
            return Ok(Vec::new());
        };
        let names = directory.names()?;
        Ok(names
            .iter()
            .filter_map(|name| name.strip_suffix(".json").map(str::to_owned))
            .collect())
    }

    fn read<T: DeserializeOwned>(
        &self,
        directory: &str,
        stem: &str,
    ) -> Result<Option<T>, StateError> {
        let Some(directory) = self.root.open_directory(directory)? else {
            return Ok(None);
        };
        let name = format!("{stem}.json");
        let Some(bytes) = directory.read_record(&name)? else {
            return Ok(None);
        };
        let record = serde_json::from_slice(&bytes);
        record.map(Some).map_err(|source| StateError::Record {
            path: directory.path().join(&name),
            source,
        })
    }

    fn write(
        &self,
        directory: &str,
        stem: &str,
        record: &impl Serialize,
    ) -> Result<(), StateError> {
        let directory = self.root.create()?.create_directory(directory)?;
        let name = format!("{stem}.json");
        let bytes = serde_json::to_vec(record);
        let bytes = bytes.map_err(|source| StateError::Record {
            path: directory.path().join(&name),
            source,
        })?;
        Ok(directory.write(&name, &bytes)?)
    }

    fn remove(&self, directory: &str, stem: &str) -> Result<(), StateError> {
        let Some(directory) = self.root.open_directory(directory)? else {
            return Ok(());
        };
        Ok(directory.remove(&format!("{stem}.json"))?)
    }

    fn remove_if<T: DeserializeOwned>(
        &self,
        directory: &str,
        stem: &str,
        is_over: impl FnOnce(&T) -> bool,
    ) -> Result<bool, StateError> {
        let Some(directory) = self.root.open_directory(directory)? else {
            return Ok(true);
        };
        // What can't be understood is another's.
        let is_over = |bytes: &[u8]| serde_json::from_slice(bytes).is_ok_and(|it| is_over(&it));
        Ok(directory.remove_if(&format!("{stem}.json"), is_over)?)
    }
}

/// Those that weren't removed while they were being listed.
fn there<N, R>(records: impl Iterator<Item = (Result<Option<R>, StateError>, N)>) -> Records<N, R> {
    let there = records.filter_map(|(record, name)| Some((name, record.transpose()?)));
    there.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;

    fn state() -> (tempfile::TempDir, StateDirectory) {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDirectory::create(&temporary.path().join("run")).unwrap();
        (temporary, state)
    }

    #[test]
    fn the_index_lists_a_devices_volumes_until_the_last_goes() {
        let (_guard, state) = state();
        let device = "7:3".parse().unwrap();
        let [one, two] = ["/1", "/2"].map(|path| TargetPath::new(path).unwrap());
        for volume in [&one, &two, &one] {
            state.add_owner(device, volume).unwrap();
        }
        assert_eq!(state.owned_devices().unwrap(), [device]);
        assert_eq!(state.owners_of(device).unwrap(), [one.clone(), two.clone()]);
        let lists = state.owner_lists().unwrap();
        state.add_owner(device, &two).unwrap();
        assert_eq!(state.owner_lists().unwrap(), lists, "nothing new");
        state.remove_owner(device, &one).unwrap();
        assert_ne!(state.owner_lists().unwrap(), lists);
        state.remove_owner(device, &one).unwrap();
        assert_eq!(state.owners_of(device).unwrap(), std::slice::from_ref(&two));
        state.remove_owner(device, &two).unwrap();
        assert_eq!(state.owned_devices().unwrap(), []);
    }

    /// A lock that nobody retired for any reason must not keep the others from being retired.
    #[test]
    fn locks_are_visited_however_many_there_are() {
        const LOCKS: usize = 100_001;
        let (_guard, state) = state();
        let root = state.root.create().unwrap();
        let locks = root.create_directory("locks").unwrap();
        for number in 0..LOCKS {
            std::fs::File::create(locks.path().join(format!("7:{number}.lock"))).unwrap();
        }
        let error = locks.names().unwrap_err().to_string();
        assert!(error.contains("more than 100,000 entries"), "{error}");
        let mut visited = 0;
        let removed = state.visit_locks(|_, path| {
            std::fs::remove_file(path).unwrap();
            visited += 1;
            ControlFlow::Continue(())
        });
        removed.unwrap();
        assert_eq!(visited, LOCKS);
        assert_eq!(locks.names().unwrap(), <[String; 0]>::default());
    }

    #[test]
    fn a_list_of_an_earlier_boot_is_of_other_devices() {
        let (_guard, state) = state();
        let device = "7:3".parse().unwrap();
        let [old, new] = ["/1", "/2"].map(|path| TargetPath::new(path).unwrap());
        state.add_owner(device, &old).unwrap();
        assert_eq!(state.earlier_owners_of(device).unwrap(), []);
        let file = state.root.path().join("owners/7:3.json");
        let text = std::fs::read_to_string(&file).unwrap();
        let rebooted = text.replace(&boot_id().unwrap(), "another");
        assert_ne!(rebooted, text);
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write(&rebooted);
        assert_eq!(state.owners_of(device).unwrap(), []);
        assert_eq!(state.earlier_owners_of(device).unwrap(), [old]);
        state.add_owner(device, &new).unwrap();
        assert_eq!(state.owners_of(device).unwrap(), std::slice::from_ref(&new));
        assert_eq!(state.earlier_owners_of(device).unwrap(), []);
        write(&rebooted);
        state.remove_owner(device, &new).unwrap();
        assert_eq!(state.owned_devices().unwrap(), []);
        write(r#"{"version":1,"volumes":["/2"]}"#);
        assert_eq!(
            state.owners_of(device).unwrap(),
            [new],
            "as it was first written"
        );
    }

    #[test]
    fn a_sandbox_is_remembered_until_it_is_removed() {
        let (_guard, state) = state();
        assert_eq!(state.sandbox("s").unwrap(), None);
        let process = Process {
            pid: 1,
            start_time: 2,
            boot_id: "b".into(),
            pid_namespace: None,
        };
        let (id, pod_uid) = ("s".to_owned(), "uid".to_owned());
        let record = SandboxRecord {
            version: Version,
            id,
            pod_uid,
            process,
            mount_label: None,
            failures: vec![],
        };
        state.write_sandbox(&record).unwrap();
        assert_eq!(state.sandbox("s").unwrap(), Some(record));
        let sandboxes = state.root.path().join(SANDBOXES);
        std::fs::copy(sandboxes.join("s.json"), sandboxes.join("t.json")).unwrap();
        let error = state.sandbox("t").unwrap_err().to_string();
        assert!(error.contains("t.json: it is of sandbox \"s\""), "{error}");
        state.remove_sandbox("s").unwrap();
        state.remove_sandbox("s").unwrap();
        assert_eq!(state.sandbox("s").unwrap(), None);
        assert!(matches!(
            state.sandbox("../locks/x"),
            Err(StateError::Id(_))
        ));
    }

    #[test]
    fn a_damaged_record_is_an_error_that_names_the_file() {
        let (_guard, state) = state();
        state
            .root
            .create()
            .unwrap()
            .create_directory(SANDBOXES)
            .unwrap()
            .write("s.json", b"{")
            .unwrap();
        let error = state.sandbox("s").unwrap_err().to_string();
        assert!(error.contains("run/sandboxes/s.json: EOF"), "{error}");
        std::os::unix::fs::symlink("s.json", state.root.path().join("sandboxes/t.json")).unwrap();
        let error = state.sandbox("t").unwrap_err().to_string();
        assert!(error.contains("t.json is a symbolic link"), "{error}");
        let records = state.sandbox_records().unwrap();
        assert_eq!(records.len(), 2, "each is told");
        assert!(records.iter().all(|(_, record)| record.is_err()));
        assert!(state.every_sandbox().is_err());
    }
}
