//! What a crash between a volume's two entries leaves: the one of its resolved path, alone.

use super::{CrustDirectory, EntryError, RUNTIME_CLI};
use crate::files::FileError;
use crate::target::{Digest, TargetPath};

/// An entry that isn't its target path's own, where that one is gone.
#[derive(Debug)]
pub struct Half {
    name: String,
    target: TargetPath,
}

impl Half {
    /// The target path as it was given.
    #[must_use]
    pub fn target(&self) -> &TargetPath {
        &self.target
    }
}

impl CrustDirectory {
    /// Entries without their twin. One that can't be read is left out.
    pub fn halves(&self) -> Result<Vec<Half>, FileError> {
        let Some(root) = self.root.get()? else {
            return Ok(Vec::new());
        };
        let names = root.names()?.into_iter();
        let names = names.filter(|name| name.parse::<Digest>().is_ok());
        Ok(names.filter_map(|name| self.half(name)).collect())
    }

    /// Removes it; false where it is whole by now, or may be in use. Under the volume's lock.
    pub fn remove_half(&self, half: &Half) -> Result<bool, EntryError> {
        let Some(entry) = self.entry_named(&half.name)? else {
            return Ok(false);
        };
        let still = self.half(half.name.clone());
        if still.is_none_or(|still| still.target != half.target) {
            return Ok(false);
        }
        let unused = match entry.record()? {
            Some(record) => !record.users.iter().any(|user| user.process.is_alive()),
            // Somebody answers for it, whoever that is.
            None => entry.directory.read_record(RUNTIME_CLI)?.is_none(),
        };
        if unused {
            self.root.remove_directory(&half.name)?;
        }
        Ok(unused)
    }

    fn half(&self, name: String) -> Option<Half> {
        let entry = self.entry_named(&name).ok()??;
        let target = entry.info().ok()?.target_path?;
        let own = target.digest().to_string() == name;
        let alone = !own && matches!(self.has_entry(&target), Ok(false));
        alone.then_some(Half { name, target })
    }
}
