//! How much of its target path was there when a volume was staged, or used: what isn't any more was
//! removed.

use super::entry::{Entry, Layout};
use super::{EntryError, Volume};
use crate::target::{Standing, TARGET, TargetLook};

/// As it is written; `None` where that can't be told, or written.
pub(super) fn now(target: &TargetLook<'_>) -> Option<Vec<u8>> {
    serde_json::to_vec(&target.standing().ok()?).ok()
}

impl Entry {
    /// How much was there.
    pub(super) fn standing(&self) -> Result<Option<Standing>, EntryError> {
        let Some(bytes) = self.directory.read(TARGET)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| EntryError::Target {
                path: self.path(TARGET),
                source,
            })
    }
}

impl Volume {
    /// Remembers how much of the target path is there, if that says more than what is remembered.
    /// Whoever uses a volume knows more of it than whoever staged it: drivers make the directory before or
    /// afterwards, and others than `crust_ops` may not have said anything.
    pub fn remember_standing(&self) -> Result<(), EntryError> {
        let Ok(now) = self.target.standing() else {
            return Ok(());
        };
        // One of Kata's is its driver's.
        let own = self
            .entries
            .iter()
            .filter(|entry| entry.layout == Layout::Crust);
        for entry in own {
            let before = entry.standing().ok().flatten();
            let is_more = before.is_none_or(|before| now.says_more_than(&before));
            if let (true, Ok(json)) = (is_more, serde_json::to_vec(&now)) {
                entry.directory.write(TARGET, &json)?;
            }
        }
        Ok(())
    }
}
