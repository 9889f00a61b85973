//! Maintains the node's index of target paths. A create uses it to find a volume that an engine has bound elsewhere.

use crust_blockfs::Deadline;
use crust_state::TargetPath;
use crust_state::crust::SurveyedVolume;
use crust_state::lock::LockName;
use crust_state::target::TargetLookup;

use super::context::Context;
use super::error::{Cause, StagingError};

/// Adds a target path to the index. Must be called before the entry is written.
pub(super) fn add(
    context: &Context<'_>,
    target: &TargetLookup<'_>,
    deadline: Deadline,
) -> Result<(), Cause> {
    if context.state.has_target(target)? {
        return Ok(());
    }
    if !context.state.has_index()? {
        // A create that finds an index trusts it to be complete, so the index is made from all staged volumes.
        add_all(context, &context.crust.survey()?, deadline)?;
    }
    let _lock = context.state.lock(LockName::Targets, deadline)?;
    Ok(context.state.add_targets(std::slice::from_ref(target))?)
}

/// Adds a target path without waiting. Fails with [`StagingError::WouldWait`] if the index must be made from the
/// staged volumes first.
pub(super) fn add_without_waiting(
    context: &Context<'_>,
    target: &TargetLookup<'_>,
) -> Result<(), Cause> {
    let deadline = Deadline::after(std::time::Duration::ZERO);
    if !context.state.has_target(target)?
        && context.crust.may_hold_volumes()?
        && !context.state.has_index()?
    {
        return Err(Cause::Staging(StagingError::WouldWait));
    }
    add(context, target, deadline)
}

/// Adds the target paths of all staged volumes. Entries that an earlier version or a CSI driver wrote aren't indexed
/// yet. Writes nothing if all of them are indexed.
pub(super) fn add_all(
    context: &Context<'_>,
    found: &[SurveyedVolume],
    deadline: Deadline,
) -> Result<(), Cause> {
    let targets = found.iter().filter_map(SurveyedVolume::target);
    let lookups: Vec<TargetLookup<'_>> = targets.map(TargetPath::look_up).collect();
    if lookups.is_empty() || (context.state.has_index()? && has_all(context, &lookups)?) {
        return Ok(());
    }
    let _lock = context.state.lock(LockName::Targets, deadline)?;
    Ok(context.state.add_targets(&lookups)?)
}

fn has_all(context: &Context<'_>, targets: &[TargetLookup<'_>]) -> Result<bool, Cause> {
    for target in targets {
        if !context.state.has_target(target)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a path without an entry from the index. The caller must hold the path's lock, because a stage adds the path
/// to the index before it writes the entry.
pub(super) fn remove(context: &Context<'_>, path: &TargetPath) -> Result<(), Cause> {
    if path.csi_volume().is_some() {
        return Ok(());
    }
    let _lock = context.state.lock(LockName::Targets, context.deadline)?;
    Ok(context.state.remove_target(path)?)
}
