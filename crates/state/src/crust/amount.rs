//! The number and size of the staged volumes.

use super::CrustDirectory;
use crate::files::FileError;
use crate::info::MOUNT_INFO;
use crate::target::Digest;

/// The number and size of the entries of the crust directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Entries. A volume behind a symbolic link has two.
    pub entries: u64,
    /// Bytes of their `mountInfo.json` files.
    pub bytes: u64,
}

impl CrustDirectory {
    /// Counts the entries, by a listing and one `fstatat` for each. Kata's layout doesn't count.
    pub fn amount(&self) -> Result<Amount, FileError> {
        let mut amount = Amount::default();
        let Some(root) = self.root.get()? else {
            return Ok(amount);
        };
        let names = root.names()?.into_iter();
        for name in names.filter(|name| name.parse::<Digest>().is_ok()) {
            amount.entries += 1;
            amount.bytes += root.size_of(&format!("{name}/{MOUNT_INFO}"))?;
        }
        Ok(amount)
    }
}
