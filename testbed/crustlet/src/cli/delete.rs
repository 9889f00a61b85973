//! `crustlet delete`

use std::time::Duration;

use anyhow::Result;
use crust_proto::crustlet::v1::DeleteRequest;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use super::args::Delete;
use super::client::{Client, ClientError};
use super::get::missing;
use super::io::{print, read_manifest};
use super::resource::Resource;
use super::selection::{Selection, select};
use crate::objects::manifest;
use crate::objects::{Kind, Name};

/// How often it is looked whether they are gone.
const EVERY: Duration = Duration::from_millis(200);

/// Objects that can't be deleted.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeleteError {
    /// A kind alone.
    #[error("which {}? hint: {} NAME", .0.many(), .0.one())]
    Which(Resource),
    /// The object has no manifest.
    #[error("{} are the agent's own to delete", .0.many())]
    Own(Resource),
    /// A manifest that can't be read.
    #[error("{path}: {source}")]
    Manifest {
        /// The file.
        path: String,
        /// The error.
        source: manifest::ManifestError,
    },
    /// There is no such object.
    #[error("{}", missing(*.0, std::slice::from_ref(.1)))]
    Missing(Resource, String),
    /// The agent's error.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Each with its reason.
    #[error("{}", .0.join("; "))]
    Failed(Vec<String>),
    /// There still.
    #[error(
        "still there after {}: {}; hint: crustlet events tells what keeps them",
        humantime::format_duration(*after),
        there.join(", ")
    )]
    Waited {
        /// The objects that are left.
        there: Vec<String>,
        /// How long was waited.
        after: Duration,
    },
}

/// An object that is to go, and which one it was then.
struct Going {
    kind: Kind,
    name: Name,
    uid: String,
}

impl Going {
    fn resource(&self) -> Resource {
        Resource::Object(self.kind)
    }
}

/// Deletes objects. One that can't be deleted doesn't keep the others.
pub(super) async fn delete(asked: &Delete, client: &Client) -> Result<()> {
    let mut going = Vec::new();
    let mut failed = Vec::new();
    for (kind, name) in named(asked)? {
        match start(asked, client, kind, name).await {
            Ok(one) => {
                let (what, name) = (one.resource().one(), &one.name.name);
                let how = if asked.force { "force " } else { "" };
                print(format!("{what} {name:?} {how}deleted\n"))?;
                going.push(one);
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    if asked.wait
        && let Err(error) = wait(client, going, asked.timeout).await
    {
        failed.push(error.to_string());
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(DeleteError::Failed(failed).into())
    }
}

fn named(asked: &Delete) -> Result<Vec<(Kind, Name)>> {
    let mut objects = Vec::new();
    for path in &asked.files {
        let text = read_manifest(path)?;
        let read = manifest::read(&text).map_err(|source| DeleteError::Manifest {
            path: path.display().to_string(),
            source,
        })?;
        objects.extend(read.into_iter().map(|it| (it.kind, it.name)));
    }
    if !asked.files.is_empty() {
        return Ok(objects);
    }
    let named = match select(&asked.objects)? {
        Selection::All(resource) => return Err(DeleteError::Which(resource).into()),
        Selection::Named(resource, names) => names.into_iter().map(|it| (resource, it)).collect(),
        Selection::Mixed(named) => named,
    };
    for (resource, name) in named {
        let Resource::Object(kind) = resource else {
            return Err(DeleteError::Own(resource).into());
        };
        let namespace = if kind.is_namespaced() {
            asked.namespace.namespace.as_str()
        } else {
            ""
        };
        objects.push((kind, Name::new(namespace, &name)));
    }
    Ok(objects)
}

async fn start(
    asked: &Delete,
    client: &Client,
    kind: Kind,
    name: Name,
) -> Result<Going, DeleteError> {
    let Some(uid) = find(client, kind, &name).await? else {
        return Err(DeleteError::Missing(Resource::Object(kind), name.name));
    };
    let request = DeleteRequest {
        kind: kind.as_str().to_owned(),
        namespace: name.namespace.clone(),
        name: name.name.clone(),
        force: asked.force,
        grace_period_seconds: asked.grace_period,
    };
    client.delete(request).await?;
    Ok(Going { kind, name, uid })
}

/// The uid, empty where it has none, of the object that is there by the name.
async fn find(client: &Client, kind: Kind, name: &Name) -> Result<Option<String>, ClientError> {
    let found = client.list(kind.as_str(), &name.namespace, &name.name);
    let found = found.await?;
    let uid = |it: &Value| it["metadata"]["uid"].as_str().map(str::to_owned);
    Ok(found.first().map(|it| uid(it).unwrap_or_default()))
}

async fn wait(
    client: &Client,
    mut going: Vec<Going>,
    timeout: Option<Duration>,
) -> Result<(), DeleteError> {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = tokio::time::Instant::now();
    while !going.is_empty() {
        ticks.tick().await;
        let mut there = Vec::new();
        for object in going {
            // Another one by its name is none of those.
            let found = find(client, object.kind, &object.name).await?;
            if found.as_ref() == Some(&object.uid) {
                there.push(object);
            }
        }
        going = there;
        match timeout {
            Some(after) if !going.is_empty() && started.elapsed() >= after => {
                let there = going
                    .iter()
                    .map(|it| format!("{}/{}", it.resource().one(), it.name.name));
                let there = there.collect();
                return Err(DeleteError::Waited { there, after });
            }
            _ => {}
        }
    }
    Ok(())
}
