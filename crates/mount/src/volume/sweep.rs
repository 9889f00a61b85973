//! What nobody can need any more: it was left by those who were killed, or weren't called.

use std::ffi::OsStr;
use std::fmt;
use std::time::Duration;

use crust_state::crust::Half;
use crust_state::files::FileError;
use crust_state::lock::{LockError, LockName};
use crust_state::record::VolumeRecord;
use crust_state::state_directory::StateError;
use crust_state::{Deadline, Process, TargetPath};

use super::context::Context;
use super::error::{Cause, VolumeError};

/// Why something that nobody needs is still there.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// A record can't be read or removed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The lock of the owners wasn't had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It can't be told what is staged.
    #[error(transparent)]
    Staged(#[from] FileError),
}

/// What went wrong; the rest is done.
#[derive(Debug, thiserror::Error)]
pub struct SweepError(Vec<Failure>);

impl fmt::Display for SweepError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, failure) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(formatter, "{separator}{failure}")?;
        }
        Ok(())
    }
}

/// Removes what nobody can need any more and is soon found: records of bundles that are gone,
/// because a `delete` comes before its bundle's end, and of sandboxes whose end no hook saw. Goes on
/// after an error.
pub fn sweep(context: &Context<'_>) -> Result<(), SweepError> {
    all(context, &[sweep_bundles, sweep_sandboxes, sweep_owners])
}

/// Sweeps, and looks at every volume too, for which a pod's end has no time: users whose end no hook
/// saw, entries that lost their twin, and what was left half made. Waits for no volume that somebody
/// is at: the next time comes.
///
/// What is wrong with one volume is logged and no error.
pub fn reconcile(context: &Context<'_>) -> Result<(), SweepError> {
    let swept = sweep(context);
    let looked = all(context, &[sweep_users, sweep_halves]);
    let left = context.crust.remove_leftovers();
    for error in left.into_iter().chain(context.state.remove_leftovers()) {
        tracing::warn!("{error}");
    }
    swept.and(looked)
}

type Part = fn(&Context<'_>) -> Result<(), Failure>;

fn all(context: &Context<'_>, parts: &[Part]) -> Result<(), SweepError> {
    let failures = parts.iter().filter_map(|part| part(context).err());
    let failures: Vec<Failure> = failures.collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(SweepError(failures))
}

fn sweep_bundles(context: &Context<'_>) -> Result<(), Failure> {
    for (name, record) in context.state.bundles()? {
        if matches!(record.config.try_exists(), Ok(false)) {
            context.state.remove_bundle(name)?;
            let config = record.config.display();
            tracing::info!(%config, "record of a bundle removed: the bundle is gone");
        }
    }
    Ok(())
}

fn sweep_sandboxes(context: &Context<'_>) -> Result<(), Failure> {
    for record in context.state.sandboxes()? {
        if !record.process.is_alive() {
            context.state.remove_sandbox(&record.id)?;
            let sandbox = record.id;
            tracing::info!(sandbox, "record of a sandbox removed: it has ended");
        }
    }
    Ok(())
}

/// A driver that stages for Kata never unstages: it takes the entry away itself, once the pod has
/// ended, and the volume stays on its device's list.
fn sweep_owners(context: &Context<'_>) -> Result<(), Failure> {
    if !context.config.kata_layout {
        return Ok(());
    }
    let _lock = context.state.lock(LockName::Owners, context.deadline)?;
    let pods = Pods::of(context)?;
    for device in context.state.owned_devices()? {
        let Ok(volumes) = context.state.owners_of(device) else {
            continue;
        };
        for target in volumes.iter().filter(|target| !pods.live(target)) {
            if !context.crust.has_entry(target)? {
                context.state.remove_owner(device, target)?;
                tracing::info!(volume = %target, %device, "owner removed: its entry is gone");
            }
        }
    }
    Ok(())
}

/// Users that live no more, where nobody ran a hook for them.
fn sweep_users(context: &Context<'_>) -> Result<(), Failure> {
    let now = at_once(context);
    for (target, _) in context.crust.volumes()? {
        if context.deadline.expired() {
            break;
        }
        unless_held(&target, forget_the_dead(&now, &target));
    }
    Ok(())
}

fn forget_the_dead(context: &Context<'_>, target: &TargetPath) -> Result<(), Cause> {
    // Without the lock, which is mostly for nothing.
    if context.crust.record(target)?.as_ref().is_none_or(all_live) {
        return Ok(());
    }
    let Some(locked) = context.lock_volume(target)? else {
        return Ok(());
    };
    let Some(mut record) = locked.volume.record()? else {
        return Ok(());
    };
    if all_live(&record) {
        return Ok(());
    }
    let before = record.users.clone();
    record.forget_the_dead(Process::is_alive);
    locked.volume.write_record(&record)?;
    for user in before.iter().filter(|user| !record.users.contains(user)) {
        tracing::info!(volume = %target, %user, "user forgotten: its process is gone");
    }
    Ok(())
}

fn all_live(record: &VolumeRecord) -> bool {
    record.users.iter().all(|user| user.process.is_alive())
}

/// What a crash between a volume's two entries left, unless a pod may come back to it.
fn sweep_halves(context: &Context<'_>) -> Result<(), Failure> {
    let now = at_once(context);
    let pods = Pods::of(context)?;
    let halves = context.crust.halves()?;
    for half in halves.iter().filter(|half| !pods.live(half.target())) {
        unless_held(half.target(), remove_half(&now, half));
    }
    Ok(())
}

fn remove_half(context: &Context<'_>, half: &Half) -> Result<(), Cause> {
    let target = half.target();
    let _lock = context
        .state
        .lock(LockName::Volume(target.digest()), context.deadline)?;
    if context.crust.remove_half(half)? {
        tracing::info!(volume = %target, "half an entry removed: its other half is gone, and nobody has it");
    }
    Ok(())
}

/// Whoever has the lock now does what is to be done, or the next sweep.
fn unless_held(target: &TargetPath, swept: Result<(), Cause>) {
    match swept {
        Ok(()) | Err(Cause::Lock(LockError::Held { .. })) => {}
        Err(cause) => tracing::warn!("{}", VolumeError::new(target, cause)),
    }
}

/// The same, with no time to wait for a lock.
fn at_once<'a>(context: &Context<'a>) -> Context<'a> {
    Context {
        deadline: Deadline::after(Duration::ZERO),
        ..*context
    }
}

/// The pods that have a sandbox.
struct Pods(Vec<String>);

impl Pods {
    fn of(context: &Context<'_>) -> Result<Self, StateError> {
        let sandboxes = context.state.sandboxes()?.into_iter();
        let live = sandboxes.filter(|sandbox| sandbox.process.is_alive());
        Ok(Self(live.map(|sandbox| sandbox.pod_uid).collect()))
    }

    /// Whether the pod that a target path names is one of them.
    fn live(&self, target: &TargetPath) -> bool {
        let pod = target.pod_uid();
        pod.is_some_and(|pod| self.0.iter().any(|uid| OsStr::new(uid) == pod))
    }
}
