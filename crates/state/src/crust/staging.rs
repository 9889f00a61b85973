//! What is staged in the place of something else, and can be taken back.

use std::path::PathBuf;

use super::{resize, standing};
use crate::files::{Directory, FileError};
use crate::info::{MOUNT_INFO, MountInfo};
use crate::target::{TARGET, TargetLook};

/// What was staged, and what that replaced.
#[derive(Debug)]
#[must_use = "it is to be kept or taken back"]
pub struct Staging<'a> {
    root: &'a Directory,
    device: PathBuf,
    /// The resolved path's entry, where it has one of its own, then the given one's.
    entries: Vec<(String, Before)>,
}

/// What an entry was.
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
        look: &TargetLook<'_>,
        info: &MountInfo,
    ) -> Result<Self, FileError> {
        let content = info.to_json();
        let standing = standing::now(look);
        let mut staging = Self {
            root,
            device: info.device.clone(),
            entries: Vec::new(),
        };
        for path in look.spellings().into_iter().rev() {
            if let Err(error) =
                staging.write_entry(path.digest().to_string(), &content, standing.as_deref())
            {
                // The error that counts is the first.
                let _ = staging.take_back();
                return Err(error);
            }
        }
        Ok(staging)
    }

    fn write_entry(
        &mut self,
        name: String,
        content: &[u8],
        standing: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let Some(there) = self.root.open_directory(&name)? else {
            let standing = standing.map(|standing| (TARGET, standing));
            let files: Vec<_> = [(MOUNT_INFO, content)]
                .into_iter()
                .chain(standing)
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

    /// It stays. Growth that was asked for the device that was here before goes now and not earlier:
    /// a crash must not lose it while that one is still staged.
    pub fn keep(self) -> Result<(), FileError> {
        let is_old = |before: &Before| !matches!(before, Before::Missing);
        for (name, _) in self.entries.iter().filter(|(_, before)| is_old(before)) {
            if let Some(there) = self.root.open_directory(name)? {
                resize::forget_of_others(&there, &self.device)?;
            }
        }
        Ok(())
    }

    /// What was staged before is again.
    pub fn take_back(&self) -> Result<(), FileError> {
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
