//! Listings of the crust directory that open no entry: how much space is used, and which paths are staged.

use std::collections::HashSet;

use super::CrustDirectory;
use crate::files::FileError;
use crate::info::MOUNT_INFO;
use crate::target::{Digest, TargetPath};

/// The number and the size of entries in the crust directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryUsage {
    /// The number of entries. A volume behind a symbolic link has two.
    pub entries: u64,
    /// The size of the entries' `mountInfo.json` files in bytes.
    pub bytes: u64,
}

/// The digests of all staged target paths, including the paths of half-staged volumes. Looking up each parent of a path
/// with many components would cost more than this one listing.
#[derive(Debug)]
pub struct StagedDigests(HashSet<Digest>);

impl CrustDirectory {
    /// Counts the entries and their bytes, with one listing and one `fstatat` for each entry. Kata's directory isn't
    /// counted.
    pub fn entry_usage(&self) -> Result<EntryUsage, FileError> {
        let mut usage = EntryUsage::default();
        let Some(root) = self.root.get()? else {
            return Ok(usage);
        };
        let names = root.names()?.into_iter();
        for name in names.filter(|name| name.parse::<Digest>().is_ok()) {
            usage.entries += 1;
            usage.bytes += root.file_size(&format!("{name}/{MOUNT_INFO}"))?;
        }
        Ok(usage)
    }

    /// Lists the digests of the volumes that are staged now, in both layouts.
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
    /// Returns the lengths in bytes of the path's prefixes that may be staged target paths. The whole path counts as
    /// one.
    #[must_use]
    pub fn staged_prefix_lengths(&self, path: &TargetPath) -> Vec<usize> {
        let known = path.digests().filter(|(_, digest)| self.0.contains(digest));
        known.map(|(length, _)| length).collect()
    }
}
