//! Decides whether state is stale. The decisions are pure functions of state that was read before.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use crust_state::bundle::ConfigAbsence;
use crust_state::record::{User, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::{Records, StateError};
use crust_state::{EndReason, Process, ProcessState, TargetPath};

use super::report::RemovalDecision::{self, Leave, Remove};
use super::target_directory::TargetState;

/// Whether the pod of a target path has a live sandbox, in which the volume may be mounted again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodState {
    Alive,
    Gone,
    /// It is unknown whether the pod has a live sandbox. Contains the reason.
    Unknown(String),
}

/// Whether a volume's devices are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeviceState {
    /// The devices have no users, or only recorded users of other volumes.
    Free,
    /// A device may be in use for the volume. Contains the user of the device, or the reason why it is unknown.
    Held(String),
}

/// Decides about the record of a bundle whose config was rewritten. `record` is the file name of the record, and
/// `config` says whether the bundle's config exists.
pub(super) fn bundle(
    record: &str,
    config: io::Result<bool>,
    absence: impl FnOnce() -> ConfigAbsence,
) -> Option<RemovalDecision> {
    let absence = match config {
        Ok(true) => return None,
        Ok(false) => absence(),
        Err(error) => return Some(Leave(format!("stat config.json: {error}"))),
    };
    Some(match absence {
        ConfigAbsence::Removed => Remove("its config.json is gone".into()),
        ConfigAbsence::NotMounted => Leave(
            "its config.json and the file system that held it are missing; hint: check that the \
             file system is mounted, also in this mount namespace"
                .into(),
        ),
        ConfigAbsence::OtherBoot => Leave(format!(
            "its config.json existed in an earlier boot of the node, and its file system may not be \
             mounted yet; hint: if it is mounted, remove bundles/{record} from the state directory"
        )),
    })
}

/// Decides about the record of a process.
pub(super) fn process(process_state: &ProcessState) -> Option<RemovalDecision> {
    match process_state {
        ProcessState::Alive => None,
        ProcessState::Ended(end) => Some(Remove(end.to_string())),
        ProcessState::Unknown(reason) => Some(Leave(reason.clone())),
    }
}

/// Decides about a volume in a device's list of owners. `has_entry` says whether the volume is staged.
///
/// Without an entry the volume has no record, but an unstage waits for all devices that list it as an owner. So it
/// stays on the list while its device is held, because a user whose record was lost may have it mounted.
pub(super) fn owner(
    is_of_this_boot: bool,
    has_entry: Result<bool, String>,
    pod: PodState,
    device: impl FnOnce() -> DeviceState,
) -> Option<RemovalDecision> {
    if !is_of_this_boot {
        return Some(Remove(EndReason::Rebooted.to_string()));
    }
    match (has_entry, pod) {
        (Ok(true), _) | (Ok(false), PodState::Alive) => None,
        (Ok(false), PodState::Gone) => Some(match device() {
            DeviceState::Free => Remove("the volume isn't staged any more".into()),
            DeviceState::Held(reason) => Leave(reason),
        }),
        (Ok(false), PodState::Unknown(reason)) | (Err(reason), _) => Some(Leave(reason)),
    }
}

/// Finds a user that may be alive and is only in a record other than the authoritative one. A volume with two entries
/// has a record in each; the one in the entry of the target path is authoritative.
pub(super) fn find_stray_user(
    authoritative: Option<&VolumeRecord>,
    others: &[VolumeRecord],
    is_alive: impl Fn(&Process) -> bool,
) -> Option<User> {
    let known_users = authoritative.map_or(&[][..], |record| &record.users);
    let is_known = |user: &User| {
        known_users
            .iter()
            .any(|known| known.process == user.process)
    };
    let mut users = others.iter().flat_map(|record| &record.users);
    let stray = users.find(|user| !is_known(user) && is_alive(&user.process));
    stray.cloned()
}

#[derive(Debug, Clone)]
pub(super) struct ObservedVolume {
    /// Whether only the entry of the resolved path exists.
    pub(super) is_half: bool,
    /// Whether the entry is in Kata's layout. The CSI driver removes such an entry itself.
    pub(super) is_kata_layout: bool,
    /// The recorded users, each with whether it is alive; `None` without a record.
    pub(super) users: Option<Vec<(User, ProcessState)>>,
    /// A user that may be alive and is only in another record: see [`find_stray_user`].
    pub(super) stray_user: Option<User>,
    /// Whether the volume has a record that differs from the authoritative one.
    pub(super) has_stray_record: bool,
    /// The program in `runtime-cli`, and whether it is this runtime.
    pub(super) cli: Option<(PathBuf, bool)>,
    /// The pod that the target path names.
    pub(super) pod: PodState,
    pub(super) target: TargetState,
    /// `None` if the devices weren't checked, because no decision depends on them: see
    /// [`ObservedVolume::needs_devices`].
    pub(super) devices: Option<DeviceState>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VolumePart {
    User(User),
    /// All records and the `runtime-cli`.
    Record,
    /// A record that differs from the authoritative one.
    Copy,
    RuntimeCli(PathBuf),
    /// The entry of the resolved path, without the entry of the target path.
    Half,
    /// All entries.
    All,
}

impl ObservedVolume {
    fn is_in_use(&self) -> bool {
        let users = self.users.iter().flatten();
        self.stray_user.is_some()
            || users
                .clone()
                .any(|(_, process_state)| !matches!(process_state, ProcessState::Ended(_)))
    }

    fn has_record(&self) -> bool {
        self.users.is_some() || self.has_stray_record
    }

    /// Returns true if a decision depends on whether the volume's devices are in use.
    pub(super) fn needs_devices(&self) -> bool {
        let is_gone =
            matches!(self.target, TargetState::Gone) && !self.is_half && !self.is_kata_layout;
        !self.is_in_use() && (is_gone || (self.cli.is_some() && !self.has_record()))
    }

    /// Decides which parts are stale. Parts that are in use are left out.
    pub(super) fn decide(&self) -> Vec<(VolumePart, RemovalDecision)> {
        let users = self.users.iter().flatten();
        let users = users.filter_map(|(user, process_state)| {
            let decision = process(process_state)?;
            Some((VolumePart::User(user.clone()), decision))
        });
        let mut parts: Vec<(VolumePart, RemovalDecision)> = users.collect();
        if let Some(user) = &self.stray_user {
            let reason =
                format!("one of the volume's two entries names {user}, the other one doesn't");
            parts.push((VolumePart::Record, Leave(reason)));
        }
        if self.is_in_use() {
            // Removing a user writes all copies of the record, so an outdated copy needn't be removed separately.
            parts.extend(self.decide_copy().filter(|_| !parts.iter().any(is_removed)));
            return parts;
        }
        let cli = self.decide_unrecorded_cli();
        let may_have_other_user = matches!(&cli, Some((_, Leave(_))));
        parts.extend(cli);
        let entries = self.decide_entries().filter(|_| !may_have_other_user);
        if self.has_record() && !matches!(&entries, Some((_, Remove(_)))) {
            let reason = "none of its users is alive";
            parts.push((VolumePart::Record, Remove(reason.into())));
        }
        parts.extend(entries);
        parts
    }

    /// Decides about a copy of a record in use.
    fn decide_copy(&self) -> Option<(VolumePart, RemovalDecision)> {
        let is_outdated = self.has_stray_record && self.stray_user.is_none();
        let reason = "it differs from the authoritative record in the volume's other entry";
        is_outdated.then(|| (VolumePart::Copy, Remove(reason.into())))
    }

    /// Decides about a `runtime-cli` without a record. Other runtimes that follow the protocol keep records of their
    /// own, and may use the device in a virtual machine, which can't be seen from here.
    fn decide_unrecorded_cli(&self) -> Option<(VolumePart, RemovalDecision)> {
        let (cli, is_this_runtime) = self.cli.as_ref().filter(|_| !self.has_record())?;
        let decision = match &self.devices {
            Some(DeviceState::Free) if *is_this_runtime => {
                Remove("it has no recorded users, and its device is free".into())
            }
            Some(DeviceState::Held(reason)) if *is_this_runtime => Leave(reason.clone()),
            _ => Leave("no record says who uses it, and it may be another runtime's".into()),
        };
        Some((VolumePart::RuntimeCli(cli.clone()), decision))
    }

    /// Decides about the entries of a volume without live users.
    fn decide_entries(&self) -> Option<(VolumePart, RemovalDecision)> {
        let part = if self.is_half {
            VolumePart::Half
        } else {
            VolumePart::All
        };
        let reason = match &self.target {
            _ if self.is_half => "the entry of its target path is gone, and it has no live users",
            _ if self.is_kata_layout => return None,
            TargetState::Present | TargetState::NotYetCreated => return None,
            TargetState::Gone => "its target directory is gone, and it has no live users",
            TargetState::Unknown(unknown) => {
                return (self.pod != PodState::Alive).then(|| (part, Leave(unknown.clone())));
            }
        };
        let decision = match (&self.pod, &self.devices) {
            // kubelet doesn't publish the volume again when it creates a new sandbox for the pod (KEP-2857, story 5).
            (PodState::Alive, _) => return None,
            (PodState::Unknown(unknown), _) => Leave(unknown.clone()),
            (PodState::Gone, Some(DeviceState::Free)) => Remove(reason.into()),
            (PodState::Gone, None) if self.is_half => Remove(reason.into()),
            (PodState::Gone, Some(DeviceState::Held(holder))) => {
                Leave(format!("{reason}, but {holder}"))
            }
            (PodState::Gone, None) => Leave("its device wasn't checked".into()),
        };
        Some((part, decision))
    }
}

fn is_removed((_, decision): &(VolumePart, RemovalDecision)) -> bool {
    matches!(decision, Remove(_))
}

/// The pods of a node whose sandboxes are recorded.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// The uids of pods with a live sandbox.
    live: Vec<String>,
    /// The uids of pods for which it is unknown whether the sandbox is alive, each with the reason. `None` means any
    /// pod, because a record can't be read.
    unknown: Vec<(Option<String>, String)>,
}

impl Pods {
    pub(super) fn new(records: &Result<Records<String, SandboxRecord>, StateError>) -> Self {
        let mut pods = Self::default();
        let records = match records {
            Ok(records) => records,
            Err(error) => {
                pods.unknown.push((None, error.to_string()));
                return pods;
            }
        };
        for (_, record) in records {
            match record {
                Ok(record) => pods.add(record),
                Err(error) => pods.unknown.push((None, error.to_string())),
            }
        }
        pods
    }

    fn add(&mut self, record: &SandboxRecord) {
        match record.process.state() {
            ProcessState::Alive => self.live.push(record.pod_uid.clone()),
            ProcessState::Ended(_) => {}
            ProcessState::Unknown(reason) => {
                self.unknown.push((Some(record.pod_uid.clone()), reason));
            }
        }
    }

    /// Returns the state of the pod that a target path names. `Gone` if the path names no pod, because then the volume
    /// only has recorded users.
    pub(super) fn pod_state(&self, target: &TargetPath) -> PodState {
        let Some(uid) = target.pod_uid() else {
            return PodState::Gone;
        };
        if self.live.iter().any(|live| OsStr::new(live) == uid) {
            return PodState::Alive;
        }
        let matches_uid =
            |other: &Option<String>| other.as_ref().is_none_or(|other| OsStr::new(other) == uid);
        let unknown = self.unknown.iter().find(|(other, _)| matches_uid(other));
        match unknown {
            Some((_, reason)) => PodState::Unknown(format!("its pod may have a sandbox: {reason}")),
            None => PodState::Gone,
        }
    }
}

#[cfg(test)]
mod tests;
