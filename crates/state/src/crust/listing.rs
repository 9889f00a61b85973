//! Listings of the crust directory that open no entry: how much is staged, and at which paths.

use std::collections::HashSet;

use super::CrustDirectory;
use crate::files::FileError;
use crate::info::MOUNT_INFO;
use crate::target::{Digest, TargetPath};

/// The number and size of the entries of the crust directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// The number of entries. A volume behind a symbolic link has two.
    pub entries: u64,
    /// The size of their `mountInfo.json` files in bytes.
    pub bytes: u64,
}

/// The digests of all target paths at which something is staged, even if only half. For paths with many components:
/// asking about each parent would cost more than this one list.
#[derive(Debug)]
pub struct StagedDigests(HashSet<Digest>);

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

    /// Lists what is staged now, in both layouts.
    pub fn staged_digests(&self) -> Result<StagedDigests, FileError> {
        let mut digests = HashSet::new();
        if let Some(root) = self.root.get()? {
            let names = root.names()?;
            digests.extend(names.iter().filter_map(|name| name.parse::<Digest>().ok()));
        }
        if let Some(kata) = &self.kata {
            digests.extend(kata.paths()?.iter().map(TargetPath::digest));
        }
        Ok(StagedDigests(digests))
    }
}

impl StagedDigests {
    /// Returns the lengths of those paths, of this one and its parents, at which something may be staged.
    #[must_use]
    pub fn lengths_of(&self, path: &TargetPath) -> Vec<usize> {
        let known = path.digests().filter(|(_, digest)| self.0.contains(digest));
        known.map(|(length, _)| length).collect()
    }
}
