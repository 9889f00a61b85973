//! Finds and removes stale state: killed processes, hooks that weren't called, and a boot of the node leave it. What is
//! on disk is uncertain until it is checked against the kernel. What can't be checked stays, and is reported.

mod decide;
mod records;
mod report;
mod target_directory;
mod volumes;

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_state::StateDirectory;
use crust_state::files::FileError;
use crust_state::lock::{Lock, LockError, LockName};

use super::context::Context;
use super::error::Cause;
use decide::Pods;
use report::Verdict;
pub use report::{ItemReport, ReconcileReport, StateItem};
use volumes::PassContext;

/// Whether what nobody needs is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileMode {
    /// It is.
    Remove,
    /// It is only told, and nothing is changed.
    DryRun,
}

impl ReconcileMode {
    /// Takes a lock at once or not at all. A look makes none that isn't there.
    pub(super) fn lock(
        self,
        state: &StateDirectory,
        name: LockName,
    ) -> Result<Option<Lock>, LockError> {
        match self {
            Self::DryRun => state.try_lock_existing(name),
            Self::Remove => state.lock(name, Deadline::after(Duration::ZERO)).map(Some),
        }
    }
}

/// The error of a sweep: the items that couldn't be removed. All others are.
#[derive(Debug, thiserror::Error)]
pub struct SweepError(Vec<ItemReport>);

impl fmt::Display for SweepError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, ItemReport { item, reason }) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(formatter, "{separator}{item}: {reason}")?;
        }
        Ok(())
    }
}

impl ReconcileReport {
    /// Fails where something that nobody needs couldn't be removed, or looked at.
    pub fn ok(self) -> Result<(), SweepError> {
        if self.failed.is_empty() {
            return Ok(());
        }
        Err(SweepError(self.failed))
    }
}

/// Removes what is soon found: records of bundles that are gone, because a `delete` comes before its
/// bundle's end, and of sandboxes whose end no hook saw. Goes on after an error.
pub fn sweep(context: &Context<'_>) -> Result<(), SweepError> {
    let mut pass = Pass::new(context, ReconcileMode::Remove);
    pass.bundles();
    let sandboxes = context.state.sandbox_records();
    // Only a driver that stages for Kata takes an entry away and leaves that behind each time.
    if context.config.kata_layout {
        let owners = pass.owners();
        pass.sweep_owners(&owners, &Pods::of(&sandboxes));
    }
    pass.sandboxes(sandboxes);
    pass.report.ok()
}

/// Looks at everything, for which a pod's end has no time: also at users whose end no hook saw, at
/// entries that lost their twin or whose target directory is gone, and at what was left half made.
/// Waits for no volume that somebody is at. `runtime` is this runtime's program, by whatever name.
#[must_use]
pub fn reconcile(context: &Context<'_>, mode: ReconcileMode, runtime: &Path) -> ReconcileReport {
    let mut pass = Pass::new(context, mode);
    pass.leftovers();
    pass.bundles();
    let sandboxes = context.state.sandbox_records();
    let (pods, owners) = (Pods::of(&sandboxes), pass.owners());
    pass.sandboxes(sandboxes);
    pass.volumes(&PassContext {
        pods: &pods,
        owners: &owners,
        runtime,
    });
    pass.sweep_owners(&owners, &pods);
    pass.tell_unlisted();
    pass.report
}

/// One look, and what came of it.
struct Pass<'a> {
    context: Context<'a>,
    mode: ReconcileMode,
    report: ReconcileReport,
    /// Volumes whose entries would be removed, in a dry run.
    gone: Vec<crust_state::TargetPath>,
    /// The directories that couldn't be searched for leftovers.
    unlisted: Vec<FileError>,
}

impl<'a> Pass<'a> {
    fn new(context: &Context<'a>, mode: ReconcileMode) -> Self {
        Self {
            context: *context,
            mode,
            report: ReconcileReport::default(),
            gone: Vec::new(),
            unlisted: Vec::new(),
        }
    }

    /// Does what was decided. `remove` says whether it did: what somebody needs by now isn't told.
    fn settle(
        &mut self,
        item: StateItem,
        verdict: Verdict,
        remove: impl FnOnce(&Context<'_>) -> Result<bool, Cause>,
    ) {
        let reason = match verdict {
            Verdict::Leave(reason) => return self.leave(item, reason),
            Verdict::Remove(reason) => reason,
        };
        let done = match self.mode {
            ReconcileMode::Remove => remove(&self.context),
            ReconcileMode::DryRun => Ok(true),
        };
        match done {
            Ok(false) => {}
            Ok(true) => self.settled(item, reason, Ok(())),
            Err(cause) => self.settled(item, reason, Err(cause.to_string())),
        }
    }

    fn settled(&mut self, item: StateItem, reason: String, done: Result<(), String>) {
        match done {
            Ok(()) => {
                if self.mode == ReconcileMode::Remove {
                    tracing::info!("removed: {item}: {reason}");
                }
                self.report.removed.push(ItemReport { item, reason });
            }
            Err(error) => self.failed(item, &error),
        }
    }

    fn leave(&mut self, item: StateItem, reason: String) {
        tracing::debug!("left: {item}: {reason}");
        self.report.left.push(ItemReport { item, reason });
    }

    /// Left, and somebody has to see to it.
    fn unreadable(&mut self, item: StateItem, reason: String) {
        tracing::warn!("{reason}");
        self.report.left.push(ItemReport { item, reason });
    }

    fn failed(&mut self, item: StateItem, error: &dyn Display) {
        let reason = error.to_string();
        self.report.failed.push(ItemReport { item, reason });
    }

    /// Takes a lock that is had at once; whoever has it does what is to be done, or the next time.
    fn take(&self, name: LockName) -> Result<Option<Lock>, LockError> {
        self.mode.lock(self.context.state, name)
    }

    /// Takes a lock that nobody holds for long; for a look none.
    fn wait_for(&self, name: LockName) -> Result<Option<Lock>, String> {
        let lock = match self.mode {
            ReconcileMode::DryRun => return Ok(None),
            ReconcileMode::Remove => self.context.state.lock(name, self.context.deadline),
        };
        lock.map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;
