//! Writes the entries of a volume so that what they replace can be restored.

use std::path::{Path, PathBuf};

use super::entry::{RESIZE, ResizeRecord};
use crate::files::{Directory, FileError};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::target::{TARGET, TargetLookup};

/// The entries that a stage has written, and what they replaced.
#[derive(Debug)]
#[must_use = "it is to be committed or rolled back"]
pub struct Staging<'a> {
    root: &'a Directory,
    device: PathBuf,
    /// The resolved path's entry, where it has one of its own, then the given one's.
    entries: Vec<(String, Before)>,
}

/// An entry as it was before.
#[derive(Debug)]
enum Before {
    /// There was none.
    Missing,
    /// It said the same.
    Same,
    /// Its `mountInfo.json` was another, or wasn't there.
    Other(Option<Vec<u8>>),
}

impl<'a> Staging<'a> {
    /// Writes the entries of a target path. The resolved path's comes first, so that a crash in
    /// between leaves what was staged before, or what isn't staged; and so does an error.
    pub(super) fn write(
        root: &'a Directory,
        look: &TargetLookup<'_>,
        info: &MountInfo,
    ) -> Result<Self, FileError> {
        let content = info.to_json();
        let presence = presence(look);
        let mut staging = Self {
            root,
            device: info.device.clone(),
            entries: Vec::new(),
        };
        for path in look.spellings().into_iter().rev() {
            if let Err(error) =
                staging.write_entry(path.digest().to_string(), &content, presence.as_deref())
            {
                // The error that counts is the first.
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
        let Some(there) = self.root.open_directory(&name)? else {
            let presence = presence.map(|presence| (TARGET, presence));
            let files: Vec<_> = [(MOUNT_INFO, content)]
                .into_iter()
                .chain(presence)
                .collect();
            self.root.add_directory(&name, &files)?;
            self.entries.push((name, Before::Missing));
            return Ok(());
        };
        let before = there.read(MOUNT_INFO)?;
        if before.as_deref() == Some(content) {
            self.entries.push((name, Before::Same));
            return Ok(());
        }
        self.entries.push((name, Before::Other(before)));
        there.write(MOUNT_INFO, content)
    }

    /// Keeps what was staged. Growth that was asked for the device that was here before is removed now and not earlier:
    /// a crash must not lose it while that device is still staged.
    pub fn commit(self) -> Result<(), FileError> {
        let is_old = |before: &Before| !matches!(before, Before::Missing);
        for (name, _) in self.entries.iter().filter(|(_, before)| is_old(before)) {
            if let Some(there) = self.root.open_directory(name)? {
                forget_resize_of_others(&there, &self.device)?;
            }
        }
        Ok(())
    }

    /// Restores what was staged before.
    pub fn roll_back(&self) -> Result<(), FileError> {
        // In the order of an unstage, then in that of a stage.
        for (name, before) in self.entries.iter().rev() {
            if matches!(before, Before::Missing) {
                self.root.remove_directory(name)?;
            }
        }
        for (name, before) in &self.entries {
            let Before::Other(content) = before else {
                continue;
            };
            if let Some(there) = self.root.open_directory(name)? {
                match content {
                    Some(content) => there.write(MOUNT_INFO, content)?,
                    None => there.remove(MOUNT_INFO)?,
                }
            }
        }
        Ok(())
    }
}

/// Removes from an entry the growth that was asked for another device. One that can't be read stays: the mount refuses
/// it.
fn forget_resize_of_others(entry: &Directory, device: &Path) -> Result<(), FileError> {
    let Ok(Some(bytes)) = entry.read(RESIZE) else {
        return Ok(());
    };
    match serde_json::from_slice::<ResizeRecord>(&bytes) {
        Ok(record) if record.device.as_deref() != Some(device) => entry.remove(RESIZE),
        _ => Ok(()),
    }
}

/// Returns the content of `target.json` for a path as it is now; `None` if that is unknown.
fn presence(target: &TargetLookup<'_>) -> Option<Vec<u8>> {
    serde_json::to_vec(&target.presence().ok()?).ok()
}
