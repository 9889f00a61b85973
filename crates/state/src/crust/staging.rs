//! Writes the entries of a volume in such a way that the previous ones can be restored.

use std::path::{Path, PathBuf};

use super::entry::{RESIZE_FILE, ResizeRecord};
use crate::files::{Directory, FileError};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::target::{TARGET_FILE, TargetLookup};

/// The entries that a stage has written, and their previous contents.
#[derive(Debug)]
#[must_use = "commit it or roll it back"]
pub struct Staging<'a> {
    root: &'a Directory,
    device: PathBuf,
    /// The names of the written entries. The entry of the resolved path comes first, if that path differs from the
    /// target path.
    entries: Vec<(String, PreviousEntry)>,
}

#[derive(Debug)]
enum PreviousEntry {
    Missing,
    /// The entry had the same `mountInfo.json`.
    Same,
    /// The entry had this `mountInfo.json`, or none.
    Different(Option<Vec<u8>>),
}

impl<'a> Staging<'a> {
    /// Writes the entries of a volume, and the entry of the resolved path first. After a crash in between, the volume
    /// is staged as it was before, or not at all, because the entry of the target path decides. An error has the same
    /// effect.
    pub(super) fn write(
        root: &'a Directory,
        lookup: &TargetLookup<'_>,
        info: &MountInfo,
    ) -> Result<Self, FileError> {
        let content = info.to_json();
        let presence = presence(lookup);
        let mut staging = Self {
            root,
            device: info.device.clone(),
            entries: Vec::new(),
        };
        for path in lookup.spellings().into_iter().rev() {
            if let Err(error) =
                staging.write_entry(path.digest().to_string(), &content, presence.as_deref())
            {
                // An error of the rollback is ignored, because the first error is reported.
                let _ = staging.roll_back();
                return Err(error);
            }
        }
        Ok(staging)
    }

    fn write_entry(
        &mut self,
        name: String,
        content: &[u8],
        presence: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let Some(entry) = self.root.open_directory(&name)? else {
            let presence = presence.map(|presence| (TARGET_FILE, presence));
            let files: Vec<_> = [(MOUNT_INFO, content)]
                .into_iter()
                .chain(presence)
                .collect();
            self.root.add_directory(&name, &files)?;
            self.entries.push((name, PreviousEntry::Missing));
            return Ok(());
        };
        let previous = entry.read(MOUNT_INFO)?;
        if previous.as_deref() == Some(content) {
            self.entries.push((name, PreviousEntry::Same));
            return Ok(());
        }
        self.entries
            .push((name, PreviousEntry::Different(previous)));
        entry.write(MOUNT_INFO, content)
    }

    /// Keeps the written entries, and removes a pending resize of the device that was staged before. The resize isn't
    /// removed earlier: a crash must not lose it while that device is still staged.
    pub fn commit(self) -> Result<(), FileError> {
        let existed = |previous: &PreviousEntry| !matches!(previous, PreviousEntry::Missing);
        for (name, _) in self.entries.iter().filter(|(_, it)| existed(it)) {
            if let Some(entry) = self.root.open_directory(name)? {
                remove_resize_of_other_device(&entry, &self.device)?;
            }
        }
        Ok(())
    }

    /// Restores the previous entries.
    pub fn roll_back(&self) -> Result<(), FileError> {
        // New entries are removed in the order of an unstage. Replaced ones are restored in the order of a stage.
        for (name, previous) in self.entries.iter().rev() {
            if matches!(previous, PreviousEntry::Missing) {
                self.root.remove_directory(name)?;
            }
        }
        for (name, previous) in &self.entries {
            let PreviousEntry::Different(content) = previous else {
                continue;
            };
            if let Some(entry) = self.root.open_directory(name)? {
                match content {
                    Some(content) => entry.write(MOUNT_INFO, content)?,
                    None => entry.remove(MOUNT_INFO)?,
                }
            }
        }
        Ok(())
    }
}

/// Removes a pending resize that was requested for another device. A `resize.json` that can't be parsed is kept, and
/// the next mount fails because of it.
fn remove_resize_of_other_device(entry: &Directory, device: &Path) -> Result<(), FileError> {
    let Ok(Some(bytes)) = entry.read(RESIZE_FILE) else {
        return Ok(());
    };
    match serde_json::from_slice::<ResizeRecord>(&bytes) {
        Ok(record) if record.device.as_deref() != Some(device) => entry.remove(RESIZE_FILE),
        _ => Ok(()),
    }
}

/// Returns the content of `target.json` for a target path; `None` if its presence is unknown.
fn presence(target: &TargetLookup<'_>) -> Option<Vec<u8>> {
    serde_json::to_vec(&target.presence().ok()?).ok()
}
