//! Overviews of what is staged and in use, read without changing anything or waiting for anybody.

use crust_blockfs::DeviceNumber;
use crust_state::crust::{FoundVolume, Shape};
use crust_state::files::FileError;
use crust_state::record::{User, VolumeRecord};
use crust_state::{Life, MountInfo, TargetPath};

use super::context::Context;
use super::plan::check_disk;
use crust_blockfs::device::{Device, DeviceFacts};

/// How a volume stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeState {
    /// Nobody has it.
    Staged,
    /// Somebody who lives has it.
    InUse,
    /// It can't be told whether anybody has it, and why.
    Uncertain(String),
    /// It can't be used as it stands there, and why.
    Broken(String),
}

/// A volume in short.
#[derive(Debug)]
pub struct Overview {
    /// The volume's entries.
    pub found: FoundVolume,
    /// Its device's number: where it is in use, what it is mounted from; else what is staged.
    pub device: Option<DeviceNumber>,
    /// How it stands.
    pub state: VolumeState,
    /// The users that live, or may.
    pub users: Vec<User>,
}

/// Every staged volume, in the order of their target paths; those that aren't known come last.
pub fn overviews(context: &Context<'_>) -> Result<Vec<Overview>, FileError> {
    let found = context.crust.survey()?.into_iter();
    let mut all: Vec<Overview> = found.map(Overview::of).collect();
    all.sort_by_key(|it| (it.found.target().is_none(), it.found.target().cloned()));
    Ok(all)
}

impl Overview {
    fn of(found: FoundVolume) -> Self {
        let record = found.record().map_err(|error| error.to_string());
        let (device, users) = match &record {
            Ok(Some(record)) => (Some(record.device), users(record)),
            _ => (None, Vec::new()),
        };
        let cli = found.runtime_cli();
        let has_cli = !matches!(cli, Ok(None));
        let lives: Vec<&Life> = users.iter().map(|(_, life)| life).collect();
        let state = flaw(&found).map_or_else(
            || state(record.as_ref().map(Option::is_some), &lives, has_cli),
            VolumeState::Broken,
        );
        let users: Vec<User> = users
            .into_iter()
            .filter(may_live)
            .map(|(user, _)| user)
            .collect();
        let mut overview = Self {
            device: device.filter(|_| !users.is_empty()),
            users,
            state,
            found,
        };
        if overview.device.is_none() {
            overview.look_at_staged();
        }
        overview
    }

    /// The device that nobody has.
    fn look_at_staged(&mut self) {
        let Ok(info) = &self.found.info else { return };
        let Ok(device) = Device::open(&info.device).map(DeviceFacts::from) else {
            return;
        };
        self.device = Some(device.number());
        if self.state == VolumeState::Staged
            && let Err(cause) = check_disk(info, &device)
        {
            self.state = VolumeState::Broken(cause.to_string());
        }
    }

    /// The target path as it was given.
    #[must_use]
    pub fn target(&self) -> Option<&TargetPath> {
        self.found.target()
    }

    /// Returns what was staged; `None` if that can't be read.
    #[must_use]
    pub fn info(&self) -> Option<&MountInfo> {
        self.found.info.as_ref().ok()
    }
}

/// Returns the recorded users, and whether they live.
pub(super) fn users(record: &VolumeRecord) -> Vec<(User, Life)> {
    let users = record.users.iter();
    users
        .map(|user| (user.clone(), user.process.life()))
        .collect()
}

pub(super) fn may_live((_, life): &(User, Life)) -> bool {
    !matches!(life, Life::Ended(_))
}

/// Returns the reason why a container with this volume would be refused; `None` if it wouldn't.
pub(super) fn flaw(found: &FoundVolume) -> Option<String> {
    match (&found.info, &found.shape) {
        (Err(_), _) if found.is_nameless() => None,
        (Err(error), _) => Some(error.to_string()),
        (Ok(_), Shape::Whole) => None,
        (Ok(_), Shape::Half) => Some(
            "the entry of its target path is gone, and only that of the resolved one is there; \
             hint: stage it again, or let `runcrust crust gc` remove it"
                .into(),
        ),
        (Ok(_), Shape::Lacks(missing)) => Some(format!(
            "{} is missing: the volume is only half staged; hint: stage it again",
            missing.display()
        )),
    }
}

/// `has_record`: whether there is one, or why that can't be read.
pub(super) fn state(
    has_record: Result<bool, &String>,
    users: &[&Life],
    has_cli: bool,
) -> VolumeState {
    let has_record = match has_record {
        Ok(has_record) => has_record,
        Err(why) => return VolumeState::Uncertain(why.clone()),
    };
    if users.contains(&&Life::Lives) {
        return VolumeState::InUse;
    }
    let mut unknown = users.iter().filter_map(|life| match life {
        Life::Unknown(why) => Some(why.clone()),
        _ => None,
    });
    match unknown.next() {
        Some(why) => VolumeState::Uncertain(why),
        None if has_cli && !has_record => VolumeState::Uncertain(
            "its runtime-cli is there, and no record says whose that is".into(),
        ),
        None => VolumeState::Staged,
    }
}

#[cfg(test)]
mod tests {
    use crust_state::End;

    use super::*;

    #[test]
    fn somebody_who_lives_has_it_and_somebody_who_may_live_may() {
        let dead = &Life::Ended(End::Gone(1));
        let unknown = &Life::Unknown("process 7 is of another pid namespace".into());
        for (has_record, users, has_cli, expected) in [
            (Ok(false), &[][..], false, "staged"),
            (Ok(false), &[], true, "uncertain"),
            (Ok(true), &[], true, "staged"),
            (Ok(true), &[dead], true, "staged"),
            (Ok(true), &[dead, unknown], true, "uncertain"),
            (Ok(true), &[unknown, dead, &Life::Lives], false, "in use"),
            (
                Err(&"runcrust.json: EOF".to_owned()),
                &[],
                false,
                "uncertain",
            ),
        ] {
            let state = match state(has_record, users, has_cli) {
                VolumeState::Staged => "staged",
                VolumeState::InUse => "in use",
                VolumeState::Uncertain(why) => {
                    assert!(!why.is_empty());
                    "uncertain"
                }
                VolumeState::Broken(_) => "broken",
            };
            assert_eq!(state, expected, "{has_record:?} {users:?} {has_cli}");
        }
    }
}
