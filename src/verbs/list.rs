//! `list`: lists all staged volumes.

use std::fmt::{self, Display};

use crust_state::record::User;
use crust_state::{Backing, TargetPath};
use crust_volume::{Context, VolumeOverview, VolumeState, overviews};
use serde_json::{Value, json};

use super::output::{CommandOutput, OutputFormat, Printable, Table};
use super::{Failure, path_json};
use crate::users;

pub(super) fn list(context: &Context<'_>, format: OutputFormat) -> Result<CommandOutput, Failure> {
    let overviews = overviews(context).map_err(|error| Failure::internal(&error))?;
    Ok(CommandOutput::new(&VolumeList(overviews), format))
}

struct VolumeList(Vec<VolumeOverview>);

impl Printable for VolumeList {
    fn json(&self) -> Value {
        let volumes: Vec<Value> = self.0.iter().map(volume_json).collect();
        json!({"volumes": volumes})
    }
}

impl Display for VolumeList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::default();
        table.row(["VOLUME", "POD", "DEVICE", "FSTYPE", "STATE", "USERS"]);
        let all: Vec<&User> = self.0.iter().flat_map(|volume| &volume.users).collect();
        for volume in &self.0 {
            let (state, reason) = describe_state(&volume.state);
            let users = volume.users.iter();
            let users = users
                .map(|user| format!("{} {}", users::kind_name(user), users::short_id(user, &all)));
            let mut details: Vec<String> = users.collect();
            details.extend(reason.map(str::to_owned));
            table.row([
                volume_name(volume),
                pod_uid(volume).unwrap_or("-".into()),
                device_text(volume),
                volume.info().map_or("-", |info| &info.fstype).to_owned(),
                state.to_owned(),
                details.join(", "),
            ]);
        }
        table.fmt(formatter)
    }
}

/// Returns the volume's name; if its entry can't be read, the short form of the entry's digest.
fn volume_name(volume: &VolumeOverview) -> String {
    match volume.target() {
        Some(target) => target.volume_name(),
        None => volume.found.digest.short(),
    }
}

fn pod_uid(volume: &VolumeOverview) -> Option<String> {
    let uid = volume.target()?.pod_uid()?;
    Some(uid.to_string_lossy().into_owned())
}

fn device_text(volume: &VolumeOverview) -> String {
    let path = volume.info().map(|info| info.device.display().to_string());
    match (path, &volume.backing) {
        (Some(path), Some(Backing::Device(number))) => format!("{path} ({number})"),
        (Some(path), _) => path,
        (None, Some(backing)) => backing.to_string(),
        (None, None) => "-".into(),
    }
}

/// Returns the name of a state, and its reason if it has one.
pub(super) fn describe_state(state: &VolumeState) -> (&'static str, Option<&str>) {
    match state {
        VolumeState::Staged => ("staged", None),
        VolumeState::InUse => ("in use", None),
        VolumeState::Uncertain(reason) => ("uncertain", Some(reason)),
        VolumeState::Broken(reason) => ("broken", Some(reason)),
    }
}

/// Returns the fields of a volume that `list` and `inspect` have in common.
pub(super) fn volume_json(volume: &VolumeOverview) -> Value {
    let (state, reason) = describe_state(&volume.state);
    let users: Vec<Value> = volume.users.iter().map(users::user_json).collect();
    let info = volume.info();
    json!({
        "volume": volume.target().map(TargetPath::volume_name),
        "pod_uid": pod_uid(volume),
        "target_path": volume.target().map(path_json),
        "digest": volume.found.digest.to_string(),
        "layout": if volume.found.is_kata_layout { "kata" } else { "crust" },
        "device": info.map(|info| path_json(&info.device)),
        "device_number": volume.backing.as_ref().and_then(Backing::device).map(|it| it.to_string()),
        "fstype": info.map(|info| &info.fstype),
        "state": state,
        "why": reason,
        "users": users,
    })
}
