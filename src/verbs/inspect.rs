//! `inspect`: shows all details of one volume.

use std::ffi::OsString;
use std::fmt::{self, Display};

use crust_blockfs::resize::SizeLimits;
use crust_state::{Backing, MountInfo};
use crust_volume::{
    BackingDescription, BlockDevice, Context, FindError, Inspection, ObservedUser,
    ShareDescription, find_volume, inspect as inspect_volume, parse_query,
};
use serde_json::{Value, json};

use super::output::{CommandOutput, OutputFormat, Printable, Table};
use super::{Failure, list, path_json};
use crate::users;

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct InspectArgs {
    /// The volume's target path, the digest of that path or its first 12 digits, the volume's
    /// device as a path or as major:minor, or its share as SERVER:/PATH
    volume: OsString,
    #[command(flatten)]
    format: OutputFormat,
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
        }
    }
}

pub(super) fn inspect(
    context: &Context<'_>,
    arguments: &InspectArgs,
) -> Result<CommandOutput, Failure> {
    let text = arguments.volume.to_string_lossy();
    let Some(query) = parse_query(&text) else {
        return Err(Failure::invalid(format!(
            "{text:?} is not a target path, a digest, a device or a share; hint: give an absolute path without `..`, 12 \
             to 64 hex digits in lower case, major:minor, or server:/path"
        )));
    };
    let inspection = inspect_volume(context, find_volume(context, &query)?);
    Ok(CommandOutput::new(
        &InspectedVolume(inspection),
        arguments.format,
    ))
}

struct InspectedVolume(Inspection);

impl Printable for InspectedVolume {
    fn json(&self) -> Value {
        let Inspection { overview, .. } = &self.0;
        let mut object = list::volume_json(overview);
        let entries: Vec<Value> = overview.found.entry_paths().iter().map(path_json).collect();
        let users: Vec<Value> = self.0.users.iter().map(user_json).collect();
        let record = self.0.record.as_ref().ok().and_then(Option::as_ref);
        let more = json!({
            "resolved_path": self.0.resolved.as_ref().map(path_json),
            "resolved_digest": self.0.resolved.as_ref().map(|path| path.digest().to_string()),
            "entries": entries,
            "mount_info": overview.info().map(mount_info_json),
            "record": record,
            "record_error": self.0.record.as_ref().err(),
            "users": users,
            "runtime_cli": self.0.runtime_cli.as_ref().ok().and_then(Option::as_ref).map(path_json),
            "runtime_cli_error": self.0.runtime_cli.as_ref().err(),
            "pending_resize": self.0.pending_resize.as_ref().ok().copied().flatten().map(limits_json),
            "pending_resize_error": self.0.pending_resize.as_ref().err(),
            "block_device": self.block_device().map(block_device_json),
            "block_device_error": self.0.backing.as_ref().err(),
            "share": self.share().map(share_json),
            "unstage_obstacles": self.0.obstacles,
        });
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    }
}

impl InspectedVolume {
    fn block_device(&self) -> Option<&BlockDevice> {
        match &self.0.backing {
            Ok(BackingDescription::Device(device)) => Some(device),
            _ => None,
        }
    }

    fn share(&self) -> Option<&ShareDescription> {
        match &self.0.backing {
            Ok(BackingDescription::Share(share)) => Some(share),
            _ => None,
        }
    }
}

/// Returns the volume's metadata in the form of `mountInfo.json`.
fn mount_info_json(info: &MountInfo) -> Value {
    serde_json::from_slice(&info.to_json()).unwrap_or_default()
}

fn limits_json(limits: SizeLimits) -> Value {
    json!({"min_bytes": limits.min(), "max_bytes": limits.max().unwrap_or_default()})
}

fn user_json(observed: &ObservedUser) -> Value {
    let mut object = users::user_json(&observed.user);
    let mounts =
        observed.user.mounts.iter().map(
            |mount| json!({"destination": path_json(&mount.destination), "source": mount.source}),
        );
    let (state, reason) = users::describe_process_state(&observed.process_state);
    object["life"] = state.into();
    object["why"] = reason.into();
    object["mounts"] = mounts.collect();
    object["mounted_at"] = observed.mount_points.iter().map(path_json).collect();
    object
}

fn block_device_json(device: &BlockDevice) -> Value {
    let owners = device.owners.iter().map(|(device, volume)| {
        json!({"device_number": device.to_string(), "volume": volume.volume_name(), "target_path": path_json(volume)})
    });
    let owners: Vec<Value> = owners.collect();
    json!({
        "path": path_json(&device.path),
        "number": device.number.to_string(),
        "disk_seq": device.disk_seq.map(|seq| seq.to_string()),
        "size": device.size,
        "read_only": device.is_read_only,
        "owners": owners,
    })
}

fn share_json(share: &ShareDescription) -> Value {
    let owners = share
        .owners
        .iter()
        .map(|volume| json!({"volume": volume.volume_name(), "target_path": path_json(volume)}));
    json!({
        "source": share.share.to_string(),
        "server_addresses": share.addresses,
        "owners": owners.collect::<Vec<Value>>(),
    })
}

impl Display for InspectedVolume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::default();
        self.add_staged_rows(&mut table);
        self.add_use_rows(&mut table);
        self.add_backing_rows(&mut table);
        for obstacle in &self.0.obstacles {
            table.row(["unstage", &format!("would fail, or wait: {obstacle}")]);
        }
        table.fmt(formatter)
    }
}

/// Returns the text of a value, or the reason why it can't be read. Returns `None` if there is no value.
fn value_or_error<T>(
    result: &Result<Option<T>, String>,
    show: impl FnOnce(&T) -> String,
) -> Option<String> {
    match result {
        Ok(value) => value.as_ref().map(show),
        Err(error) => Some(error.clone()),
    }
}

impl InspectedVolume {
    fn add_staged_rows(&self, table: &mut Table) {
        let Inspection {
            overview, resolved, ..
        } = &self.0;
        if let Some(target) = overview.target() {
            table.row(["volume", &target.volume_name()]);
            if let Some(pod) = target.pod_uid() {
                table.row(["pod", &pod.to_string_lossy()]);
            }
            table.row(["target path", &target.to_string()]);
        }
        table.row(["digest", &overview.found.digest.to_string()]);
        if let Some(resolved) = resolved {
            table.row(["resolved path", &resolved.to_string()]);
            table.row(["its digest", &resolved.digest().to_string()]);
        }
        for path in overview.found.entry_paths() {
            table.row(["entry", &path.display().to_string()]);
        }
        if let Some(info) = overview.info() {
            table.row(["staged", &mount_info_json(info).to_string()]);
        }
        let (state, reason) = list::describe_state(&overview.state);
        let reason = reason
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        table.row(["state", &format!("{state}{reason}")]);
    }

    fn add_use_rows(&self, table: &mut Table) {
        let record = value_or_error(&self.0.record, |record| {
            let exclusive = if record.exclusive {
                ", for one pod"
            } else {
                ""
            };
            format!(
                "{} on {}{exclusive}",
                record.superblock,
                on_backing(&record.backing)
            )
        });
        if let Some(record) = record {
            table.row(["mounted as", &record]);
        }
        for ObservedUser {
            user,
            process_state,
            mount_points,
        } in &self.0.users
        {
            let (state, reason) = users::describe_process_state(process_state);
            let reason = if reason.is_empty() {
                reason
            } else {
                format!(": {reason}")
            };
            table.row([
                "user",
                &format!("{user}, process {}, {state}{reason}", user.process.pid),
            ]);
            for mount in &user.mounts {
                let destination = mount.destination.display();
                table.row(["", &format!("at {destination} from {}", mount.source)]);
            }
            for mount_point in mount_points {
                table.row(["", &format!("mounted at {}", mount_point.display())]);
            }
        }
        if let Some(cli) = value_or_error(&self.0.runtime_cli, |cli| cli.display().to_string()) {
            table.row(["runtime-cli", &cli]);
        }
        let resize = value_or_error(&self.0.pending_resize, |limits| match limits.max() {
            Some(max) => format!(
                "to {} bytes, at most {max}, with the next mount",
                limits.min()
            ),
            None => format!("to {} bytes, with the next mount", limits.min()),
        });
        if let Some(resize) = resize {
            table.row(["resize", &resize]);
        }
    }

    fn add_backing_rows(&self, table: &mut Table) {
        let device = match &self.0.backing {
            Ok(BackingDescription::Device(device)) => device,
            Ok(BackingDescription::Share(share)) => return add_share_rows(table, share),
            Err(error) => return table.row(["device", error]),
        };
        let read_only = if device.is_read_only {
            ", read-only"
        } else {
            ""
        };
        let (path, number) = (device.path.display(), device.number);
        table.row([
            "device",
            &format!("{path} ({number}), {} bytes{read_only}", device.size),
        ]);
        for (number, volume) in &device.owners {
            table.row(["owner", &format!("volume {volume} on {number}")]);
        }
    }
}

fn add_share_rows(table: &mut Table, share: &ShareDescription) {
    table.row(["share", &share.share.to_string()]);
    for address in &share.addresses {
        table.row(["server", address]);
    }
    for volume in &share.owners {
        table.row(["owner", &format!("volume {volume}")]);
    }
}

fn on_backing(backing: &Backing) -> String {
    match backing {
        Backing::Device(number) => format!("device {number}"),
        Backing::Share(share) => share.to_string(),
    }
}
