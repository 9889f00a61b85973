//! Overviews of the staged volumes and their use, read without changing anything or waiting for a lock.

use crust_state::crust::{Completeness, SurveyedVolume};
use crust_state::files::FileError;
use crust_state::record::{User, VolumeRecord};
use crust_state::{Backing, MountInfo, ProcessState, TargetPath};

use super::context::Context;
use super::mount_source;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeState {
    /// The volume has no users.
    Staged,
    /// The volume has a live user.
    InUse,
    /// It is unknown whether the volume has users. Contains the reason.
    Uncertain(String),
    /// The volume's entry in the crust directory can't be used. Contains the reason.
    Broken(String),
}

#[derive(Debug)]
pub struct VolumeOverview {
    /// The volume's entries.
    pub found: SurveyedVolume,
    /// The device or share that the volume is mounted from, or the staged one if it isn't in use. `None` if that is
    /// unknown.
    pub backing: Option<Backing>,
    pub state: VolumeState,
    /// The users that are alive, or may be.
    pub users: Vec<User>,
}

/// Returns an overview of each staged volume, in the order of their target paths. Volumes whose target path is unknown
/// come last.
pub fn overviews(context: &Context<'_>) -> Result<Vec<VolumeOverview>, FileError> {
    let found = context.crust.survey()?.into_iter();
    let mut overviews: Vec<VolumeOverview> = found.map(VolumeOverview::new).collect();
    overviews.sort_by_key(|it| (it.target().is_none(), it.target().cloned()));
    Ok(overviews)
}

impl VolumeOverview {
    fn new(found: SurveyedVolume) -> Self {
        let record = found.record().map_err(|error| error.to_string());
        let (backing, users) = match &record {
            Ok(Some(record)) => (Some(record.backing.clone()), users_with_state(record)),
            _ => (None, Vec::new()),
        };
        let cli = found.runtime_cli();
        let has_cli = !matches!(cli, Ok(None));
        let states: Vec<&ProcessState> = users
            .iter()
            .map(|(_, process_state)| process_state)
            .collect();
        let state = defect(&found).map_or_else(
            || state(record.as_ref().map(Option::is_some), &states, has_cli),
            VolumeState::Broken,
        );
        let users: Vec<User> = users
            .into_iter()
            .filter(may_be_live)
            .map(|(user, _)| user)
            .collect();
        let mut overview = Self {
            backing: backing.filter(|_| !users.is_empty()),
            users,
            state,
            found,
        };
        if overview.backing.is_none() {
            overview.read_staged_backing();
        }
        overview
    }

    /// Sets the backing of a volume that isn't in use, and checks that it is the one that was staged.
    fn read_staged_backing(&mut self) {
        let Ok(info) = &self.found.info else { return };
        let Ok(source) = mount_source::open_staged(info) else {
            return;
        };
        self.backing = Some(source.backing());
        if self.state == VolumeState::Staged
            && let Err(cause) = source.check_staged(info)
        {
            self.state = VolumeState::Broken(cause.to_string());
        }
    }

    /// Returns the target path that the volume was staged by; `None` if it is unknown.
    #[must_use]
    pub fn target(&self) -> Option<&TargetPath> {
        self.found.target()
    }

    /// Returns the staged metadata; `None` if it can't be read.
    #[must_use]
    pub fn info(&self) -> Option<&MountInfo> {
        self.found.info.as_ref().ok()
    }
}

/// Returns the recorded users, each with whether its process is alive.
pub(super) fn users_with_state(record: &VolumeRecord) -> Vec<(User, ProcessState)> {
    let users = record.users.iter();
    users
        .map(|user| (user.clone(), user.process.state()))
        .collect()
}

pub(super) fn may_be_live((_, process_state): &(User, ProcessState)) -> bool {
    !matches!(process_state, ProcessState::Ended(_))
}

/// Returns the defect for which a container with this volume would be refused; `None` if its entries are sound.
pub(super) fn defect(found: &SurveyedVolume) -> Option<String> {
    match (&found.info, &found.completeness) {
        (Err(_), _) if found.lacks_target_path() => None,
        (Err(error), _) => Some(error.to_string()),
        (Ok(_), Completeness::Complete) => None,
        (Ok(_), Completeness::TargetEntryMissing) => Some(
            "the entry of its target path is missing, and only the entry of the resolved path exists; \
             hint: stage it again, or let `runcrust crust gc` remove it"
                .into(),
        ),
        (Ok(_), Completeness::ResolvedEntryMissing(missing)) => Some(format!(
            "{} is missing: the volume is only half staged; hint: stage it again",
            missing.display()
        )),
    }
}

/// Returns the state of a volume whose entries are sound. `has_record` says whether the volume has a record; it is an
/// error if the record can't be read.
pub(super) fn state(
    has_record: Result<bool, &String>,
    users: &[&ProcessState],
    has_cli: bool,
) -> VolumeState {
    let has_record = match has_record {
        Ok(has_record) => has_record,
        Err(error) => return VolumeState::Uncertain(error.clone()),
    };
    if users.contains(&&ProcessState::Alive) {
        return VolumeState::InUse;
    }
    let mut unknown = users
        .iter()
        .filter_map(|process_state| match process_state {
            ProcessState::Unknown(reason) => Some(reason.clone()),
            _ => None,
        });
    match unknown.next() {
        Some(reason) => VolumeState::Uncertain(reason),
        None if has_cli && !has_record => VolumeState::Uncertain(
            "it has a runtime-cli, but no record of the user that it belongs to".into(),
        ),
        None => VolumeState::Staged,
    }
}

#[cfg(test)]
mod tests {
    use crust_state::EndReason;

    use super::*;

    #[test]
    fn a_live_user_means_in_use_and_an_unknown_one_means_uncertain() {
        let dead = &ProcessState::Ended(EndReason::Exited(1));
        let unknown = &ProcessState::Unknown("process 7 is in another pid namespace".into());
        for (has_record, users, has_cli, expected) in [
            (Ok(false), &[][..], false, "staged"),
            (Ok(false), &[], true, "uncertain"),
            (Ok(true), &[], true, "staged"),
            (Ok(true), &[dead], true, "staged"),
            (Ok(true), &[dead, unknown], true, "uncertain"),
            (
                Ok(true),
                &[unknown, dead, &ProcessState::Alive],
                false,
                "in use",
            ),
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
                VolumeState::Uncertain(reason) => {
                    assert!(!reason.is_empty());
                    "uncertain"
                }
                VolumeState::Broken(_) => "broken",
            };
            assert_eq!(state, expected, "{has_record:?} {users:?} {has_cli}");
        }
    }
}
