//! Reconciles the runtime's own records of bundles, sandboxes and device owners, and temporary files.

use std::time::Duration;

use crust_state::Digest;
use crust_state::bundle::{BundleRecord, ConfigAbsence};
use crust_state::files::{FileError, Leftover, MakerState};
use crust_state::lock::LockName;
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::{Records, StateError};

use super::ReconcilePass;
use super::decide::{self, Pods};
use super::report::{ReconcileReport, RemovalDecision, StateItem};
use super::volumes::{self, OwnerEntry};
use crust_blockfs::timed_probe::{path_probe, run_probes};

/// The timeout for probing all bundles' file systems. Those that don't answer are probed once more, with the same
/// timeout.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

fn decide_bundle(record: &BundleRecord) -> Option<RemovalDecision> {
    let config = &record.config;
    let location = record.location.as_ref();
    let absence = || location.map_or(ConfigAbsence::Removed, |location| location.absence(config));
    let name = format!("{}.json", BundleRecord::record_name(config));
    decide::bundle(&name, config.try_exists(), absence)
}

/// Decides about all bundles. They are probed with a timeout, because this happens at the end of every container and
/// one bundle on a file system that hangs must not delay it.
fn decide_bundles(records: &[(Digest, BundleRecord)]) -> Vec<Option<RemovalDecision>> {
    let configs = records.iter().map(|(_, record)| path_probe(&record.config));
    let decide = |(record, answer): (&BundleRecord, Option<_>)| {
        let hangs = || RemovalDecision::Leave("its directory's file system doesn't answer".into());
        if answer.is_some() {
            decide_bundle(record)
        } else {
            Some(hangs())
        }
    };
    let records = records.iter().map(|(_, record)| record);
    match run_probes(&configs.collect::<Vec<_>>(), PROBE_TIMEOUT) {
        Ok(answers) => records.zip(answers).map(decide).collect(),
        Err(error) => {
            let reason = format!("it is unknown whether its directory exists: {error}");
            records
                .map(|_| Some(RemovalDecision::Leave(reason.clone())))
                .collect()
        }
    }
}

impl ReconcilePass<'_> {
    /// Removes records of bundles that are gone. No hook can remove them, because a bundle is removed after the
    /// container's `delete`.
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
        let decisions = decide_bundles(&readable);
        for ((name, record), decision) in readable.into_iter().zip(decisions) {
            let Some(decision) = decision else { continue };
            self.settle(StateItem::Bundle(record.config), decision, |context| {
                // The bundle may have been created again and recorded meanwhile.
                let is_stale = |record: &BundleRecord| is_remove(decide_bundle(record).as_ref());
                Ok(context.state.remove_bundle_if(name, is_stale)?)
            });
        }
    }

    /// Removes records of sandboxes that ended without a hook.
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
        let decide = |record: &SandboxRecord| decide::process(&record.process.state());
        let Some(decision) = decide(record) else {
            return;
        };
        let (id, pod_uid) = (record.id.clone(), Some(record.pod_uid.clone()));
        self.settle(StateItem::Sandbox { id, pod_uid }, decision, |context| {
            // Another sandbox with this id may have been recorded meanwhile.
            let is_stale = |record: &SandboxRecord| is_remove(decide(record).as_ref());
            Ok(context.state.remove_sandbox_if(&record.id, is_stale)?)
        });
    }

    /// Reads the volumes in all devices' lists of owners.
    pub(super) fn owners(&mut self) -> Vec<OwnerEntry> {
        let state = self.context.state;
        let backings = match state.backings_with_volumes() {
            Ok(backings) => backings,
            Err(error) => {
                self.failed(self.directory("owners"), &error);
                return Vec::new();
            }
        };
        let mut owners = Vec::new();
        for backing in backings {
            let read_lists = || {
                Ok::<_, StateError>((
                    state.volumes_on(backing)?,
                    state.volumes_before_reboot(backing)?,
                ))
            };
            match read_lists() {
                Ok((now, earlier)) => {
                    let now = now.into_iter().map(|volume| (volume, true));
                    let volumes = now.chain(earlier.into_iter().map(|volume| (volume, false)));
                    owners.extend(volumes.map(|(volume, is_of_this_boot)| OwnerEntry {
                        backing,
                        volume,
                        is_of_this_boot,
                    }));
                }
                Err(error) => {
                    let volume = None;
                    self.unreadable(StateItem::Owner { backing, volume }, error.to_string());
                }
            }
        }
        owners
    }

    /// Removes the owners whose volume can't be in use: an unstage was killed, a driver removed an entry in Kata's
    /// layout itself, or the node was rebooted.
    pub(super) fn sweep_owners(&mut self, owners: &[OwnerEntry], pods: &Pods) {
        let decisions = self.decide_owners(owners, pods);
        if !decisions.is_empty() {
            self.settle_owners(decisions);
        }
    }

    pub(super) fn decide_owners<'o>(
        &self,
        owners: &'o [OwnerEntry],
        pods: &Pods,
    ) -> Vec<(&'o OwnerEntry, RemovalDecision)> {
        let decisions = owners
            .iter()
            .filter_map(|owner| Some((owner, self.decide_owner(owner, pods)?)));
        decisions.collect()
    }

    pub(super) fn settle_owners(&mut self, decisions: Vec<(&OwnerEntry, RemovalDecision)>) {
        // A dry run needs no lock, because the files of the lists are replaced atomically.
        let _lock = match self.wait_for_lock(LockName::Owners) {
            Ok(lock) => lock,
            Err(reason) => return self.leave(self.directory("owners"), reason),
        };
        // All decisions are reviewed before the first removal, because that removes an earlier boot's list as a whole.
        let reviewed = decisions
            .into_iter()
            .filter_map(|(owner, decision)| Some((owner, self.review(owner, decision)?)));
        for (owner, decision) in reviewed.collect::<Vec<_>>() {
            let (backing, volume) = (owner.backing, Some(owner.volume.clone()));
            self.settle(StateItem::Owner { backing, volume }, decision, |context| {
                context.state.remove_volume(backing, &owner.volume)?;
                Ok(true)
            });
        }
    }

    /// Reviews a decision under the owners' lock, which isn't held while devices are read. Returns `None` if the owner
    /// is no longer stale: the volume has been staged, or a list of this boot has replaced the list of an earlier boot.
    fn review(&self, owner: &OwnerEntry, decision: RemovalDecision) -> Option<RemovalDecision> {
        let is_stale = if owner.is_of_this_boot {
            self.has_entry(owner).map(|has_entry| !has_entry)
        } else {
            let earlier = self.context.state.volumes_before_reboot(owner.backing);
            let earlier = earlier.map_err(|error| error.to_string());
            earlier.map(|earlier| earlier.contains(&owner.volume))
        };
        match is_stale {
            Ok(is_stale) => is_stale.then_some(decision),
            Err(reason) => Some(RemovalDecision::Leave(reason)),
        }
    }

    fn decide_owner(&self, owner: &OwnerEntry, pods: &Pods) -> Option<RemovalDecision> {
        let (backing, volume) = (owner.backing, &owner.volume);
        let device_state = || volumes::device_state(&self.context, self.mode, volume, backing);
        let (has_entry, pod) = (self.has_entry(owner), pods.pod_state(volume));
        decide::owner(owner.is_of_this_boot, has_entry, pod, device_state)
    }

    fn has_entry(&self, owner: &OwnerEntry) -> Result<bool, String> {
        let has_entry = self.context.crust.has_entry(&owner.volume);
        let has_entry = has_entry.map_err(|error| error.to_string())?;
        Ok(has_entry && !self.removed_in_dry_run.contains(&owner.volume))
    }

    /// Removes temporary files that processes left behind.
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
        let decision = match leftover.maker_state() {
            MakerState::InProgress => return,
            MakerState::Abandoned(reason) => RemovalDecision::Remove(reason.clone()),
            MakerState::Unknown(reason) => RemovalDecision::Leave(reason.clone()),
        };
        self.settle(StateItem::Leftover(leftover.path()), decision, |_| {
            leftover.remove()?;
            Ok(true)
        });
    }

    /// Reports the directories that couldn't be listed, unless they are in the report already.
    pub(super) fn report_unlisted(&mut self) {
        for error in std::mem::take(&mut self.unlisted) {
            let path = error.path().to_owned();
            let [entry, directory] =
                [StateItem::Entry, StateItem::Directory].map(|item| item(path.clone()));
            let ReconcileReport { left, failed, .. } = &self.report;
            let mut reported = left.iter().chain(failed);
            if !reported.any(|it| [&entry, &directory].contains(&&it.item)) {
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

fn is_remove(decision: Option<&RemovalDecision>) -> bool {
    matches!(decision, Some(RemovalDecision::Remove(_)))
}
