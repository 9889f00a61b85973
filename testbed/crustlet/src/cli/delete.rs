//! Implements `crustlet delete`.

use std::time::Duration;

use anyhow::Result;
use crust_proto::crustlet::v1::DeleteRequest;
use crust_state::StatusLine;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use super::args::DeleteArgs;
use super::client::{Client, ClientError};
use super::get::not_found;
use super::io::{print, read_manifest};
use super::resource::Resource;
use super::selection::{Selection, select};
use crate::objects::manifest;
use crate::objects::{Kind, Name};

/// The interval at which the objects are listed while the command waits.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The reason why objects weren't deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeleteError {
    /// The arguments have a kind, but no names.
    #[error("no {} were named; hint: run `crustlet delete {} NAME`", .0.plural_name(), .0.singular_name())]
    NoNames(Resource),
    /// The objects don't come from a manifest.
    #[error("{} cannot be deleted by a command; the agent removes them itself", .0.plural_name())]
    NotDeletable(Resource),
    /// The manifest is invalid.
    #[error("{path}: {source}")]
    Manifest {
        path: String,
        source: manifest::ManifestError,
    },
    #[error("{}", not_found(*.0, std::slice::from_ref(.1)))]
    NotFound(Resource, String),
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Some objects could not be deleted. Contains the error of each.
    #[error("{}", .0.join("; "))]
    Failed(Vec<String>),
    /// The objects still existed when the timeout passed.
    #[error(
        "not deleted after {}: {}; hint: run `crustlet events` to see what they wait for",
        humantime::format_duration(*timeout),
        remaining.join(", ")
    )]
    Timeout {
        remaining: Vec<String>,
        timeout: Duration,
    },
}

struct DeletingObject {
    kind: Kind,
    name: Name,
    /// Distinguishes the object from a later one with the same name. Empty if the object has no UID.
    uid: String,
}

impl DeletingObject {
    fn resource(&self) -> Resource {
        Resource::Object(self.kind)
    }
}

/// Deletes objects. Continues with the other objects if an object can't be deleted.
pub(super) async fn delete(args: &DeleteArgs, client: &Client) -> Result<()> {
    let mut deleting = Vec::new();
    let mut failed = Vec::new();
    for (kind, name) in selected(args)? {
        match start_deletion(args, client, kind, name).await {
            Ok(object) => {
                let (kind, name) = (object.resource().singular_name(), &object.name.name);
                let force = if args.force { "force " } else { "" };
                print(format!("{kind} {name:?} {force}deleted\n"))?;
                deleting.push(object);
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    if args.wait
        && let Err(error) = wait_until_gone(client, deleting, args.timeout).await
    {
        failed.push(error.to_string());
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(DeleteError::Failed(failed).into())
    }
}

fn selected(args: &DeleteArgs) -> Result<Vec<(Kind, Name)>> {
    let mut objects = Vec::new();
    for path in &args.files {
        let text = read_manifest(path)?;
        let manifests = manifest::read(&text).map_err(|source| DeleteError::Manifest {
            path: path.display().to_string(),
            source,
        })?;
        objects.extend(
            manifests
                .into_iter()
                .map(|manifest| (manifest.kind, manifest.name)),
        );
    }
    if !args.files.is_empty() {
        return Ok(objects);
    }
    let named = match select(&args.objects)? {
        Selection::All(resource) => return Err(DeleteError::NoNames(resource).into()),
        Selection::Named(resource, names) => {
            names.into_iter().map(|name| (resource, name)).collect()
        }
        Selection::Mixed(named) => named,
    };
    for (resource, name) in named {
        let Resource::Object(kind) = resource else {
            return Err(DeleteError::NotDeletable(resource).into());
        };
        let namespace = if kind.is_namespaced() {
            args.namespace.namespace.as_str()
        } else {
            ""
        };
        objects.push((kind, Name::new(namespace, &name)));
    }
    Ok(objects)
}

async fn start_deletion(
    args: &DeleteArgs,
    client: &Client,
    kind: Kind,
    name: Name,
) -> Result<DeletingObject, DeleteError> {
    let Some(uid) = find_uid(client, kind, &name).await? else {
        return Err(DeleteError::NotFound(Resource::Object(kind), name.name));
    };
    let request = DeleteRequest {
        kind: kind.as_str().to_owned(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        force: args.force,
        grace_period_seconds: args.grace_period,
    };
    client.delete(request).await?;
    Ok(DeletingObject { kind, name, uid })
}

/// Returns the UID of an object, or an empty string if the object has no UID. `None` if the object doesn't exist.
async fn find_uid(client: &Client, kind: Kind, name: &Name) -> Result<Option<String>, ClientError> {
    let found = client.list(kind.as_str(), &name.namespace, &name.name);
    let found = found.await?;
    let uid = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
    Ok(found.first().map(|object| uid(object).unwrap_or_default()))
}

async fn wait_until_gone(
    client: &Client,
    mut deleting: Vec<DeletingObject>,
    timeout: Option<Duration>,
) -> Result<(), DeleteError> {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = tokio::time::Instant::now();
    let mut status_line = StatusLine::new();
    while !deleting.is_empty() {
        ticks.tick().await;
        let mut remaining = Vec::new();
        for object in deleting {
            // A new object with the same name has another UID.
            let found = find_uid(client, object.kind, &object.name).await?;
            if found.as_ref() == Some(&object.uid) {
                remaining.push(object);
            }
        }
        deleting = remaining;
        if deleting.is_empty() {
            break;
        }
        let remaining = deleting.iter().map(|object| {
            let kind = object.resource().singular_name();
            format!("{kind}/{}", object.name.name)
        });
        let remaining: Vec<String> = remaining.collect();
        let elapsed = started.elapsed();
        match timeout {
            Some(timeout) if elapsed >= timeout => {
                return Err(DeleteError::Timeout { remaining, timeout });
            }
            _ => {}
        }
        let (seconds, remaining) = (elapsed.as_secs(), remaining.join(", "));
        status_line.show(&format!("{seconds}s: not deleted yet: {remaining}"));
    }
    Ok(())
}
