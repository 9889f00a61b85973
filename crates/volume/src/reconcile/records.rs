//! The runtime's own records: of bundles, of sandboxes, of devices; and what was being written.

use std::time::Duration;

use crust_state::Digest;
use crust_state::bundle::{BundleRecord, ConfigAbsence};
use crust_state::files::{FileError, Leftover, MakerState};
use crust_state::lock::LockName;
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::{Records, StateError};

use super::Pass;
use super::decide::{self, Pods};
use super::report::{ReconcileReport, StateItem, Verdict};
use super::volumes::{self, OwnerEntry};
use crust_blockfs::timed_probe::{path_probe, run_probes};

/// For a look at all bundles, and once more for those that hang.
const PATIENCE: Duration = Duration::from_secs(1);

fn look(record: &BundleRecord) -> Option<Verdict> {
    let config = &record.config;
    let place = record.location.as_ref();
    let absence = || place.map_or(ConfigAbsence::Removed, |place| place.absence(config));
    let name = format!("{}.json", BundleRecord::record_name(config));
    decide::bundle(&name, config.try_exists(), absence)
}

/// Every container that ends has them looked at: one on a file system that hangs holds up no other.
fn looked_at(records: &[(Digest, BundleRecord)]) -> Vec<Option<Verdict>> {
    let configs = records.iter().map(|(_, record)| path_probe(&record.config));
    let verdict = |(record, answer): (&BundleRecord, Option<_>)| {
        let hangs = || Verdict::Leave("its directory's file system doesn't answer".into());
        if answer.is_some() {
            look(record)
        } else {
            Some(hangs())
        }
    };
    let records = records.iter().map(|(_, record)| record);
    match run_probes(&configs.collect::<Vec<_>>(), PATIENCE) {
        Ok(answers) => records.zip(answers).map(verdict).collect(),
        Err(unasked) => {
            let why = format!("whether it is there can't be told: {unasked}");
            records.map(|_| Some(Verdict::Leave(why.clone()))).collect()
        }
    }
}

impl Pass<'_> {
    /// A `delete` comes before its bundle's end, so that no hook can remove the record.
    pub(super) fn bundles(&mut self) {
        let records = match self.context.state.bundle_records() {
            Ok(records) => records,
            Err(error) => return self.failed(self.directory("bundles"), &error),
        };
        self.bundle_records(records);
    }

    pub(super) fn bundle_records(&mut self, records: Records<Digest, BundleRecord>) {
        let mut readable = Vec::new();
        for (name, record) in records {
            match record {
                Ok(record) => readable.push((name, record)),
                Err(error) => self.unreadable(self.bundle(name), error.to_string()),
            }
        }
        let verdicts = looked_at(&readable);
        for ((name, record), verdict) in readable.into_iter().zip(verdicts) {
            let Some(verdict) = verdict else { continue };
            self.settle(StateItem::Bundle(record.config), verdict, |context| {
                // It may have been made anew, and written on record, meanwhile.
                let over = |it: &BundleRecord| is_over(look(it).as_ref());
                Ok(context.state.remove_bundle_if(name, over)?)
            });
        }
    }

    /// Sandboxes whose end no hook saw.
    pub(super) fn sandboxes(
        &mut self,
        records: Result<Records<String, SandboxRecord>, StateError>,
    ) {
        let records = match records {
            Ok(records) => records,
            Err(error) => return self.failed(self.directory("sandboxes"), &error),
        };
        for (id, record) in records {
            match record {
                Ok(record) => self.sandbox(&record),
                Err(error) => {
                    let pod_uid = None;
                    self.unreadable(StateItem::Sandbox { id, pod_uid }, error.to_string());
                }
            }
        }
    }

    fn sandbox(&mut self, record: &SandboxRecord) {
        let look = |record: &SandboxRecord| decide::process(&record.process.state());
        let Some(verdict) = look(record) else {
            return;
        };
        let (id, pod_uid) = (record.id.clone(), Some(record.pod_uid.clone()));
        self.settle(StateItem::Sandbox { id, pod_uid }, verdict, |context| {
            // Another one of this id may have come meanwhile.
            let over = |it: &SandboxRecord| is_over(look(it).as_ref());
            Ok(context.state.remove_sandbox_if(&record.id, over)?)
        });
    }

    /// The volumes on devices' lists.
    pub(super) fn owners(&mut self) -> Vec<OwnerEntry> {
        let state = self.context.state;
        let devices = match state.devices_with_volumes() {
            Ok(devices) => devices,
            Err(error) => {
                self.failed(self.directory("owners"), &error);
                return Vec::new();
            }
        };
        let mut owners = Vec::new();
        for device in devices {
            let both = || {
                Ok::<_, StateError>((
                    state.volumes_on_device(device)?,
                    state.volumes_before_reboot(device)?,
                ))
            };
            match both() {
                Ok((now, earlier)) => {
                    let now = now.into_iter().map(|volume| (volume, true));
                    let all = now.chain(earlier.into_iter().map(|volume| (volume, false)));
                    owners.extend(all.map(|(volume, is_of_this_boot)| OwnerEntry {
                        device,
                        volume,
                        is_of_this_boot,
                    }));
                }
                Err(error) => {
                    let volume = None;
                    self.unreadable(StateItem::Owner { device, volume }, error.to_string());
                }
            }
        }
        owners
    }

    /// Those whose volume nobody can have: an unstage was killed, a driver that stages for Kata took
    /// the entry away itself, or the node has booted.
    pub(super) fn sweep_owners(&mut self, owners: &[OwnerEntry], pods: &Pods) {
        let judged = self.judged(owners, pods);
        if !judged.is_empty() {
            self.settle_owners(judged);
        }
    }

    pub(super) fn judged<'o>(
        &self,
        owners: &'o [OwnerEntry],
        pods: &Pods,
    ) -> Vec<(&'o OwnerEntry, Verdict)> {
        let judged = owners.iter();
        let judged = judged.filter_map(|owner| Some((owner, self.judge(owner, pods)?)));
        judged.collect()
    }

    pub(super) fn settle_owners(&mut self, judged: Vec<(&OwnerEntry, Verdict)>) {
        // In a dry run for nothing: lists are replaced whole.
        let _lock = match self.wait_for(LockName::Owners) {
            Ok(lock) => lock,
            Err(why) => return self.leave(self.directory("owners"), why),
        };
        // Before the first goes: a list of an earlier boot goes whole.
        let judged = judged.into_iter();
        let judged =
            judged.filter_map(|(owner, verdict)| Some((owner, self.still(owner, verdict)?)));
        for (owner, verdict) in judged.collect::<Vec<_>>() {
            let (device, volume) = (owner.device, Some(owner.volume.clone()));
            self.settle(StateItem::Owner { device, volume }, verdict, |context| {
                context.state.remove_device_volume(device, &owner.volume)?;
                Ok(true)
            });
        }
    }

    /// Checks a verdict again under the lock, which isn't held while a device is looked at. A volume that was staged
    /// since stays, and so does an owner that was listed anew since, in the place of an earlier boot's.
    fn still(&self, owner: &OwnerEntry, verdict: Verdict) -> Option<Verdict> {
        let is_needless = if owner.is_of_this_boot {
            self.has_entry(owner).map(|has_entry| !has_entry)
        } else {
            let earlier = self.context.state.volumes_before_reboot(owner.device);
            let earlier = earlier.map_err(|error| error.to_string());
            earlier.map(|earlier| earlier.contains(&owner.volume))
        };
        match is_needless {
            Ok(needless) => needless.then_some(verdict),
            Err(why) => Some(Verdict::Leave(why)),
        }
    }

    fn judge(&self, owner: &OwnerEntry, pods: &Pods) -> Option<Verdict> {
        let (device, volume) = (owner.device, &owner.volume);
        let look = || volumes::device(&self.context, self.mode, volume, device);
        let (has_entry, pod) = (self.has_entry(owner), pods.of_target(volume));
        decide::owner(owner.is_of_this_boot, has_entry, pod, look)
    }

    fn has_entry(&self, owner: &OwnerEntry) -> Result<bool, String> {
        let has_entry = self.context.crust.has_entry(&owner.volume);
        let has_entry = has_entry.map_err(|error| error.to_string())?;
        Ok(has_entry && !self.gone.contains(&owner.volume))
    }

    /// Settles the temporary files that processes have left.
    pub(super) fn leftovers(&mut self) {
        let (crust, state) = (self.context.crust, self.context.state);
        let mut settle = |found: Result<Leftover<'_>, FileError>| match found {
            Ok(leftover) => self.leftover(&leftover),
            Err(error) => self.unlisted.push(error),
        };
        crust.leftovers(&mut settle);
        state.leftovers(&mut settle);
    }

    fn leftover(&mut self, leftover: &Leftover<'_>) {
        let verdict = match leftover.maker_state() {
            MakerState::InProgress => return,
            MakerState::Abandoned(why) => Verdict::Remove(why.clone()),
            MakerState::Unknown(why) => Verdict::Leave(why.clone()),
        };
        self.settle(StateItem::Leftover(leftover.path()), verdict, |_| {
            leftover.remove()?;
            Ok(true)
        });
    }

    /// Reports what couldn't be listed, unless the report has it already.
    pub(super) fn tell_unlisted(&mut self) {
        for error in std::mem::take(&mut self.unlisted) {
            let place = error.path().to_owned();
            let [entry, directory] =
                [StateItem::Entry, StateItem::Directory].map(|of| of(place.clone()));
            let ReconcileReport { left, failed, .. } = &self.report;
            let mut told = left.iter().chain(failed);
            if !told.any(|it| [&entry, &directory].contains(&&it.item)) {
                self.failed(directory, &error);
            }
        }
    }

    fn bundle(&self, name: Digest) -> StateItem {
        let directory = self.context.config.state_dir.join("bundles");
        StateItem::Bundle(directory.join(format!("{name}.json")))
    }

    fn directory(&self, name: &str) -> StateItem {
        StateItem::Directory(self.context.config.state_dir.join(name))
    }
}

/// Whether a verdict is to remove the item.
fn is_over(verdict: Option<&Verdict>) -> bool {
    matches!(verdict, Some(Verdict::Remove(_)))
}
