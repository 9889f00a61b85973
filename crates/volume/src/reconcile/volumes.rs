//! Reconciles staged volumes: observes each one, decides which parts of it are stale, and removes these under its lock.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crust_state::crust::{Completeness, SurveyedVolume};
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{BackingKey, Digest, MountInfo, Process, ProcessState, TargetPath};
use rustix::fs::stat;

use super::decide::{DeviceState, ObservedVolume, Pods, VolumePart, find_stray_user};
use super::report::{RemovalDecision, StateItem};
use super::target_directory;
use super::{ReconcileMode, ReconcilePass};
use crate::context::Context;
use crate::error::Cause;
use crate::mount_source::open_staged;
use crate::overview::users_with_state;
use crate::target_index;
use crate::unstage::device_holder;
use crust_blockfs::device::{self, DeviceError};

/// The facts of a pass that the decisions about all volumes depend on.
pub(super) struct PassFacts<'a> {
    pub(super) pods: &'a Pods,
    pub(super) owners: &'a [OwnerEntry],
    /// The program of this runtime. A `runtime-cli` that names it belongs to this runtime.
    pub(super) runtime: &'a Path,
}

/// A volume in a device's list of owners.
pub(super) struct OwnerEntry {
    pub(super) backing: BackingKey,
    pub(super) volume: TargetPath,
    /// False for a list from an earlier boot, when the number may have belonged to another device.
    pub(super) is_of_this_boot: bool,
}

/// Returns the reason why a lock is stale; `None` if it may be needed.
fn stale_reason(
    name: LockName,
    staged: &BTreeSet<Digest>,
) -> Result<Option<&'static str>, DeviceError> {
    Ok(match name {
        LockName::Volume(volume) if !staged.contains(&volume) => {
            Some("the lock of a volume that isn't staged")
        }
        LockName::Device(device) if !device::exists(device)? => {
            Some("the lock of a device that no longer exists")
        }
        _ => None,
    })
}

impl ReconcilePass<'_> {
    /// Reconciles all volumes until the deadline.
    pub(super) fn volumes(&mut self, facts: &PassFacts<'_>) {
        let found = match self.context.crust.survey() {
            Ok(found) => found,
            Err(error) => {
                let item = StateItem::Directory(self.context.config.crust_root.clone());
                return self.failed(item, &error);
            }
        };
        for found in &found {
            if self.context.deadline.is_expired() {
                self.leave(
                    volume_item(found),
                    "it wasn't checked before the deadline".into(),
                );
            } else {
                self.volume(found, facts);
            }
        }
        self.locks(&found.iter().flat_map(SurveyedVolume::digests).collect());
        self.index();
    }

    /// Adds the volumes that are still staged to the node's index of target paths.
    fn index(&mut self) {
        if self.mode == ReconcileMode::DryRun {
            return;
        }
        let found = self.context.crust.survey().map_err(Cause::from);
        let added = found
            .and_then(|found| target_index::add_all(&self.context, &found, self.context.deadline));
        if let Err(cause) = added {
            self.failed(
                StateItem::Directory(self.context.config.state_dir.clone()),
                &cause,
            );
        }
    }

    /// Removes stale locks: those of volumes whose unstage was killed, and those of devices that are gone. The holder
    /// of a lock may remove its file even if the volume has been staged or the device attached meanwhile, because the
    /// next process creates it again.
    ///
    /// The number of locks isn't limited. Those that aren't checked before the deadline are left to the next pass.
    fn locks(&mut self, staged: &BTreeSet<Digest>) {
        let state = self.context.state;
        let visited = state.visit_locks(|name, path| {
            if self.context.deadline.is_expired() {
                let directory = path.parent().unwrap_or(&path).to_owned();
                let reason = "not all locks were checked before the deadline; hint: run it again";
                self.leave(StateItem::Directory(directory), reason.into());
                return ControlFlow::Break(());
            }
            self.lock(name, path, staged);
            ControlFlow::Continue(())
        });
        if let Err(error) = visited {
            self.failed(StateItem::Directory(error.path().to_owned()), &error);
        }
    }

    /// Removes a lock, unless it may be needed.
    fn lock(&mut self, name: LockName, path: PathBuf, staged: &BTreeSet<Digest>) {
        let reason = match stale_reason(name, staged) {
            Ok(Some(reason)) => reason,
            Ok(None) => return,
            Err(error) => return self.leave(StateItem::Leftover(path), error.to_string()),
        };
        let lock = match self.try_lock(name) {
            Ok(Some(lock)) => lock,
            Ok(None) | Err(LockError::Held { .. }) => return,
            Err(error) => return self.leave(StateItem::Leftover(path), error.to_string()),
        };
        self.settle(
            StateItem::Leftover(path),
            RemovalDecision::Remove(reason.into()),
            |context| {
                context.state.retire(lock, name)?;
                Ok(true)
            },
        );
    }

    fn volume(&mut self, found: &SurveyedVolume, facts: &PassFacts<'_>) {
        // Observed without the lock first, because most volumes have no stale parts.
        match self.observe(found, facts) {
            Ok(Some(observed)) if !observed.decide().is_empty() => {}
            Ok(_) => return,
            Err(reason) => return self.unreadable(volume_item(found), reason),
        }
        let lock = match self.try_lock(LockName::Volume(found.digest)) {
            Ok(lock) => lock,
            Err(LockError::Held { holder, .. }) => {
                let reason = format!("its lock is held by {holder}");
                return self.leave(volume_item(found), reason);
            }
            Err(error) => return self.leave(volume_item(found), error.to_string()),
        };
        let current = match self.context.crust.survey_again(found) {
            Ok(Some(current)) => current,
            Ok(None) => {
                // The volume was unstaged, and its lock's file removed: taking the lock created a new one.
                if let (ReconcileMode::Remove, Some(lock)) = (self.mode, lock) {
                    let name = LockName::Volume(found.digest);
                    if let Err(error) = self.context.state.retire(lock, name) {
                        self.leave(volume_item(found), error.to_string());
                    }
                }
                return;
            }
            Err(error) => return self.unreadable(volume_item(found), error.to_string()),
        };
        // Read again, because a sandbox may have been created meanwhile.
        let pods = Pods::new(&self.context.state.sandbox_records());
        let facts = &PassFacts {
            pods: &pods,
            ..*facts
        };
        match self.observe(&current, facts) {
            Ok(Some(observed)) => self.settle_volume(current, &observed, lock),
            Ok(None) => {}
            Err(reason) => self.unreadable(volume_item(&current), reason),
        }
    }

    /// Carries out the decisions about a volume under its lock. In a dry run `lock` can be `None`.
    fn settle_volume(
        &mut self,
        found: SurveyedVolume,
        observed: &ObservedVolume,
        lock: Option<Lock>,
    ) {
        let Some(target) = found.target().cloned() else {
            return;
        };
        let mut removed = Vec::new();
        for (part, decision) in observed.decide() {
            match decision {
                RemovalDecision::Remove(reason) => removed.push((part, reason)),
                RemovalDecision::Leave(reason) => self.leave(part_item(&target, part), reason),
            }
        }
        if removed.is_empty() {
            return;
        }
        let parts: Vec<&VolumePart> = removed.iter().map(|(part, _)| part).collect();
        let is_whole = parts
            .iter()
            .any(|part| matches!(part, VolumePart::Half | VolumePart::All));
        let result = match (self.mode, lock) {
            (ReconcileMode::Remove, Some(lock)) if is_whole => remove(&self.context, &found, lock),
            (ReconcileMode::Remove, _) => remove_parts(found, &parts),
            (ReconcileMode::DryRun, _) => {
                self.removed_in_dry_run
                    .extend(is_whole.then(|| target.clone()));
                Ok(())
            }
        };
        let result = result.map_err(|cause| cause.to_string());
        for (part, reason) in removed {
            self.report_removal(part_item(&target, part), reason, result.clone());
        }
    }

    /// Observes a volume. Returns `None` if no decision has to be made about it, and an error if its state is unknown.
    fn observe(
        &self,
        found: &SurveyedVolume,
        facts: &PassFacts<'_>,
    ) -> Result<Option<ObservedVolume>, String> {
        let Some((target, info)) = staged(found)? else {
            return Ok(None);
        };
        let record = error_text(found.record())?;
        let other_records = error_text(found.other_records())?;
        let presence = error_text(found.presence())?;
        let cli = error_text(found.runtime_cli())?;
        let mut observed = ObservedVolume {
            is_half: found.completeness == Completeness::TargetEntryMissing,
            is_kata_layout: found.is_kata_layout,
            users: record.as_ref().map(users_with_state),
            has_stray_record: !other_records.is_empty(),
            stray_user: find_stray_user(record.as_ref(), &other_records, Process::is_alive),
            cli: cli.map(|cli| (cli.clone(), is_same_file(&cli, facts.runtime))),
            pod: facts.pods.pod_state(target),
            target: target_directory::examine(target, presence.as_ref(), self.context.config),
            devices: None,
        };
        if observed.needs_devices() {
            let (context, owners) = (&self.context, facts.owners);
            observed.devices = Some(devices_state(context, self.mode, target, info, owners));
        }
        Ok(Some(observed))
    }
}

/// Removes all entries of a volume, and its locks.
fn remove(context: &Context<'_>, found: &SurveyedVolume, lock: Lock) -> Result<(), Cause> {
    let paths = found
        .target()
        .map(|target| context.crust.volume_paths(target));
    context.crust.remove(found)?;
    context.state.retire(lock, LockName::Volume(found.digest))?;
    if let Some(paths) = paths {
        context.forget_unstaged(&paths);
    }
    Ok(())
}

/// Removes parts of a volume under its lock. The remaining record is written to all of the volume's entries.
fn remove_parts(found: SurveyedVolume, parts: &[&VolumePart]) -> Result<(), Cause> {
    let record = found.record()?;
    let Some(volume) = found.into_volume()? else {
        return Ok(());
    };
    let keeps_record = |part: &&VolumePart| matches!(part, VolumePart::User(_) | VolumePart::Copy);
    if !parts.iter().all(keeps_record) {
        return Ok(volume.clear_users()?);
    }
    let Some(mut record) = record else {
        return Ok(());
    };
    let is_removed = |process: &_| {
        let mut parts = parts.iter();
        parts.any(|part| matches!(part, VolumePart::User(user) if user.process == *process))
    };
    record.retain_live(|process| !is_removed(process));
    Ok(volume.write_record(&record)?)
}

fn part_item(target: &TargetPath, part: VolumePart) -> StateItem {
    let volume = target.clone();
    match part {
        VolumePart::User(user) => StateItem::User { volume, user },
        VolumePart::Record => StateItem::Record(volume),
        VolumePart::Copy => StateItem::Copy(volume),
        VolumePart::RuntimeCli(cli) => StateItem::RuntimeCli { volume, cli },
        VolumePart::Half => StateItem::Half(volume),
        VolumePart::All => StateItem::Volume(volume),
    }
}

fn volume_item(found: &SurveyedVolume) -> StateItem {
    match found.target() {
        Some(target) => StateItem::Volume(target.clone()),
        None => StateItem::Entry(found.entry_path().to_owned()),
    }
}

fn is_same_file(path: &Path, program: &Path) -> bool {
    let identity = |path| stat(path).map(|it| (it.st_dev, it.st_ino)).ok();
    identity(path).is_some_and(|it| identity(program) == Some(it))
}

/// Returns the target path and metadata of a volume; `None` if they are unknown and no decision depends on them.
fn staged(found: &SurveyedVolume) -> Result<Option<(&TargetPath, &MountInfo)>, String> {
    match &found.info {
        Ok(info) => Ok(info.target_path.as_ref().map(|target| (target, info))),
        Err(_) if found.is_kata_layout => Ok(None),
        Err(_) if found.lacks_target_path() && !has_dead_users(found)? => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn error_text<T>(result: Result<T, impl Display>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

fn has_dead_users(found: &SurveyedVolume) -> Result<bool, String> {
    let record = error_text(found.record())?;
    let users = record.as_ref().map_or(Vec::new(), users_with_state);
    Ok(users
        .iter()
        .any(|(_, process_state)| *process_state != ProcessState::Alive))
}

/// Returns whether the devices of a volume without live users are free: those that it has been mounted from since it
/// was staged, and the staged one.
fn devices_state(
    context: &Context<'_>,
    mode: ReconcileMode,
    target: &TargetPath,
    staged: &MountInfo,
    owners: &[OwnerEntry],
) -> DeviceState {
    let owners = owners
        .iter()
        .filter(|owner| owner.volume == *target && owner.is_of_this_boot);
    let mut backings: Vec<BackingKey> = owners.map(|owner| owner.backing).collect();
    match open_staged(staged) {
        Ok(source) => backings.push(source.backing().key()),
        Err(Cause::Device(error @ DeviceError::Call { .. })) => {
            return DeviceState::Held(error.to_string());
        }
        // The device doesn't exist, and so isn't in use.
        Err(_) => {}
    }
    let mut states = backings
        .into_iter()
        .map(|backing| device_state(context, mode, target, backing));
    let held = states.find(|state| *state != DeviceState::Free);
    held.unwrap_or(DeviceState::Free)
}

/// Returns whether a device of a volume without live users is free. Opening a device that hangs blocks, so no device is
/// opened after the deadline.
pub(super) fn device_state(
    context: &Context<'_>,
    mode: ReconcileMode,
    target: &TargetPath,
    backing: BackingKey,
) -> DeviceState {
    if context.deadline.is_expired() {
        return DeviceState::Held("its device wasn't checked before the deadline".into());
    }
    match device_holder(context, target, backing, |name| {
        mode.lock(context.state, name)
    }) {
        Ok(None) => DeviceState::Free,
        Ok(Some(holder)) => DeviceState::Held(holder),
        Err(cause) => DeviceState::Held(cause.to_string()),
    }
}
