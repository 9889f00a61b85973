//! Finds and removes stale state. Such state is left behind by a killed process, by a hook that wasn't called, and by a
//! reboot of the node. State on disk is only trusted after it has been checked against the kernel. State that can't be
//! checked is kept and reported.

mod decide;
mod killed_users;
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
use report::RemovalDecision;
pub use report::{ItemReport, ReconcileReport, StateItem};
use volumes::PassFacts;

/// Whether stale state is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReconcileMode {
    /// Stale state is removed.
    Remove,
    /// Stale state is only reported. Nothing on disk is changed.
    DryRun,
}

impl ReconcileMode {
    /// Takes a lock without waiting. A dry run doesn't create the lock's file, and returns `None` if it doesn't exist.
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

/// The error of a sweep: the items that couldn't be removed. All other stale items were removed.
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
    /// Returns an error if a stale item couldn't be removed, or an item couldn't be read.
    pub fn into_result(self) -> Result<(), SweepError> {
        if self.failed.is_empty() {
            return Ok(());
        }
        Err(SweepError(self.failed))
    }
}

/// Removes the stale state that is found quickly: records of bundles that are gone (a bundle is removed after its
/// `delete`), and records of sandboxes that ended without a hook. Continues after an error.
pub fn sweep(context: &Context<'_>) -> Result<(), SweepError> {
    let mut pass = ReconcilePass::new(context, ReconcileMode::Remove);
    pass.bundles();
    let sandboxes = context.state.sandbox_records();
    // A driver that stages in Kata's layout removes the entry itself, and thus leaves a stale owner after each unstage.
    if context.config.kata_layout {
        let owners = pass.owners();
        pass.sweep_owners(&owners, &Pods::new(&sandboxes));
    }
    pass.sandboxes(sandboxes);
    pass.report.into_result()
}

/// Reconciles all state of the node with the processes and devices that exist. This takes too long for the end of a
/// pod.
///
/// In addition to what [`sweep`] removes, it finds users that ended without a hook, entries whose second entry or
/// target directory is missing, and temporary files. It aborts the requests of killed containers to file servers that
/// don't answer. A volume that another process has locked is left. `runtime` is a path of this runtime's program;
/// another path of the same file is recognized.
#[must_use]
pub fn reconcile(context: &Context<'_>, mode: ReconcileMode, runtime: &Path) -> ReconcileReport {
    let mut pass = ReconcilePass::new(context, mode);
    pass.leftovers();
    pass.bundles();
    let sandboxes = context.state.sandbox_records();
    let (pods, owners) = (Pods::new(&sandboxes), pass.owners());
    pass.sandboxes(sandboxes);
    pass.volumes(&PassFacts {
        pods: &pods,
        owners: &owners,
        runtime,
    });
    pass.sweep_owners(&owners, &pods);
    pass.report_unlisted();
    // Last, because it waits for servers.
    pass.killed_users();
    pass.report
}

/// A pass over the state, with its report.
struct ReconcilePass<'a> {
    context: Context<'a>,
    mode: ReconcileMode,
    report: ReconcileReport,
    /// The volumes whose entries a run without `DryRun` would have removed by now.
    removed_in_dry_run: Vec<crust_state::TargetPath>,
    /// The errors of directories that couldn't be searched for temporary files.
    unlisted: Vec<FileError>,
}

impl<'a> ReconcilePass<'a> {
    fn new(context: &Context<'a>, mode: ReconcileMode) -> Self {
        Self {
            context: *context,
            mode,
            report: ReconcileReport::default(),
            removed_in_dry_run: Vec::new(),
            unlisted: Vec::new(),
        }
    }

    /// Carries out a decision about an item and reports it. `remove` returns false if it kept the item because the item
    /// is in use now; this isn't reported.
    fn settle(
        &mut self,
        item: StateItem,
        decision: RemovalDecision,
        remove: impl FnOnce(&Context<'_>) -> Result<bool, Cause>,
    ) {
        let reason = match decision {
            RemovalDecision::Leave(reason) => return self.leave(item, reason),
            RemovalDecision::Remove(reason) => reason,
        };
        let removed = match self.mode {
            ReconcileMode::Remove => remove(&self.context),
            ReconcileMode::DryRun => Ok(true),
        };
        match removed {
            Ok(false) => {}
            Ok(true) => self.report_removal(item, reason, Ok(())),
            Err(cause) => self.report_removal(item, reason, Err(cause.to_string())),
        }
    }

    fn report_removal(&mut self, item: StateItem, reason: String, removed: Result<(), String>) {
        match removed {
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

    /// Reports an unreadable item, which an administrator has to deal with.
    fn unreadable(&mut self, item: StateItem, reason: String) {
        tracing::warn!("{reason}");
        self.report.left.push(ItemReport { item, reason });
    }

    fn failed(&mut self, item: StateItem, error: &dyn Display) {
        let reason = error.to_string();
        self.report.failed.push(ItemReport { item, reason });
    }

    /// Takes a lock without waiting, as [`ReconcileMode::lock`] does. If another process holds it, the item is left to
    /// that process or to the next pass.
    fn try_lock(&self, name: LockName) -> Result<Option<Lock>, LockError> {
        self.mode.lock(self.context.state, name)
    }

    /// Waits for a lock that isn't held for long. A dry run doesn't take it.
    fn wait_for_lock(&self, name: LockName) -> Result<Option<Lock>, String> {
        let lock = match self.mode {
            ReconcileMode::DryRun => return Ok(None),
            ReconcileMode::Remove => self.context.state.lock(name, self.context.deadline),
        };
        lock.map(Some).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests;
