//! Tables and documents of objects, in kubectl's formats. The objects are the documents that the agent has sent.

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

/// The error of a document that doesn't have the structure of its kind.
#[derive(Debug, thiserror::Error)]
#[error(
    "the agent sent a {kind} that cannot be decoded: {source}; hint: use the same version of crustlet as the agent"
)]
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

type Row = Vec<String>;

/// The columns of a kind, and the function that returns the rows of an object.
struct KindTable {
    columns: &'static [(&'static str, Column)],
    rows: fn(&Value, SystemTime) -> Result<Vec<Row>, serde_json::Error>,
}

const fn kind_table(resource: Resource) -> KindTable {
    match resource {
        Resource::Object(Kind::Pod) => pods::PODS,
        Resource::Object(Kind::PersistentVolumeClaim) => storage::CLAIMS,
        Resource::Object(Kind::PersistentVolume) => storage::PERSISTENT_VOLUMES,
        Resource::Object(Kind::StorageClass) => classes::STORAGE_CLASSES,
        Resource::Object(Kind::RuntimeClass) => classes::RUNTIME_CLASSES,
        Resource::Object(Kind::CSIDriver) => classes::DRIVERS,
        Resource::Object(Kind::Secret) => classes::SECRETS,
        Resource::Volume => storage::NODE_VOLUMES,
        Resource::Event => events::EVENTS,
    }
}

/// The parts of a table that are shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableOptions {
    /// Whether the columns of `-o wide` are shown.
    pub(super) is_wide: bool,
    /// Whether there is a column for the namespace.
    pub(super) has_namespaces: bool,
    pub(super) has_headers: bool,
}

/// Returns the rows of a table of objects. Ages are relative to `now`.
pub(super) fn rows(
    resource: Resource,
    documents: &[Value],
    options: TableOptions,
    now: SystemTime,
) -> Result<Vec<Row>, PrintError> {
    let KindTable { columns, rows } = kind_table(resource);
    let is_shown = |column: Column| options.is_wide || column == Column::Always;
    let has_namespaces = options.has_namespaces && resource.is_namespaced();
    let mut table = Vec::new();
    if options.has_headers {
        let namespace = has_namespaces.then(|| "NAMESPACE".to_owned());
        let columns = columns.iter().filter(|(_, shown)| is_shown(*shown));
        let columns = columns.map(|(name, _)| (*name).to_owned());
        table.push(namespace.into_iter().chain(columns).collect());
    }
    for document in documents {
        let print_error = |source| PrintError {
            kind: resource.singular_name(),
            source,
        };
        for row in rows(document, now).map_err(print_error)? {
            let namespace = &document["metadata"]["namespace"];
            let namespace = namespace.as_str().unwrap_or_default().to_owned();
            let cells = row.into_iter().zip(columns);
            let cells = cells.filter(|(_, (_, shown))| is_shown(*shown));
            let namespace = has_namespaces.then_some(namespace);
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

/// Converts a document to the type of k8s-openapi.
fn typed<T: DeserializeOwned>(document: &Value) -> Result<T, serde_json::Error> {
    T::deserialize(document)
}

#[cfg(test)]
mod tests;
