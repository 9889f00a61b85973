//! Objects as kubectl prints them. What is known here are the agent's documents, and no agent.

mod cells;
mod claims;
mod classes;
pub(super) mod documents;
pub(super) mod events;
mod persistent;
mod pods;
pub(super) mod status;
mod volumes;

use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::resource::Resource;
use crate::objects::Kind;

/// An object that isn't what its kind is like.
#[derive(Debug, thiserror::Error)]
#[error("the agent told of a {kind} that can't be read: {source}")]
pub(super) struct PrintError {
    kind: String,
    source: serde_json::Error,
}

/// When a column is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Always,
    Wide,
}

/// Cells, one a column.
type Row = Vec<String>;

/// How a kind is printed.
struct Kinds {
    columns: &'static [(&'static str, Shown)],
    rows: fn(&Value, SystemTime) -> Result<Vec<Row>, serde_json::Error>,
}

const fn kinds(resource: Resource) -> Kinds {
    match resource {
        Resource::Object(Kind::Pod) => pods::PODS,
        Resource::Object(Kind::PersistentVolumeClaim) => claims::CLAIMS,
        Resource::Object(Kind::PersistentVolume) => persistent::VOLUMES,
        Resource::Object(Kind::StorageClass) => classes::STORAGE,
        Resource::Object(Kind::RuntimeClass) => classes::RUNTIME,
        Resource::Object(Kind::CSIDriver) => classes::DRIVERS,
        Resource::Object(Kind::Secret) => classes::SECRETS,
        Resource::Volume => volumes::VOLUMES,
        Resource::Event => events::EVENTS,
    }
}

/// What of objects is shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// With the columns that not everybody wants.
    pub(super) wide: bool,
    /// With the namespace before them.
    pub(super) namespaces: bool,
    /// With a line above that says what they are.
    pub(super) headers: bool,
}

/// Rows of objects of a kind, at a moment.
pub(super) fn rows(
    resource: Resource,
    documents: &[Value],
    form: Form,
    now: SystemTime,
) -> Result<Vec<Row>, PrintError> {
    let Kinds { columns, rows } = kinds(resource);
    let is_shown = |shown: Shown| form.wide || shown == Shown::Always;
    let namespaces = form.namespaces && resource.is_namespaced();
    let mut table = Vec::new();
    if form.headers {
        let namespace = namespaces.then(|| "NAMESPACE".to_owned());
        let columns = columns.iter().filter(|(_, shown)| is_shown(*shown));
        let columns = columns.map(|(name, _)| (*name).to_owned());
        table.push(namespace.into_iter().chain(columns).collect());
    }
    for document in documents {
        let unreadable = |source| PrintError {
            kind: resource.one(),
            source,
        };
        for row in rows(document, now).map_err(unreadable)? {
            let namespace = &document["metadata"]["namespace"];
            let namespace = namespace.as_str().unwrap_or_default().to_owned();
            let cells = row.into_iter().zip(columns);
            let cells = cells.filter(|(_, (_, shown))| is_shown(*shown));
            let namespace = namespaces.then_some(namespace);
            table.push(
                namespace
                    .into_iter()
                    .chain(cells.map(|(cell, _)| cell))
                    .collect(),
            );
        }
    }
    Ok(table)
}

/// An object as Kubernetes has it.
fn typed<T: DeserializeOwned>(document: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(document)
}

#[cfg(test)]
mod tests;
