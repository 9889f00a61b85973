//! Restrictions on what callers of a socket may stage. Root may stage anything with the command line.

use std::path::PathBuf;

use crust_state::crust::{EntryError, EntryUsage};
use crust_state::target::TargetLookup;
use crust_state::{CrustDirectory, MountInfo, TargetPath, Volume};

use super::context::Context;
use super::error::StagingError;
use crate::bare_directory::{self, DirectoryContents};

/// Reserves capacity for the growth of the crust directory by a stage, or refuses the stage. A stage that replaces an
/// entry counts only the bytes by which the new entry is longer.
///
/// The callback may count the entries of the crust directory if the directory is passed to it. Otherwise the callback
/// must not wait for a disk, and fails with [`StagingError::WouldWait`] if it would have to wait.
pub type GrowthLimiter<'a> =
    &'a (dyn Fn(EntryUsage, Option<&CrustDirectory>) -> Result<(), StagingError> + Sync);

/// Reserves capacity for a stage if it makes the crust directory grow.
pub(super) fn reserve_growth(
    context: &Context<'_>,
    limiter: GrowthLimiter<'_>,
    lookup: &TargetLookup<'_>,
    present: &Result<Option<Volume>, EntryError>,
    info: &MountInfo,
) -> Result<(), StagingError> {
    let growth = growth(lookup.entry_count(), present, info);
    if growth == EntryUsage::default() {
        return Ok(());
    }
    limiter(growth, Some(context.crust))
}

/// Returns the growth of the crust directory by a stage: the number of the volume's entries if it is new, and for each
/// entry the bytes by which it is longer than the replaced one.
fn growth(
    entries: u64,
    present: &Result<Option<Volume>, EntryError>,
    info: &MountInfo,
) -> EntryUsage {
    let replaced = match present {
        Ok(Some(volume)) if !volume.is_kata_layout() => size(volume.info()),
        // Kata's layout isn't counted, and the size of an unreadable entry is unknown.
        _ => 0,
    };
    EntryUsage {
        entries: if matches!(present, Ok(None)) {
            entries
        } else {
            0
        },
        bytes: entries * size(info).saturating_sub(replaced),
    }
}

/// Checks the target path that a volume was staged by, and the path that the caller named. Both must be acceptable.
pub(super) fn check_both(
    context: &Context<'_>,
    lookups: [&TargetLookup<'_>; 2],
) -> Result<(), StagingError> {
    let [target, requested] = lookups;
    check(context, target)?;
    if requested.path() == target.path() {
        return Ok(());
    }
    check(context, requested)
}

/// Checks the target path of a volume that isn't staged yet.
pub(super) fn check(context: &Context<'_>, lookup: &TargetLookup<'_>) -> Result<(), StagingError> {
    let config = context.config;
    if !lookup.is_within(&config.kubelet_dirs, &config.match_roots) {
        return Err(StagingError::TargetNotAllowed {
            target: lookup.path().clone(),
            kubelet_dirs: join_paths(&config.kubelet_dirs),
            match_roots: join_paths(&config.match_roots),
        });
    }
    if lookup.is_known_missing() {
        return Ok(());
    }
    check_empty(lookup.path())
}

/// Returns true if the target path is known to be acceptable without a call that may wait. Listing a directory may wait
/// for its disk.
pub(super) fn is_acceptable_without_waiting(
    context: &Context<'_>,
    lookup: &TargetLookup<'_>,
) -> bool {
    let config = context.config;
    lookup.is_within_as_written(&config.kubelet_dirs, &config.match_roots)
        && lookup.is_known_missing()
}

fn check_empty(target: &TargetPath) -> Result<(), StagingError> {
    match bare_directory::contents(target.as_path()) {
        DirectoryContents::Bare => Ok(()),
        DirectoryContents::Mount => Err(StagingError::TargetIsMountPoint(target.clone())),
        DirectoryContents::Files => Err(StagingError::TargetNotEmpty(target.clone())),
        DirectoryContents::Unknown => Err(StagingError::TargetUnreadable(target.clone())),
    }
}

fn join_paths(directories: &[PathBuf]) -> String {
    if directories.is_empty() {
        return "none".to_owned();
    }
    let paths: Vec<String> = directories
        .iter()
        .map(|directory| directory.display().to_string())
        .collect();
    paths.join(", ")
}

/// Returns the size of an entry's `mountInfo.json` file, in bytes.
pub(super) fn size(info: &MountInfo) -> u64 {
    info.to_json().len() as u64
}
