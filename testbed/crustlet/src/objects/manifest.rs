//! Reads the YAML of manifests into objects.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::name::{Kind, Name};
use super::unreadable::unreadable_field;
use super::{Pod, RuntimeClass, StorageClass};

/// The namespace of objects that don't say.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

/// A manifest can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    /// It is no YAML.
    #[error("{0}")]
    Yaml(String),
    /// It is, and no object.
    #[error("document {document}: {source}")]
    Document {
        /// The number of the document in the file, from 1.
        document: usize,
        /// The error.
        source: DocumentError,
    },
}

/// An error of a document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// It has no `kind`, or no name.
    #[error("{0}; hint: every object has apiVersion, kind and metadata.name")]
    Head(String),
    /// The kind isn't supported.
    #[error(
        "{api_version} {kind}: crustlet reads no such objects; hint: {}",
        known()
    )]
    Kind {
        /// `apiVersion`
        api_version: String,
        /// `kind`
        kind: String,
    },
    /// A field.
    #[error("{kind} {name}: {reason}")]
    Field {
        kind: Kind,
        name: Name,
        /// The flaw.
        reason: String,
    },
}

const NO_SECRET: &str = "data and stringData are maps of texts, those of data in base64; hint: a number is no text, put it in quotes";

fn known() -> String {
    let kinds = Kind::ALL.map(|kind| format!("{} {kind}", kind.api_version()));
    format!("it reads {}", kinds.join(", "))
}

/// An object, typed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    /// A pod.
    Pod(Box<Pod>),
    /// A request for storage.
    Claim(Box<PersistentVolumeClaim>),
    /// Storage.
    Volume(Box<PersistentVolume>),
    /// How storage is made.
    StorageClass(StorageClass),
    /// The runtime handler of pods.
    RuntimeClass(RuntimeClass),
    /// A driver's properties for kubelet.
    Driver(CSIDriver),
    /// Secrets for drivers.
    Secret(Secret),
}

/// An object as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    /// All of it, with what nobody here knows.
    pub(crate) document: Value,
    pub(crate) object: Object,
}

/// Reads all documents of a text. Empty ones are none.
pub(crate) fn read(text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| ManifestError::Yaml(told(&error)))?;
    let documents = documents.into_iter().enumerate();
    let there = documents.filter(|(_, document)| !document.is_null());
    there
        .map(|(at, document)| {
            of(document).map_err(|source| ManifestError::Document {
                document: at + 1,
                source,
            })
        })
        .collect()
}

/// In one line, and without the text: there may be secrets in it.
fn told(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet().to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

/// The fields that every object has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
}

/// Reads one object.
pub(crate) fn of(document: Value) -> Result<Manifest, DocumentError> {
    let head =
        Head::deserialize(&document).map_err(|error| DocumentError::Head(error.to_string()))?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == head.kind && kind.api_version() == head.api_version)
        .ok_or(DocumentError::Kind {
            api_version: head.api_version,
            kind: head.kind,
        })?;
    let missing = || DocumentError::Head(format!("a {kind} without metadata.name"));
    let name = head
        .metadata
        .name
        .filter(|it| !it.is_empty())
        .ok_or_else(missing)?;
    let namespace = match head.metadata.namespace {
        _ if !kind.is_namespaced() => String::new(),
        Some(namespace) if !namespace.is_empty() => namespace,
        _ => DEFAULT_NAMESPACE.to_owned(),
    };
    let name = Name { namespace, name };
    let refused = |reason| DocumentError::Field {
        kind,
        name: name.clone(),
        reason,
    };
    if let Some(part) = [&name.name, &name.namespace]
        .into_iter()
        .find(|it| !it.is_empty() && !is_name(it))
    {
        return Err(refused(format!(
            "{part:?} is no name: lower-case letters, digits, `-` and `.`, 253 bytes at most"
        )));
    }
    let object = typed(kind, &name, &document).map_err(refused)?;
    Ok(Manifest {
        kind,
        name,
        document,
        object,
    })
}

fn typed(kind: Kind, name: &Name, document: &Value) -> Result<Object, String> {
    Ok(match kind {
        Kind::Pod => Object::Pod(Box::new(Pod::read(document, name)?)),
        Kind::PersistentVolumeClaim => Object::Claim(Box::new(plain(document)?)),
        Kind::PersistentVolume => Object::Volume(Box::new(plain(document)?)),
        Kind::StorageClass => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Ours {
                #[serde(default)]
                allow_runtime_assisted_mount: Option<bool>,
            }
            let ours: Ours = plain(document)?;
            Object::StorageClass(StorageClass {
                object: plain(document)?,
                allow_runtime_assisted_mount: ours.allow_runtime_assisted_mount.unwrap_or_default(),
            })
        }
        Kind::RuntimeClass => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Ours {
                #[serde(default)]
                fs_mgmt_socket: Option<PathBuf>,
            }
            let ours: Ours = plain(document)?;
            let socket = ours.fs_mgmt_socket.filter(|it| !it.as_os_str().is_empty());
            if let Some(relative) = socket.as_ref().filter(|it| !it.is_absolute()) {
                let relative = relative.display();
                return Err(format!("fsMgmtSocket: {relative} is no absolute path"));
            }
            Object::RuntimeClass(RuntimeClass {
                object: plain(document)?,
                fs_mgmt_socket: socket,
            })
        }
        Kind::CSIDriver => Object::Driver(plain(document)?),
        // What is wrong is told with what is there.
        Kind::Secret => {
            Object::Secret(Secret::deserialize(document).map_err(|_| NO_SECRET.to_owned())?)
        }
    })
}

pub(super) fn plain<T: DeserializeOwned>(document: &Value) -> Result<T, String> {
    T::deserialize(document).map_err(|error| match unreadable_field::<T>(document).as_str() {
        "" => error.to_string(),
        field => format!("{field}: {error}"),
    })
}

/// RFC 1123's subdomains, which Kubernetes' names are: they become parts of paths here.
pub(crate) fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// kubelet's directory for raw block volumes, which is beside those of drivers.
pub(crate) const BLOCK_VOLUMES: &str = "volumeDevices";

/// A CSI driver's name, which becomes a part of paths too.
pub(crate) fn is_driver(text: &str) -> bool {
    is_name(&text.to_ascii_lowercase()) && text != BLOCK_VOLUMES
}

/// Names that are given twice where each may be there once.
pub(super) fn twice<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut seen = BTreeSet::new();
    let mut names = names;
    names.find(|name| !seen.insert(*name))
}
