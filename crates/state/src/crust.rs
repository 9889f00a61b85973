//! The crust directory: one entry a staged target path.

use std::path::{Path, PathBuf};

use crate::files::{Directory, FileError};
use crate::info::{InfoError, MOUNT_INFO, MountInfo};
use crate::record::{RECORD, VolumeRecord};
use crate::target::{Digest, TargetPath};

/// The name of the file with the path of the CLI that answers for the volume (KEP-2857).
pub const RUNTIME_CLI: &str = "runtime-cli";

/// Why an entry can't be used.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// A file or directory can't be read or written, or isn't root's.
    #[error(transparent)]
    File(#[from] FileError),
    /// The entry's directory is there, its `mountInfo.json` isn't.
    #[error("{} is missing; hint: is crust_ops running? stage the volume again", .0.display())]
    NoInfo(PathBuf),
    /// `mountInfo.json` can't be understood.
    #[error("{}: {source}", path.display())]
    Info {
        /// The file.
        path: PathBuf,
        /// The field and the reason.
        source: InfoError,
    },
    /// `metadata.targetPath` isn't the path that the entry is named after.
    #[error("{}: field `metadata.targetPath`: {target} is another volume's path; hint: stage the volume again", path.display())]
    OtherTarget {
        /// The file.
        path: PathBuf,
        /// What the field says.
        target: TargetPath,
    },
    /// Of the two entries of a volume behind a symbolic link, one is missing or differs.
    #[error("{} is missing or differs from its twin {}: the volume is only half staged; hint: stage it again", missing.display(), twin.display())]
    HalfStaged {
        /// The entry that should be there.
        missing: PathBuf,
        /// The one that is: of the target path as given, or of its resolved form.
        twin: PathBuf,
    },
    /// `runcrust.json` can't be understood.
    #[error("{}: {source}; hint: end the pod, then unstage the volume, which removes it", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// The crust directory, `/run/crust` unless configured otherwise. Root's, mode 0700.
#[derive(Debug)]
pub struct CrustDirectory(Directory);

impl CrustDirectory {
    /// Opens it; `None` if nothing was ever staged on this node.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        Ok(Directory::open(path)?.map(Self))
    }

    /// Opens it, made where it is missing.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        Directory::create(path).map(Self)
    }

    /// The volume that `path` is the target path of, or the resolved form of the target path of;
    /// `None` where none is staged.
    pub fn volume(&self, path: &TargetPath) -> Result<Option<Volume>, EntryError> {
        let Some(entry) = self.entry(path)? else {
            return Ok(None);
        };
        let info = entry.info()?;
        let target = info.target_path.clone().unwrap_or_else(|| path.clone());
        let resolved = target.resolved().unwrap_or_else(|_| target.clone());
        if *path != target && *path != resolved {
            return Err(EntryError::OtherTarget {
                path: entry.path(MOUNT_INFO),
                target,
            });
        }
        if target == resolved {
            let entries = vec![entry];
            return Ok(Some(Volume {
                target,
                info,
                entries,
            }));
        }
        let twin_path = if *path == target { &resolved } else { &target };
        let twin = self.entry(twin_path)?;
        let same = match &twin {
            Some(twin) => twin.info()? == info,
            None => false,
        };
        let Some(twin) = twin.filter(|_| same) else {
            return Err(EntryError::HalfStaged {
                missing: self.0.path().join(twin_path.digest().to_string()),
                twin: entry.directory.path().to_owned(),
            });
        };
        let mut entries = vec![entry, twin];
        if *path != target {
            entries.reverse();
        }
        Ok(Some(Volume {
            target,
            info,
            entries,
        }))
    }

    /// Stages a volume under its target path and that path's resolved form. The latter is written
    /// first, so that a crash in between leaves what isn't staged.
    pub fn stage(&self, target: &TargetPath, info: &MountInfo) -> Result<(), EntryError> {
        let content = info.to_json();
        for path in spellings(target).into_iter().rev() {
            let name = path.digest().to_string();
            match self.0.open_directory(&name)? {
                Some(there) if there.read(MOUNT_INFO)?.as_deref() == Some(&content) => {}
                Some(there) => there.write(MOUNT_INFO, &content)?,
                None => self.0.add_directory(&name, &[(MOUNT_INFO, &content)])?,
            }
        }
        Ok(())
    }

    /// Removes every entry of a volume; that there is none is fine.
    pub fn unstage(&self, target: &TargetPath) -> Result<(), FileError> {
        // The given path's first: what is left by a crash is a half that isn't staged.
        for path in spellings(target) {
            self.0.remove_directory(&path.digest().to_string())?;
        }
        Ok(())
    }

    /// The record of the entry at `path`, whatever became of its `mountInfo.json`.
    pub fn record(&self, path: &TargetPath) -> Result<Option<VolumeRecord>, EntryError> {
        self.entry(path)?.map_or(Ok(None), |entry| entry.record())
    }

    fn entry(&self, path: &TargetPath) -> Result<Option<Entry>, FileError> {
        let directory = self.0.open_directory(&path.digest().to_string())?;
        Ok(directory.map(|directory| Entry { directory }))
    }
}

/// The target path as it was given and, where it differs, with its links resolved.
fn spellings(target: &TargetPath) -> Vec<TargetPath> {
    let mut paths = vec![target.clone()];
    paths.extend(target.resolved().ok().filter(|resolved| resolved != target));
    paths
}

#[derive(Debug)]
struct Entry {
    directory: Directory,
}

impl Entry {
    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    fn record(&self) -> Result<Option<VolumeRecord>, EntryError> {
        let Some(bytes) = self.directory.read_record(RECORD)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Record {
                path: self.path(RECORD),
                source,
            })
    }

    fn info(&self) -> Result<MountInfo, EntryError> {
        let path = self.path(MOUNT_INFO);
        let Some(bytes) = self.directory.read(MOUNT_INFO)? else {
            return Err(EntryError::NoInfo(path));
        };
        MountInfo::parse(&bytes).map_err(|source| EntryError::Info { path, source })
    }
}

/// A staged volume: what was staged, and the entries where the runtime keeps its files.
#[derive(Debug)]
pub struct Volume {
    target: TargetPath,
    info: MountInfo,
    /// The given target path's entry, then that of its resolved form where there is one.
    entries: Vec<Entry>,
}

impl Volume {
    /// The target path as it was given. Its digest is the volume's name in locks and records.
    #[must_use]
    pub fn target(&self) -> &TargetPath {
        &self.target
    }

    /// [`TargetPath::digest`] of the target path.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.target.digest()
    }

    /// What was staged.
    #[must_use]
    pub fn info(&self) -> &MountInfo {
        &self.info
    }

    /// Who uses it; `None` if nobody does.
    pub fn record(&self) -> Result<Option<VolumeRecord>, EntryError> {
        self.entries.first().map_or(Ok(None), Entry::record)
    }

    /// Writes who uses it; a record without users is removed, and `runtime-cli` with it.
    pub fn write_record(&self, record: &VolumeRecord) -> Result<(), EntryError> {
        if record.users.is_empty() {
            return self.forget_users();
        }
        self.write(RECORD, &to_json(record)?)
    }

    /// Says who answers for the volume now that it is in use (KEP-2857: `runtime-cli`).
    pub fn publish_cli(&self, cli: &Path) -> Result<(), EntryError> {
        let mut line = cli.as_os_str().as_encoded_bytes().to_vec();
        line.push(b'\n');
        self.write(RUNTIME_CLI, &line)
    }

    /// Removes the runtime's files: nobody uses the volume any more.
    pub fn forget_users(&self) -> Result<(), EntryError> {
        for entry in &self.entries {
            // The record last: without `runtime-cli` it still says that somebody was there.
            entry.directory.remove(RUNTIME_CLI)?;
            entry.directory.remove(RECORD)?;
        }
        Ok(())
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<(), EntryError> {
        for entry in &self.entries {
            if entry.directory.read_record(name)?.as_deref() != Some(content) {
                entry.directory.write(name, content)?;
            }
        }
        Ok(())
    }
}

fn to_json(record: &VolumeRecord) -> Result<Vec<u8>, EntryError> {
    let json = serde_json::to_vec(record);
    json.map_err(|source| EntryError::Record {
        path: RECORD.into(),
        source,
    })
}

#[cfg(test)]
mod tests;
