//! Limits on staging for callers of a socket. Root at a command line may stage anything.

use std::path::PathBuf;

use crust_state::crust::{Amount, EntryError};
use crust_state::target::TargetLookup;
use crust_state::{CrustDirectory, MountInfo, TargetPath, Volume};

use super::context::Context;
use super::error::Denied;
use crate::bare_directory::{self, DirectoryContents};

/// Takes room for the growth of the crust directory by a stage; a replacement grows only by its additional bytes.
/// Given the crust directory it may count the entries; otherwise it denies with [`Denied::Unknown`] rather than wait.
pub type Room<'a> = &'a (dyn Fn(Amount, Option<&CrustDirectory>) -> Result<(), Denied> + Sync);

/// Takes room for a stage, if it makes the crust directory grow.
pub(super) fn take_room(
    context: &Context<'_>,
    room: Room<'_>,
    look: &TargetLookup<'_>,
    there: &Result<Option<Volume>, EntryError>,
    info: &MountInfo,
) -> Result<(), Denied> {
    let growth = growth(look.entries(), there, info);
    if growth == Amount::default() {
        return Ok(());
    }
    room(growth, Some(context.crust))
}

/// Returns the growth of the crust directory by a stage: the volume's entries if it is new, and for each the difference
/// in size to the replaced content if the new one is longer.
fn growth(entries: u64, there: &Result<Option<Volume>, EntryError>, info: &MountInfo) -> Amount {
    let replaced = match there {
        Ok(Some(volume)) if !volume.is_kata_layout() => size(volume.info()),
        // Kata's layout isn't counted, and the size of an unreadable entry is unknown.
        _ => 0,
    };
    Amount {
        entries: if matches!(there, Ok(None)) {
            entries
        } else {
            0
        },
        bytes: entries * size(info).saturating_sub(replaced),
    }
}

/// Checks the target path of a volume, and the path that the caller gave: both have to be acceptable.
pub(super) fn check_all(
    context: &Context<'_>,
    looks: [&TargetLookup<'_>; 2],
) -> Result<(), Denied> {
    let [target, asked] = looks;
    check(context, target)?;
    if asked.path() == target.path() {
        return Ok(());
    }
    check(context, asked)
}

/// Checks the target path of what is about to be staged and isn't yet.
pub(super) fn check(context: &Context<'_>, look: &TargetLookup<'_>) -> Result<(), Denied> {
    let config = context.config;
    if !look.is_within(&config.kubelet_dirs, &config.match_roots) {
        return Err(Denied::Target {
            target: look.path().clone(),
            kubelet_dirs: listed(&config.kubelet_dirs),
            match_roots: listed(&config.match_roots),
        });
    }
    if look.is_plainly_missing() {
        return Ok(());
    }
    check_empty(look.path())
}

/// Whether the target path is known to be fine without a call that may wait: a directory's entries may have
/// to be read from its disk.
pub(super) fn is_fine_at_once(context: &Context<'_>, look: &TargetLookup<'_>) -> bool {
    let config = context.config;
    look.is_plainly_within(&config.kubelet_dirs, &config.match_roots) && look.is_plainly_missing()
}

fn check_empty(target: &TargetPath) -> Result<(), Denied> {
    match bare_directory::contents(target.as_path()) {
        DirectoryContents::Bare => Ok(()),
        DirectoryContents::Mount => Err(Denied::Mount(target.clone())),
        DirectoryContents::Files => Err(Denied::Files(target.clone())),
        DirectoryContents::Unknown => Err(Denied::Unclear(target.clone())),
    }
}

fn listed(directories: &[PathBuf]) -> String {
    if directories.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = directories
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    shown.join(", ")
}

/// Returns the size of an entry's `mountInfo.json` file, in bytes.
pub(super) fn size(info: &MountInfo) -> u64 {
    info.to_json().len() as u64
}
