//! The state directory: runcrust's records, indexes and locks.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::backing::BackingKey;
use crust_blockfs::Deadline;
use crust_blockfs::device::OwnerListVersion;
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

/// The error of a record or an index in the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file or directory can't be read or written, or users other than root can change it.
    #[error(transparent)]
    File(#[from] FileError),
    /// An id can't be the name of a record.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// A record can't be parsed.
    #[error("{}: {source}; hint: another version of runcrust may have written it; remove it once its pod or container has ended", path.display())]
    Record {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The index of target paths can't be parsed.
    #[error("{}: {source}; hint: remove it and stage the node's volumes again, which recreates it", path.display())]
    Targets {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// The record of a sandbox has the file name of another sandbox's record.
    #[error("{}: this is the record of sandbox {id:?}; hint: remove the file, which is probably a copy", path.display())]
    OtherSandbox {
        path: PathBuf,
        /// The id in the record.
        id: String,
    },
    /// Another sandbox with the same id was created in the meantime.
    #[error("{}: process {pid} is a newer sandbox with this id; hint: delete that sandbox before you create another with its id", path.display())]
    NewerSandbox {
        path: PathBuf,
        /// The process of the newer sandbox.
        pid: i32,
    },
}

/// The state directory, `/run/runcrust` unless configured otherwise. It belongs to root and has mode 0700. The
/// directories in it are created when they are first needed.
#[derive(Debug)]
pub struct StateDirectory {
    root: LazyDirectory,
    /// Cached, because a daemon stages many volumes on the same file system.
    targets: Mutex<CachedTargets>,
}

/// The index of target paths as it was last read.
#[derive(Debug, Default)]
struct CachedTargets {
    index: TargetIndex,
    /// The attributes of the file when it was read; `None` if it didn't exist.
    file: Option<Stat>,
}

impl CachedTargets {
    /// Returns whether the file is still the one that was read. The file is always replaced, never changed. The inode
    /// number isn't enough to notice that, because ext4 reuses them.
    fn is_current(&self, file: Option<&Stat>) -> bool {
        let identity = |file: &Stat| (file.st_ino, file.st_ctime, file.st_ctime_nsec);
        self.file.as_ref().map(identity) == file.map(identity)
    }
}

/// The volumes on a device or share that are, or may be, in use: `owners/<backing key>.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OwnedVolumes {
    version: Version<1>,
    /// The target paths of the volumes.
    volumes: Vec<PathBuf>,
    /// The boot in which the device number is valid. Records of early versions have none, and count as of this boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
}

impl OwnedVolumes {
    fn is_of_this_boot(&self) -> bool {
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

/// The names of records, each with the record or the error of reading it.
pub type Records<N, R> = Vec<(N, Result<R, StateError>)>;

const LOCKS: &str = "locks";
const SANDBOXES: &str = "sandboxes";
const OWNERS: &str = "owners";
const BUNDLES: &str = "bundles";

impl StateDirectory {
    /// Opens the directory. Returns `None` if it doesn't exist, which means that there are no records.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let state = Self::open_lazily(path)?;
        Ok(state.root.get()?.is_some().then_some(state))
    }

    /// Opens the directory. Creates it if it doesn't exist.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        let state = Self::open_lazily(path)?;
        state.root.create()?;
        Ok(state)
    }

    /// Opens the directory if it exists. Otherwise, reads find no records, and the first write creates the directory.
    pub fn open_lazily(path: &Path) -> Result<Self, FileError> {
        let directory = LazyDirectory::new(path);
        directory.get()?;
        Ok(Self {
            root: directory,
            targets: Mutex::default(),
        })
    }

    /// Returns whether this value can be used for another operation: the directory was opened, and its path still leads
    /// to it.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.root.is_current()
    }

    /// Returns whether the directory was opened and is on a file system in memory. Operations then wait for no disk.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.root.is_in_memory()
    }

    /// Takes a lock. Waits for it until the deadline.
    pub fn lock(&self, name: LockName, deadline: Deadline) -> Result<Lock, LockError> {
        let locks = self.root.create()?.create_directory(LOCKS)?;
        Lock::acquire(&locks, name, deadline)
    }

    /// Takes a lock without waiting and without creating its file, as [`Lock::try_acquire_existing`] does.
    pub fn try_lock_existing(&self, name: LockName) -> Result<Option<Lock>, LockError> {
        match self.root.open_directory(LOCKS)? {
            Some(locks) => Lock::try_acquire_existing(&locks, name),
            None => Ok(None),
        }
    }

    /// Releases a lock and removes its file, because the locked resource doesn't exist any more.
    pub fn retire(&self, lock: Lock, name: LockName) -> Result<(), FileError> {
        lock.retire(&self.root.create()?.create_directory(LOCKS)?, name)
    }

    /// Calls `visit` with each lock of a volume or a device and the path of its file, until `visit` breaks.
    /// The number of locks isn't limited. `visit` may retire the locks that it gets.
    pub fn visit_locks(
        &self,
        mut visit: impl FnMut(LockName, PathBuf) -> ControlFlow<()>,
    ) -> Result<(), FileError> {
        let Some(locks) = self.root.open_directory(LOCKS)? else {
            return Ok(());
        };
        for name in locks.entries()? {
            let (name, _) = name?;
            if let Some(lock) = LockName::from_file_name(&name)
                && visit(lock, locks.path().join(name)).is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// Returns the record of a sandbox; `None` if the sandbox was created without a `/.crust`, or has ended.
    pub fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, StateError> {
        check_id(id)?;
        let record: Option<SandboxRecord> = self.read(SANDBOXES, id)?;
        match record {
            Some(other) if other.id != id => Err(StateError::OtherSandbox {
                path: self.sandbox_path(id),
                id: other.id,
            }),
            record => Ok(record),
        }
    }

    /// Reads all records of sandboxes. The names are their ids.
    pub fn sandbox_records(&self) -> Result<Records<String, SandboxRecord>, StateError> {
        let ids = self.stems(SANDBOXES)?.into_iter();
        let ids = ids.filter(|id| check_id(id).is_ok());
        Ok(existing(ids.map(|id| (self.sandbox(&id), id))))
    }

    /// Reads all records of sandboxes. Fails if one can't be read.
    pub fn all_sandboxes(&self) -> Result<Vec<SandboxRecord>, StateError> {
        let records = self.sandbox_records()?.into_iter();
        records.map(|(_, record)| record).collect()
    }

    /// Writes the record of a sandbox, unless a newer sandbox has the same id: if the delegate is killed, its hook runs
    /// on, perhaps until the create has been repeated.
    ///
    /// The check and the write are not atomic: the check is for a hook that waited for a lock. Creates check the record
    /// before they change anything.
    pub fn write_sandbox(&self, record: &SandboxRecord) -> Result<(), StateError> {
        check_id(&record.id)?;
        // A record that can't be read is replaced.
        if let Ok(Some(other)) = self.sandbox(&record.id)
            && other.process != record.process
            && other.process.is_alive()
        {
            return Err(StateError::NewerSandbox {
                path: self.sandbox_path(&record.id),
                pid: other.process.pid,
            });
        }
        self.write(SANDBOXES, &record.id, record)
    }

    fn sandbox_path(&self, id: &str) -> PathBuf {
        self.root.path().join(SANDBOXES).join(format!("{id}.json"))
    }

    /// Reads the record of a sandbox again, and removes it if `is_stale` returns true. Another sandbox with the same id
    /// may have replaced it meanwhile. Returns whether the record is gone.
    pub fn remove_sandbox_if(
        &self,
        id: &str,
        is_stale: impl FnOnce(&SandboxRecord) -> bool,
    ) -> Result<bool, StateError> {
        check_id(id)?;
        self.remove_if(SANDBOXES, id, is_stale)
    }

    /// Returns the record of a bundle; `None` if it doesn't exist. `name` is [`BundleRecord::record_name`].
    pub fn bundle(&self, name: Digest) -> Result<Option<BundleRecord>, StateError> {
        self.read(BUNDLES, &name.to_string())
    }

    /// Reads all records of bundles.
    pub fn bundle_records(&self) -> Result<Records<Digest, BundleRecord>, StateError> {
        let names = self.stems(BUNDLES)?.into_iter();
        let names = names.filter_map(|name| name.parse::<Digest>().ok());
        Ok(existing(names.map(|name| (self.bundle(name), name))))
    }

    /// Reads all records of bundles. Logs a warning for those that can't be parsed or that a user other than root could
    /// have changed, and leaves them out. Other errors are returned.
    pub fn readable_bundles(&self) -> Result<Vec<(Digest, BundleRecord)>, StateError> {
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

    pub fn write_bundle(&self, name: Digest, record: &BundleRecord) -> Result<(), StateError> {
        self.write(BUNDLES, &name.to_string(), record)
    }

    /// Removes the record of a bundle. Succeeds if it doesn't exist.
    pub fn remove_bundle(&self, name: Digest) -> Result<(), StateError> {
        self.remove(BUNDLES, &name.to_string())
    }

    /// Reads the record of a bundle again, and removes it if `is_stale` returns true. Another create of the bundle may
    /// have replaced it meanwhile. Returns whether the record is gone.
    pub fn remove_bundle_if(
        &self,
        name: Digest,
        is_stale: impl FnOnce(&BundleRecord) -> bool,
    ) -> Result<bool, StateError> {
        self.remove_if(BUNDLES, &name.to_string(), is_stale)
    }

    /// Returns the devices and shares that have a list of volumes, in order.
    pub fn backings_with_volumes(&self) -> Result<Vec<BackingKey>, StateError> {
        let mut keys = Vec::new();
        self.visit_owner_lists(|key, _| keys.push(key))?;
        keys.sort_unstable();
        Ok(keys)
    }

    /// Returns the versions of the lists of volumes on devices, ordered by device. The version of a list changes with
    /// each write.
    pub fn owner_list_versions(&self) -> Result<Vec<OwnerListVersion>, StateError> {
        let mut versions = Vec::new();
        self.visit_owner_lists(|key, number| {
            // tmpfs assigns ascending inode numbers, so that a new file doesn't soon get the number of an old one.
            versions.extend(
                key.device()
                    .map(|device| OwnerListVersion { device, number }),
            );
        })?;
        versions.sort_unstable();
        Ok(versions)
    }

    /// Calls `visit` with each list's backing and inode number.
    fn visit_owner_lists(&self, mut visit: impl FnMut(BackingKey, u64)) -> Result<(), StateError> {
        let Some(directory) = self.root.open_directory(OWNERS)? else {
            return Ok(());
        };
        for (name, inode) in directory.inodes()? {
            if let Some(key) = name.strip_suffix(".json").and_then(BackingKey::parse) {
                visit(key, inode);
            }
        }
        Ok(())
    }

    /// Returns the volumes on a device or share that are, or may be, in use. A list of an earlier boot is ignored,
    /// because a device's number may have been another device's. No lock is needed, because the list is replaced
    /// atomically.
    pub fn volumes_on(&self, backing: BackingKey) -> Result<Vec<TargetPath>, StateError> {
        let list = self.owned_volumes(backing)?;
        let list = list.filter(OwnedVolumes::is_of_this_boot);
        Ok(list.unwrap_or_default().targets())
    }

    /// Returns the volumes in the list of a device or share if the list is of an earlier boot. Returns no volumes if the
    /// list is of this boot.
    pub fn volumes_before_reboot(
        &self,
        backing: BackingKey,
    ) -> Result<Vec<TargetPath>, StateError> {
        let list = self.owned_volumes(backing)?;
        let list = list.filter(|list| !list.is_of_this_boot());
        Ok(list.unwrap_or_default().targets())
    }

    fn owned_volumes(&self, backing: BackingKey) -> Result<Option<OwnedVolumes>, StateError> {
        self.read(OWNERS, &backing.to_string())
    }

    /// Adds a volume to the list of a device or share. The caller has to hold [`LockName::Owners`].
    pub fn add_volume(&self, backing: BackingKey, volume: &TargetPath) -> Result<(), StateError> {
        let mut volumes = self.volumes_on(backing)?;
        if volumes.contains(volume) {
            return Ok(());
        }
        volumes.push(volume.clone());
        self.write_volumes(backing, &volumes)
    }

    /// Removes a volume from the list of a device or share. Succeeds if it isn't in the list. A list of an earlier boot
    /// is removed completely. The caller has to hold [`LockName::Owners`].
    pub fn remove_volume(
        &self,
        backing: BackingKey,
        volume: &TargetPath,
    ) -> Result<(), StateError> {
        let mut volumes = self.volumes_on(backing)?;
        volumes.retain(|other| other != volume);
        self.write_volumes(backing, &volumes)
    }

    fn write_volumes(&self, backing: BackingKey, volumes: &[TargetPath]) -> Result<(), StateError> {
        let name = backing.to_string();
        if volumes.is_empty() {
            return self.remove(OWNERS, &name);
        }
        let volumes = volumes
            .iter()
            .map(|volume| volume.as_path().to_owned())
            .collect();
        self.write(
            OWNERS,
            &name,
            &OwnedVolumes {
                version: Version,
                volumes,
                boot_id: boot_id().ok(),
            },
        )
    }

    /// Returns whether the index of target paths contains this target path. The index is cached. It is read again if
    /// another process or an operator has replaced or removed the file.
    pub fn has_target(&self, target: &TargetLookup<'_>) -> Result<bool, StateError> {
        let mut cached = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let root = self.root.get()?;
        let file = root.map_or(Ok(None), |root| root.stat(TARGETS_FILE))?;
        if !cached.is_current(file.as_ref()) {
            // Read after the stat: if the file is replaced in between, the next call reads it again.
            let index = self.targets()?;
            *cached = CachedTargets { index, file };
        }
        Ok(cached.index.has(target))
    }

    /// Returns whether an index of target paths exists. Its content isn't checked. Without one, the staged volumes are
    /// unknown.
    pub fn has_index(&self) -> Result<bool, StateError> {
        let root = self.root.get()?;
        Ok(root.map_or(Ok(0), |root| root.file_size(TARGETS_FILE))? > 0)
    }

    /// Adds target paths to the index. Creates the index if it doesn't exist. The path of a volume has to be added
    /// before the volume is staged, or else the volume isn't found where an engine has bind-mounted it to another path.
    /// The caller has to hold [`LockName::Targets`].
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

    /// Removes a path from the index, but not its resolved form, which may be another volume's. Succeeds if the path
    /// isn't in the index. The caller has to hold [`LockName::Targets`].
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

    /// Visits the temporary files among the records.
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

    /// Returns the names of the records in a directory, without `.json`.
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
        is_stale: impl FnOnce(&T) -> bool,
    ) -> Result<bool, StateError> {
        let Some(directory) = self.root.open_directory(directory)? else {
            return Ok(true);
        };
        // A record that can't be parsed is kept: another version of runcrust may have written it.
        let is_stale =
            |bytes: &[u8]| serde_json::from_slice(bytes).is_ok_and(|record| is_stale(&record));
        Ok(directory.remove_if(&format!("{stem}.json"), is_stale)?)
    }
}

/// Leaves out records that were removed while they were being listed.
fn existing<N, R>(
    records: impl Iterator<Item = (Result<Option<R>, StateError>, N)>,
) -> Records<N, R> {
    let existing = records.filter_map(|(record, name)| Some((name, record.transpose()?)));
    existing.collect()
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
    fn a_device_has_a_list_until_its_last_volume_is_removed() {
        let (_guard, state) = state();
        let device = BackingKey::parse("7:3").unwrap();
        let [one, two] = ["/1", "/2"].map(|path| TargetPath::new(path).unwrap());
        for volume in [&one, &two, &one] {
            state.add_volume(device, volume).unwrap();
        }
        assert_eq!(state.backings_with_volumes().unwrap(), [device]);
        assert_eq!(
            state.volumes_on(device).unwrap(),
            [one.clone(), two.clone()]
        );
        let versions = state.owner_list_versions().unwrap();
        state.add_volume(device, &two).unwrap();
        assert_eq!(state.owner_list_versions().unwrap(), versions, "unchanged");
        state.remove_volume(device, &one).unwrap();
        assert_ne!(state.owner_list_versions().unwrap(), versions);
        state.remove_volume(device, &one).unwrap();
        assert_eq!(
            state.volumes_on(device).unwrap(),
            std::slice::from_ref(&two)
        );
        state.remove_volume(device, &two).unwrap();
        assert_eq!(state.backings_with_volumes().unwrap(), []);
    }

    /// Locks that weren't retired must not prevent others from being retired, however many there are.
    #[test]
    fn more_locks_are_visited_than_a_listing_collects() {
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
    fn a_list_of_an_earlier_boot_is_ignored_until_it_is_replaced() {
        let (_guard, state) = state();
        let device = BackingKey::parse("7:3").unwrap();
        let [old, new] = ["/1", "/2"].map(|path| TargetPath::new(path).unwrap());
        state.add_volume(device, &old).unwrap();
        assert_eq!(state.volumes_before_reboot(device).unwrap(), []);
        let file = state.root.path().join("owners/7:3.json");
        let text = std::fs::read_to_string(&file).unwrap();
        let rebooted = text.replace(&boot_id().unwrap(), "another");
        assert_ne!(rebooted, text);
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write(&rebooted);
        assert_eq!(state.volumes_on(device).unwrap(), []);
        assert_eq!(state.volumes_before_reboot(device).unwrap(), [old]);
        state.add_volume(device, &new).unwrap();
        assert_eq!(
            state.volumes_on(device).unwrap(),
            std::slice::from_ref(&new)
        );
        assert_eq!(state.volumes_before_reboot(device).unwrap(), []);
        write(&rebooted);
        state.remove_volume(device, &new).unwrap();
        assert_eq!(state.backings_with_volumes().unwrap(), []);
        write(r#"{"version":1,"volumes":["/2"]}"#);
        assert_eq!(
            state.volumes_on(device).unwrap(),
            [new],
            "a list of an early version"
        );
    }

    #[test]
    fn the_record_of_a_sandbox_is_read_until_it_is_removed() {
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
        assert!(
            error.contains("t.json: this is the record of sandbox \"s\""),
            "{error}"
        );
        assert!(!state.remove_sandbox_if("s", |_| false).unwrap());
        assert!(state.remove_sandbox_if("s", |_| true).unwrap());
        assert!(state.remove_sandbox_if("s", |_| true).unwrap());
        assert_eq!(state.sandbox("s").unwrap(), None);
        assert!(matches!(
            state.sandbox("../locks/x"),
            Err(StateError::Id(_))
        ));
    }

    #[test]
    fn the_record_of_a_newer_sandbox_is_not_replaced() {
        let (_guard, state) = state();
        let record = |pid: u32| SandboxRecord {
            version: Version,
            id: "s".to_owned(),
            pod_uid: "u".to_owned(),
            process: Process::from_pid(pid.cast_signed()).unwrap(),
            mount_label: None,
            failures: vec![],
        };
        let mut other = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let (older, newer) = (record(std::process::id()), record(other.id()));
        state.write_sandbox(&newer).unwrap();
        let error = state.write_sandbox(&older).unwrap_err().to_string();
        let expected = format!("s.json: process {} is a newer sandbox", other.id());
        assert!(error.contains(&expected), "{error}");
        state.write_sandbox(&newer).unwrap();
        assert_eq!(state.sandbox("s").unwrap(), Some(newer));
        other.kill().unwrap();
        let _ = other.wait().unwrap();
        state.write_sandbox(&older).unwrap();
        assert_eq!(state.sandbox("s").unwrap(), Some(older));
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
        assert_eq!(records.len(), 2, "one error for each");
        assert!(records.iter().all(|(_, record)| record.is_err()));
        assert!(state.all_sandboxes().is_err());
    }
}
