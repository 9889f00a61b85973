//! The runtime's own records: of bundles, of sandboxes, of devices; and what was being written.

use crust_state::Digest;
use crust_state::files::{FileError, Leftover, Making};
use crust_state::lock::LockName;
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::{Records, StateError};

use super::Pass;
use super::decide;
use super::finding::{Thing, Verdict};
use super::pods::Pods;
use super::volumes::{self, Owner};

impl Pass<'_> {
    /// A `delete` comes before its bundle's end, so that no hook can remove the record.
    pub(super) fn bundles(&mut self) {
        let records = match self.context.state.bundle_records() {
            Ok(records) => records,
            Err(error) => return self.failed(self.directory("bundles"), &error),
        };
        for (name, record) in records {
            match record {
                Ok(record) => {
                    if let Some(verdict) = decide::bundle(record.config.try_exists()) {
                        let remove =
                            |context: &super::Context<'_>| Ok(context.state.remove_bundle(name)?);
                        self.settle(Thing::Bundle(record.config), verdict, remove);
                    }
                }
                Err(error) => self.unreadable(self.bundle(name), error.to_string()),
            }
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
                    self.unreadable(Thing::Sandbox { id, pod_uid }, error.to_string());
                }
            }
        }
    }

    fn sandbox(&mut self, record: &SandboxRecord) {
        let Some(verdict) = decide::process(&record.process.life()) else {
            return;
        };
        let (id, pod_uid) = (record.id.clone(), Some(record.pod_uid.clone()));
        self.settle(Thing::Sandbox { id, pod_uid }, verdict, |context| {
            // Another one of this id may have come meanwhile.
            if context.state.sandbox(&record.id)?.as_ref() == Some(record) {
                context.state.remove_sandbox(&record.id)?;
            }
            Ok(())
        });
    }

    /// The volumes on devices' lists.
    pub(super) fn owners(&mut self) -> Vec<Owner> {
        let state = self.context.state;
        let devices = match state.owned_devices() {
            Ok(devices) => devices,
            Err(error) => {
                self.failed(self.directory("owners"), &error);
                return Vec::new();
            }
        };
        let mut owners = Vec::new();
        for device in devices {
            let both = || {
                Ok::<_, StateError>((state.owners_of(device)?, state.earlier_owners_of(device)?))
            };
            match both() {
                Ok((now, earlier)) => {
                    let now = now.into_iter().map(|volume| (volume, true));
                    let all = now.chain(earlier.into_iter().map(|volume| (volume, false)));
                    owners.extend(all.map(|(volume, is_of_this_boot)| Owner {
                        device,
                        volume,
                        is_of_this_boot,
                    }));
                }
                Err(error) => {
                    let volume = None;
                    self.unreadable(Thing::Owner { device, volume }, error.to_string());
                }
            }
        }
        owners
    }

    /// Those whose volume nobody can have: an unstage was killed, a driver that stages for Kata took
    /// the entry away itself, or the node has booted.
    pub(super) fn sweep_owners(&mut self, owners: &[Owner], pods: &Pods) {
        let judged = owners.iter();
        let judged = judged.filter_map(|owner| Some((owner, self.judge(owner, pods)?)));
        let judged: Vec<_> = judged.collect();
        if judged.is_empty() {
            return;
        }
        // In a dry run for nothing: lists are replaced whole.
        let _lock = match self.wait_for(LockName::Owners) {
            Ok(lock) => lock,
            Err(why) => return self.leave(self.directory("owners"), why),
        };
        for (owner, verdict) in judged {
            let (device, volume) = (owner.device, Some(owner.volume.clone()));
            // The lock isn't held while a device is looked at; what has been staged since stays.
            if owner.is_of_this_boot && self.has_entry(owner) == Ok(true) {
                continue;
            }
            self.settle(Thing::Owner { device, volume }, verdict, |context| {
                Ok(context.state.remove_owner(device, &owner.volume)?)
            });
        }
    }

    fn judge(&self, owner: &Owner, pods: &Pods) -> Option<Verdict> {
        let (device, volume) = (owner.device, &owner.volume);
        let look = || volumes::device(&self.context, volume, device);
        let (has_entry, pod) = (self.has_entry(owner), pods.of_target(volume));
        decide::owner(owner.is_of_this_boot, has_entry, pod, look)
    }

    fn has_entry(&self, owner: &Owner) -> Result<bool, String> {
        let has_entry = self.context.crust.has_entry(&owner.volume);
        let has_entry = has_entry.map_err(|error| error.to_string())?;
        Ok(has_entry && !self.gone.contains(&owner.volume))
    }

    /// What was being made or removed.
    pub(super) fn leftovers(&mut self) {
        match self.context.crust.leftovers() {
            Ok((leftovers, errors)) => {
                self.settle_leftovers(leftovers);
                for error in errors {
                    unlisted(&error);
                }
            }
            Err(error) => unlisted(&error),
        }
        match self.context.state.leftovers() {
            Ok(leftovers) => self.settle_leftovers(leftovers),
            Err(error) => unlisted(&error),
        }
    }

    fn settle_leftovers(&mut self, leftovers: Vec<Leftover>) {
        for leftover in leftovers {
            let verdict = match leftover.making() {
                Making::UnderWay => continue,
                Making::Over(why) => Verdict::Remove(why.clone()),
                Making::Unsure(why) => Verdict::Leave(why.clone()),
            };
            self.settle(Thing::Leftover(leftover.path()), verdict, |_| {
                Ok(leftover.remove()?)
            });
        }
    }

    fn bundle(&self, name: Digest) -> Thing {
        let directory = self.context.config.state_dir.join("bundles");
        Thing::Bundle(directory.join(format!("{name}.json")))
    }

    fn directory(&self, name: &str) -> Thing {
        Thing::Directory(self.context.config.state_dir.join(name))
    }
}

/// Its error names it.
fn unlisted(error: &FileError) {
    tracing::warn!("{error}");
}
