//! Objects as kubectl prints them. The input is the agent's documents; the agent itself isn't asked.

mod cells;
mod classes;
pub(super) mod documents;
pub(super) mod events;
pub(super) mod pods;
mod storage;

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

/// Whether a column is always shown, or only with `-o wide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Always,
    Wide,
}

/// A row of cells.
type Row = Vec<String>;

/// The table of a kind.
struct KindTable {
    columns: &'static [(&'static str, Column)],
    rows: fn(&Value, SystemTime) -> Result<Vec<Row>, serde_json::Error>,
}

const fn table_of(resource: Resource) -> KindTable {
    match resource {
        Resource::Object(Kind::Pod) => pods::PODS,
        Resource::Object(Kind::PersistentVolumeClaim) => storage::CLAIMS,
        Resource::Object(Kind::PersistentVolume) => storage::PERSISTENT_VOLUMES,
        Resource::Object(Kind::StorageClass) => classes::STORAGE,
        Resource::Object(Kind::RuntimeClass) => classes::RUNTIME,
        Resource::Object(Kind::CSIDriver) => classes::DRIVERS,
        Resource::Object(Kind::Secret) => classes::SECRETS,
        Resource::Volume => storage::NODE_VOLUMES,
        Resource::Event => events::EVENTS,
    }
}

/// How objects are shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    /// Whether with the columns of `-o wide`.
    pub(super) wide: bool,
    /// Whether with a column for the namespace.
    pub(super) namespaces: bool,
    /// Whether with a line of headers.
    pub(super) headers: bool,
}

/// Returns the rows of objects of a kind at a moment.
pub(super) fn rows(
    resource: Resource,
    documents: &[Value],
    form: Form,
    now: SystemTime,
) -> Result<Vec<Row>, PrintError> {
    let KindTable { columns, rows } = table_of(resource);
    let is_shown = |shown: Column| form.wide || shown == Column::Always;
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

/// Returns a document as Kubernetes' own type.
fn typed<T: DeserializeOwned>(document: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(document)
}

#[cfg(test)]
mod tests;
