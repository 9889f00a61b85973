//! `list`: every staged volume in short.

use std::fmt::{self, Display};

use crust_state::TargetPath;
use crust_state::record::User;
use crust_volume::{Context, VolumeOverview, VolumeState, overviews};
use serde_json::{Value, json};

use super::answer::{Answer, Form, Report, Table};
use super::{Failure, shown};
use crate::users;

pub(super) fn list(context: &Context<'_>, form: Form) -> Result<Answer, Failure> {
    let overviews = overviews(context).map_err(|error| Failure::internal(&error))?;
    Ok(Answer::new(&Volumes(overviews), form))
}

struct Volumes(Vec<VolumeOverview>);

impl Report for Volumes {
    fn json(&self) -> Value {
        let volumes: Vec<Value> = self.0.iter().map(object).collect();
        json!({"volumes": volumes})
    }
}

impl Display for Volumes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::default();
        table.row(["VOLUME", "POD", "DEVICE", "FSTYPE", "STATE", "USERS"]);
        let all: Vec<&User> = self.0.iter().flat_map(|volume| &volume.users).collect();
        for volume in &self.0 {
            let (state, why) = state(&volume.state);
            let users = volume.users.iter();
            let users = users
                .map(|user| format!("{} {}", users::kind_name(user), users::short_id(user, &all)));
            let mut details: Vec<String> = users.collect();
            details.extend(why.map(str::to_owned));
            table.row([
                name(volume),
                pod(volume).unwrap_or("-".into()),
                device(volume),
                volume.info().map_or("-", |info| &info.fstype).to_owned(),
                state.to_owned(),
                details.join(", "),
            ]);
        }
        table.fmt(formatter)
    }
}

/// The volume's name; where its entry doesn't tell one, the entry's.
fn name(volume: &VolumeOverview) -> String {
    match volume.target() {
        Some(target) => target.volume_name(),
        None => volume.found.digest.short(),
    }
}

fn pod(volume: &VolumeOverview) -> Option<String> {
    let uid = volume.target()?.pod_uid()?;
    Some(uid.to_string_lossy().into_owned())
}

fn device(volume: &VolumeOverview) -> String {
    let path = volume.info().map(|info| info.device.display().to_string());
    match (path, volume.device) {
        (Some(path), Some(number)) => format!("{path} ({number})"),
        (Some(path), None) => path,
        (None, Some(number)) => number.to_string(),
        (None, None) => "-".into(),
    }
}

/// In one word, and why where that isn't all.
pub(super) fn state(state: &VolumeState) -> (&'static str, Option<&str>) {
    match state {
        VolumeState::Staged => ("staged", None),
        VolumeState::InUse => ("in use", None),
        VolumeState::Uncertain(why) => ("uncertain", Some(why)),
        VolumeState::Broken(why) => ("broken", Some(why)),
    }
}

/// Returns the fields of a volume that `list` and `inspect` have in common.
pub(super) fn object(volume: &VolumeOverview) -> Value {
    let (state, why) = state(&volume.state);
    let users: Vec<Value> = volume.users.iter().map(users::user_json).collect();
    let info = volume.info();
    json!({
        "volume": volume.target().map(TargetPath::volume_name),
        "pod_uid": pod(volume),
        "target_path": volume.target().map(shown),
        "digest": volume.found.digest.to_string(),
        "layout": if volume.found.is_kata_layout { "kata" } else { "crust" },
        "device": info.map(|info| shown(&info.device)),
        "device_number": volume.device.map(|number| number.to_string()),
        "fstype": info.map(|info| &info.fstype),
        "state": state,
        "why": why,
        "users": users,
    })
}
