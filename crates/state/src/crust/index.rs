//! The names of all that is staged, listed once: for paths of so many names that asking about each of
//! their parents would cost more.

use std::collections::HashSet;

use super::CrustDirectory;
use crate::files::FileError;
use crate::target::{Digest, TargetPath};

/// Where something is staged, or was half.
#[derive(Debug)]
pub struct Index(HashSet<Digest>);

impl CrustDirectory {
    /// Lists what is staged by now, in both layouts.
    pub fn index(&self) -> Result<Index, FileError> {
        let mut digests = HashSet::new();
        if let Some(root) = self.root.get()? {
            let names = root.names()?;
            digests.extend(names.iter().filter_map(|name| name.parse::<Digest>().ok()));
        }
        if let Some(kata) = &self.kata {
            digests.extend(kata.paths()?.iter().map(TargetPath::digest));
        }
        Ok(Index(digests))
    }
}

impl Index {
    /// The lengths of those paths that something may be staged at: of this one, and of its parents.
    #[must_use]
    pub fn on_the_way(&self, path: &TargetPath) -> Vec<usize> {
        let known = path.digests().filter(|(_, digest)| self.0.contains(digest));
        known.map(|(length, _)| length).collect()
    }
}
