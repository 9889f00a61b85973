//! Keeps the node's index of target paths, by which a create finds a volume that an engine has bound elsewhere.

use crust_blockfs::Deadline;
use crust_state::TargetPath;
use crust_state::crust::SurveyedVolume;
use crust_state::lock::LockName;
use crust_state::target::TargetLookup;

use super::context::Context;
use super::error::{AdmissionError, Cause};

/// Adds a target path to the index, before anything is staged there.
pub(super) fn add(
    context: &Context<'_>,
    target: &TargetLookup<'_>,
    deadline: Deadline,
) -> Result<(), Cause> {
    if context.state.has_target(target)? {
        return Ok(());
    }
    if !context.state.has_index()? {
        // An index of this one alone would hide the others.
        add_all(context, &context.crust.survey()?, deadline)?;
    }
    let _lock = context.state.lock(LockName::Targets, deadline)?;
    Ok(context.state.add_targets(std::slice::from_ref(target))?)
}

/// The same, without waiting for anything: fails where the index has to be made of what is staged.
pub(super) fn add_at_once(context: &Context<'_>, target: &TargetLookup<'_>) -> Result<(), Cause> {
    let at_once = Deadline::after(std::time::Duration::ZERO);
    if !context.state.has_target(target)?
        && context.crust.may_hold_volumes()?
        && !context.state.has_index()?
    {
        return Err(Cause::Admission(AdmissionError::WouldWait));
    }
    add(context, target, at_once)
}

/// Adds everything that is staged: an earlier version staged it, or a CSI driver wrote the entry itself. Nothing
/// is written where all of it is indexed.
pub(super) fn add_all(
    context: &Context<'_>,
    found: &[SurveyedVolume],
    deadline: Deadline,
) -> Result<(), Cause> {
    let targets = found.iter().filter_map(SurveyedVolume::target);
    let looks: Vec<TargetLookup<'_>> = targets.map(TargetPath::look_up).collect();
    if looks.is_empty() || (context.state.has_index()? && has_all(context, &looks)?) {
        return Ok(());
    }
    let _lock = context.state.lock(LockName::Targets, deadline)?;
    Ok(context.state.add_targets(&looks)?)
}

fn has_all(context: &Context<'_>, targets: &[TargetLookup<'_>]) -> Result<bool, Cause> {
    for target in targets {
        if !context.state.has_target(target)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a path that has no entry from the index, where it has one. Under its lock: a stage indexes a path before
/// it writes the entry.
pub(super) fn remove(context: &Context<'_>, path: &TargetPath) -> Result<(), Cause> {
    if path.csi_volume().is_some() {
        return Ok(());
    }
    let _lock = context.state.lock(LockName::Targets, context.deadline)?;
    Ok(context.state.remove_target(path)?)
}
