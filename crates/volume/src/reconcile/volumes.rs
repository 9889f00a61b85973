//! Staged volumes: seen as a whole, judged, and what nobody needs of them removed under their locks.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crust_blockfs::DeviceNumber;
use crust_state::crust::{Completeness, SurveyedVolume};
use crust_state::lock::{Lock, LockError, LockName};
use crust_state::{Digest, MountInfo, Process, ProcessState, TargetPath};
use rustix::fs::stat;

use super::decide::{Devices, ObservedVolume, Part, Pods, stray};
use super::report::{StateItem, Verdict};
use super::target_directory;
use super::{Pass, ReconcileMode};
use crate::context::Context;
use crate::error::Cause;
use crate::overview::users_with_life;
use crate::target_index;
use crate::unstage::device_holder;
use crust_blockfs::device::{self, Device, DeviceError};

/// The facts of a pass that the verdict about each volume depends on.
pub(super) struct PassContext<'a> {
    pub(super) pods: &'a Pods,
    pub(super) owners: &'a [OwnerEntry],
    /// The program of this runtime, by which its entries are known.
    pub(super) runtime: &'a Path,
}

/// A volume on a device's list.
pub(super) struct OwnerEntry {
    pub(super) device: DeviceNumber,
    pub(super) volume: TargetPath,
    /// Else the number was another device's.
    pub(super) is_of_this_boot: bool,
}

/// Returns why a lock is stale; `None` where it may be needed.
fn needless(
    name: LockName,
    staged: &BTreeSet<Digest>,
) -> Result<Option<&'static str>, DeviceError> {
    Ok(match name {
        LockName::Volume(volume) if !staged.contains(&volume) => {
            Some("it is a lock, and nothing is staged for it")
        }
        LockName::Device(device) if !device::exists(device)? => {
            Some("it is a lock, and there is no such device any more")
        }
        _ => None,
    })
}

impl Pass<'_> {
    /// Every volume, in the time that there is.
    pub(super) fn volumes(&mut self, around: &PassContext<'_>) {
        let found = match self.context.crust.survey() {
            Ok(found) => found,
            Err(error) => {
                let item = StateItem::Directory(self.context.config.crust_root.clone());
                return self.failed(item, &error);
            }
        };
        for found in &found {
            if self.context.deadline.is_expired() {
                self.leave(item(found), "there was no time to look at it".into());
            } else {
                self.volume(found, around);
            }
        }
        self.locks(&found.iter().flat_map(SurveyedVolume::digests).collect());
        self.index();
    }

    /// Adds what is left to the node's index of target paths.
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

    /// Locks that outlived their volumes, because whoever removed those was killed, and their devices,
    /// which the kernel alone knows to be gone. Whoever holds one may take it away, whatever is staged,
    /// or attached, by then: the next one makes its own.
    ///
    /// There may be any number of them. What there is no time for is left to the next pass.
    fn locks(&mut self, staged: &BTreeSet<Digest>) {
        let state = self.context.state;
        let visited = state.visit_locks(|name, path| {
            if self.context.deadline.is_expired() {
                let directory = path.parent().unwrap_or(&path).to_owned();
                let why = "there was no time to look at all locks; hint: run it again";
                self.leave(StateItem::Directory(directory), why.into());
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
        let why = match needless(name, staged) {
            Ok(Some(why)) => why,
            Ok(None) => return,
            Err(error) => return self.leave(StateItem::Leftover(path), error.to_string()),
        };
        let lock = match self.take(name) {
            Ok(Some(lock)) => lock,
            Ok(None) | Err(LockError::Held { .. }) => return,
            Err(error) => return self.leave(StateItem::Leftover(path), error.to_string()),
        };
        self.settle(
            StateItem::Leftover(path),
            Verdict::Remove(why.into()),
            |context| {
                context.state.retire(lock, name)?;
                Ok(true)
            },
        );
    }

    fn volume(&mut self, found: &SurveyedVolume, around: &PassContext<'_>) {
        // Without the lock, which is mostly for nothing.
        match self.see(found, around) {
            Ok(Some(seen)) if !seen.judge().is_empty() => {}
            Ok(_) => return,
            Err(why) => return self.unreadable(item(found), why),
        }
        let lock = match self.take(LockName::Volume(found.digest)) {
            Ok(lock) => lock,
            Err(LockError::Held { holder, .. }) => {
                return self.leave(item(found), format!("its lock is held by {holder}"));
            }
            Err(error) => return self.leave(item(found), error.to_string()),
        };
        let again = match self.context.crust.survey_again(found) {
            Ok(Some(again)) => again,
            Ok(None) => {
                // The volume has gone, and the file of its lock with it: this one is new.
                if let (ReconcileMode::Remove, Some(lock)) = (self.mode, lock) {
                    let name = LockName::Volume(found.digest);
                    if let Err(error) = self.context.state.retire(lock, name) {
                        self.leave(item(found), error.to_string());
                    }
                }
                return;
            }
            Err(error) => return self.unreadable(item(found), error.to_string()),
        };
        // A sandbox may have come since.
        let pods = Pods::of(&self.context.state.sandbox_records());
        let around = &PassContext {
            pods: &pods,
            ..*around
        };
        match self.see(&again, around) {
            Ok(Some(seen)) => self.settle_volume(again, &seen, lock),
            Ok(None) => {}
            Err(why) => self.unreadable(item(&again), why),
        }
    }

    /// Under its lock, which a look may be without.
    fn settle_volume(&mut self, found: SurveyedVolume, seen: &ObservedVolume, lock: Option<Lock>) {
        let Some(target) = found.target().cloned() else {
            return;
        };
        let mut removed = Vec::new();
        for (part, verdict) in seen.judge() {
            match verdict {
                Verdict::Remove(why) => removed.push((part, why)),
                Verdict::Leave(why) => self.leave(of(&target, part), why),
            }
        }
        if removed.is_empty() {
            return;
        }
        let parts: Vec<&Part> = removed.iter().map(|(part, _)| part).collect();
        let is_whole = parts
            .iter()
            .any(|part| matches!(part, Part::Half | Part::All));
        let done = match (self.mode, lock) {
            (ReconcileMode::Remove, Some(lock)) if is_whole => remove(&self.context, &found, lock),
            (ReconcileMode::Remove, _) => remove_parts(found, &parts),
            (ReconcileMode::DryRun, _) => {
                self.gone.extend(is_whole.then(|| target.clone()));
                Ok(())
            }
        };
        let done = done.map_err(|cause| cause.to_string());
        for (part, why) in removed {
            self.settled(of(&target, part), why, done.clone());
        }
    }

    /// Looks at a volume. `None` where there is nothing to be judged, an error where it can't be.
    fn see(
        &self,
        found: &SurveyedVolume,
        around: &PassContext<'_>,
    ) -> Result<Option<ObservedVolume>, String> {
        let Some((target, info)) = staged(found)? else {
            return Ok(None);
        };
        let record = said(found.record())?;
        let others = said(found.other_records())?;
        let presence = said(found.presence())?;
        let cli = said(found.runtime_cli())?;
        let mut seen = ObservedVolume {
            is_half: found.completeness == Completeness::TargetEntryMissing,
            is_kata_layout: found.is_kata_layout,
            users: record.as_ref().map(users_with_life),
            has_stray_record: !others.is_empty(),
            stray_user: stray(record.as_ref(), &others, Process::is_alive),
            cli: cli.map(|cli| (cli.clone(), is_same(&cli, around.runtime))),
            pod: around.pods.of_target(target),
            target: target_directory::look(target, presence.as_ref(), self.context.config),
            devices: None,
        };
        if seen.asks_devices() {
            let (context, owners) = (&self.context, around.owners);
            seen.devices = Some(devices(context, self.mode, target, &info.device, owners));
        }
        Ok(Some(seen))
    }
}

/// Takes all of a volume away, and with it its lock.
fn remove(context: &Context<'_>, found: &SurveyedVolume, lock: Lock) -> Result<(), Cause> {
    let paths = found.target().map(|target| context.crust.paths_of(target));
    context.crust.remove(found)?;
    context.state.retire(lock, LockName::Volume(found.digest))?;
    if let Some(paths) = paths {
        context.forget_unstaged(&paths);
    }
    Ok(())
}

/// Takes parts away from a volume, under its lock. What stays is in all of its entries then.
fn remove_parts(found: SurveyedVolume, parts: &[&Part]) -> Result<(), Cause> {
    let record = found.record()?;
    let Some(volume) = found.into_volume()? else {
        return Ok(());
    };
    let has_users = |part: &&Part| matches!(part, Part::User(_) | Part::Copy);
    if !parts.iter().all(has_users) {
        return Ok(volume.clear_users()?);
    }
    let Some(mut record) = record else {
        return Ok(());
    };
    let is_removed = |process: &_| {
        let mut parts = parts.iter();
        parts.any(|part| matches!(part, Part::User(user) if user.process == *process))
    };
    record.retain_live(|process| !is_removed(process));
    Ok(volume.write_record(&record)?)
}

fn of(target: &TargetPath, part: Part) -> StateItem {
    let volume = target.clone();
    match part {
        Part::User(user) => StateItem::User { volume, user },
        Part::Record => StateItem::Record(volume),
        Part::Copy => StateItem::Copy(volume),
        Part::RuntimeCli(cli) => StateItem::RuntimeCli { volume, cli },
        Part::Half => StateItem::Half(volume),
        Part::All => StateItem::Volume(volume),
    }
}

/// It as a whole.
fn item(found: &SurveyedVolume) -> StateItem {
    match found.target() {
        Some(target) => StateItem::Volume(target.clone()),
        None => StateItem::Entry(found.entry_path().to_owned()),
    }
}

/// Whether a path leads to a program, by whatever name.
fn is_same(path: &Path, program: &Path) -> bool {
    let which = |path| stat(path).map(|it| (it.st_dev, it.st_ino)).ok();
    which(path).is_some_and(|it| which(program) == Some(it))
}

/// Returns what was staged; `None` if nothing has to be known of it.
fn staged(found: &SurveyedVolume) -> Result<Option<(&TargetPath, &MountInfo)>, String> {
    match &found.info {
        Ok(info) => Ok(info.target_path.as_ref().map(|target| (target, info))),
        Err(_) if found.is_kata_layout => Ok(None),
        Err(_) if found.lacks_target_path() && !has_dead_users(found)? => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

fn said<T>(read: Result<T, impl Display>) -> Result<T, String> {
    read.map_err(|error| error.to_string())
}

fn has_dead_users(found: &SurveyedVolume) -> Result<bool, String> {
    let record = said(found.record())?;
    let users = record.as_ref().map_or(Vec::new(), users_with_life);
    Ok(users.iter().any(|(_, life)| *life != ProcessState::Alive))
}

/// Whether the devices of a volume of which nobody on record lives are let go: those that it was
/// mounted from since it was staged, and the one that is staged.
fn devices(
    context: &Context<'_>,
    mode: ReconcileMode,
    target: &TargetPath,
    staged: &Path,
    owners: &[OwnerEntry],
) -> Devices {
    let owners = owners
        .iter()
        .filter(|owner| owner.volume == *target && owner.is_of_this_boot);
    let mut numbers: Vec<DeviceNumber> = owners.map(|owner| owner.device).collect();
    match Device::open(staged) {
        Ok(device) => numbers.push(device.number()),
        Err(error @ DeviceError::Call { .. }) => return Devices::Held(error.to_string()),
        // Nobody has what isn't there.
        Err(_) => {}
    }
    let looked = numbers
        .into_iter()
        .map(|number| device(context, mode, target, number));
    let held = looked.into_iter().find(|device| *device != Devices::Free);
    held.unwrap_or(Devices::Free)
}

/// One of them. A device that hangs holds up whoever opens it; after the deadline none is opened.
pub(super) fn device(
    context: &Context<'_>,
    mode: ReconcileMode,
    target: &TargetPath,
    number: DeviceNumber,
) -> Devices {
    if context.deadline.is_expired() {
        return Devices::Held("there was no time to look at its device".into());
    }
    match device_holder(context, target, number, |name| {
        mode.lock(context.state, name)
    }) {
        Ok(None) => Devices::Free,
        Ok(Some(who)) => Devices::Held(who),
        Err(cause) => Devices::Held(cause.to_string()),
    }
}
