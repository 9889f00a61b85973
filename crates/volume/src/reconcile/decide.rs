//! Decides whether state is stale, from what was read of it alone. Pure.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use crust_state::bundle::ConfigAbsence;
use crust_state::record::{User, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::{Records, StateError};
use crust_state::{EndReason, Process, ProcessState, TargetPath};

use super::report::Verdict::{self, Leave, Remove};
use super::target_directory::Target;

/// Whether the pod of a target path has a sandbox that it may be mounted in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pod {
    /// It has, and with it the volume may come back.
    Lives,
    /// It hasn't.
    Gone,
    /// It can't be told, and why.
    Unknown(String),
}

/// Whether a volume's devices are let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Devices {
    /// Nobody has them, or others on record.
    Free,
    /// Somebody may have them for the volume, and who, or why that can't be told.
    Held(String),
}

/// A bundle whose config was rewritten. `record` is the name of its record's file.
pub(super) fn bundle(
    record: &str,
    config: io::Result<bool>,
    absence: impl FnOnce() -> ConfigAbsence,
) -> Option<Verdict> {
    let absence = match config {
        Ok(true) => return None,
        Ok(false) => absence(),
        Err(error) => return Some(Leave(format!("stat config.json: {error}"))),
    };
    Some(match absence {
        ConfigAbsence::Removed => Remove("its config.json is gone".into()),
        ConfigAbsence::NotMounted => Leave(
            "the file system that its config.json was on isn't there either; hint: is it mounted, \
             and in this mount namespace?"
                .into(),
        ),
        ConfigAbsence::OtherBoot => Leave(format!(
            "its config.json was there in an earlier boot of the node, and its file system may not be \
             mounted yet; hint: if it is, remove bundles/{record} from the state directory"
        )),
    })
}

/// The record of a process.
pub(super) fn process(life: &ProcessState) -> Option<Verdict> {
    match life {
        ProcessState::Alive => None,
        ProcessState::Ended(end) => Some(Remove(end.to_string())),
        ProcessState::Unknown(why) => Some(Leave(why.clone())),
    }
}

/// A volume on the list of a device. `has_entry`: whether anything is staged for it, or why that can't
/// be told. Without an entry the list leads to no record, but an unstage waits for the device by it:
/// somebody may have it whose entry was lost.
pub(super) fn owner(
    is_of_this_boot: bool,
    has_entry: Result<bool, String>,
    pod: Pod,
    device: impl FnOnce() -> Devices,
) -> Option<Verdict> {
    if !is_of_this_boot {
        return Some(Remove(EndReason::Rebooted.to_string()));
    }
    match (has_entry, pod) {
        (Ok(true), _) | (Ok(false), Pod::Lives) => None,
        (Ok(false), Pod::Gone) => Some(match device() {
            Devices::Free => Remove("nothing is staged for it any more".into()),
            Devices::Held(why) => Leave(why),
        }),
        (Ok(false), Pod::Unknown(why)) | (Err(why), _) => Some(Leave(why)),
    }
}

/// Somebody who may live, and is on one of the records that don't count alone.
pub(super) fn stray(
    counts: Option<&VolumeRecord>,
    others: &[VolumeRecord],
    is_alive: impl Fn(&Process) -> bool,
) -> Option<User> {
    let known = counts.map_or(&[][..], |record| &record.users);
    let is_known = |user: &User| known.iter().any(|known| known.process == user.process);
    let mut users = others.iter().flat_map(|record| &record.users);
    let stray = users.find(|user| !is_known(user) && is_alive(&user.process));
    stray.cloned()
}

/// The observed state of a staged volume.
#[derive(Debug, Clone)]
pub(super) struct ObservedVolume {
    /// It is only half there.
    pub(super) is_half: bool,
    /// The entry is a driver's, that takes it away itself.
    pub(super) is_kata_layout: bool,
    /// The recorded users, and whether they live; `None` without a record.
    pub(super) users: Option<Vec<(User, ProcessState)>>,
    /// See [`stray`].
    pub(super) stray_user: Option<User>,
    /// It has records that say something else than the one which counts.
    pub(super) has_stray_record: bool,
    /// `runtime-cli`, and whether it names this runtime.
    pub(super) cli: Option<(PathBuf, bool)>,
    /// The pod that the target path names.
    pub(super) pod: Pod,
    /// The state of the target directory.
    pub(super) target: Target,
    /// Looked at where something is to be removed that they tell about; see [`ObservedVolume::asks_devices`].
    pub(super) devices: Option<Devices>,
}

/// A part of a volume's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    User(User),
    Record,
    Copy,
    RuntimeCli(PathBuf),
    Half,
    All,
}

impl ObservedVolume {
    fn is_in_use(&self) -> bool {
        let users = self.users.iter().flatten();
        self.stray_user.is_some()
            || users
                .clone()
                .any(|(_, life)| !matches!(life, ProcessState::Ended(_)))
    }

    fn has_record(&self) -> bool {
        self.users.is_some() || self.has_stray_record
    }

    /// Whether it matters if the volume's devices are let go.
    pub(super) fn asks_devices(&self) -> bool {
        let is_gone = matches!(self.target, Target::Gone) && !self.is_half && !self.is_kata_layout;
        !self.is_in_use() && (is_gone || (self.cli.is_some() && !self.has_record()))
    }

    /// Decides which parts are stale. A part that is in use has no verdict.
    pub(super) fn judge(&self) -> Vec<(Part, Verdict)> {
        let users = self.users.iter().flatten();
        let users = users.filter_map(|(user, life)| {
            let verdict = process(life)?;
            Some((Part::User(user.clone()), verdict))
        });
        let mut parts: Vec<(Part, Verdict)> = users.collect();
        if let Some(user) = &self.stray_user {
            let why =
                format!("one of the volume's two entries names {user}, the other one doesn't");
            parts.push((Part::Record, Leave(why)));
        }
        if self.is_in_use() {
            parts.extend(self.copy().filter(|_| !parts.iter().any(is_removed)));
            return parts;
        }
        let cli = self.unclaimed_cli();
        let is_answered = matches!(&cli, Some((_, Leave(_))));
        parts.extend(cli);
        let whole = self.whole().filter(|_| !is_answered);
        if self.has_record() && !matches!(&whole, Some((_, Remove(_)))) {
            parts.push((Part::Record, Remove("nobody on it lives".into())));
        }
        parts.extend(whole);
        parts
    }

    /// A copy of a record that is in use. Where anything is taken off the record, all copies are written.
    fn copy(&self) -> Option<(Part, Verdict)> {
        let is_outdated = self.has_stray_record && self.stray_user.is_none();
        let why = "the other entry's, which counts, says something else";
        is_outdated.then(|| (Part::Copy, Remove(why.into())))
    }

    /// A `runtime-cli` that no record goes with. Other runtimes that keep to the protocol have records
    /// of their own, and volumes in machines whose use of a device nobody sees from here.
    fn unclaimed_cli(&self) -> Option<(Part, Verdict)> {
        let (cli, is_ours) = self.cli.as_ref().filter(|_| !self.has_record())?;
        let verdict = match &self.devices {
            Some(Devices::Free) if *is_ours => {
                Remove("nobody is on record, and its device is free".into())
            }
            Some(Devices::Held(why)) if *is_ours => Leave(why.clone()),
            _ => Leave("no record says whose it is, and it may be another runtime's".into()),
        };
        Some((Part::RuntimeCli(cli.clone()), verdict))
    }

    /// The volume as a whole, of which nobody on record lives.
    fn whole(&self) -> Option<(Part, Verdict)> {
        let part = if self.is_half { Part::Half } else { Part::All };
        let gone = match &self.target {
            _ if self.is_half => "its other half is gone, and nobody has it",
            _ if self.is_kata_layout => return None,
            Target::There | Target::Awaited => return None,
            Target::Gone => "its target directory is gone, and nobody has it",
            Target::Unknown(why) => {
                return (self.pod != Pod::Lives).then(|| (part, Leave(why.clone())));
            }
        };
        let verdict = match (&self.pod, &self.devices) {
            // kubelet doesn't publish again for a sandbox that it makes anew (KEP-2857, story 5).
            (Pod::Lives, _) => return None,
            (Pod::Unknown(why), _) => Leave(why.clone()),
            (Pod::Gone, Some(Devices::Free)) => Remove(gone.into()),
            (Pod::Gone, None) if self.is_half => Remove(gone.into()),
            (Pod::Gone, Some(Devices::Held(why))) => Leave(format!("{gone}, but {why}")),
            (Pod::Gone, None) => Leave("its device wasn't looked at".into()),
        };
        Some((part, verdict))
    }
}

fn is_removed((_, verdict): &(Part, Verdict)) -> bool {
    matches!(verdict, Remove(_))
}

/// The pods of a node, as far as their sandboxes are recorded.
#[derive(Debug, Default)]
pub(super) struct Pods {
    live: Vec<String>,
    /// The pods whose sandbox is unknown, and why; `None` stands for any pod, by a record that can't be read.
    unsure: Vec<(Option<String>, String)>,
}

impl Pods {
    pub(super) fn of(records: &Result<Records<String, SandboxRecord>, StateError>) -> Self {
        let mut pods = Self::default();
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                pods.unsure.push((None, error.to_string()));
                return pods;
            }
        };
        for (_, record) in records {
            match record {
                Ok(record) => pods.add(record),
                Err(error) => pods.unsure.push((None, error.to_string())),
            }
        }
        pods
    }

    fn add(&mut self, record: &SandboxRecord) {
        match record.process.state() {
            ProcessState::Alive => self.live.push(record.pod_uid.clone()),
            ProcessState::Ended(_) => {}
            ProcessState::Unknown(why) => self.unsure.push((Some(record.pod_uid.clone()), why)),
        }
    }

    /// The pod that a target path names. What names none is no pod's, and its users are on record.
    pub(super) fn of_target(&self, target: &TargetPath) -> Pod {
        let Some(uid) = target.pod_uid() else {
            return Pod::Gone;
        };
        if self.live.iter().any(|live| OsStr::new(live) == uid) {
            return Pod::Lives;
        }
        let is_its =
            |whose: &Option<String>| whose.as_ref().is_none_or(|whose| OsStr::new(whose) == uid);
        let unsure = self.unsure.iter().find(|(whose, _)| is_its(whose));
        match unsure {
            Some((_, why)) => Pod::Unknown(format!("its pod may have a sandbox: {why}")),
            None => Pod::Gone,
        }
    }
}

#[cfg(test)]
mod tests;
