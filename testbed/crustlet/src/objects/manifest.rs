//! Parses manifests.

use std::collections::BTreeSet;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::name::{Kind, Name};
use super::unreadable::find_unreadable_field;
use super::{Pod, RuntimeClass, StorageClass};

/// The namespace of objects whose manifest has none.
pub(crate) const DEFAULT_NAMESPACE: &str = "default";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    /// The text is not valid YAML.
    #[error("{0}")]
    Yaml(String),
    /// A document is not a valid object.
    #[error("document {document}: {source}")]
    Document {
        /// The number of the document in the file, from 1.
        document: usize,
        source: DocumentError,
    },
}

/// The error of a document that is not a valid object.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// `kind` or `metadata` is missing or invalid.
    #[error("{0}; hint: set apiVersion, kind and metadata.name of each object")]
    Header(String),
    /// The kind isn't supported.
    #[error(
        "{api_version} {kind} is not supported; hint: use one of {}",
        supported_kinds()
    )]
    UnsupportedKind { api_version: String, kind: String },
    #[error("{kind} {name}: {reason}")]
    Field {
        kind: Kind,
        name: Name,
        reason: String,
    },
}

const INVALID_SECRET: &str = "data and stringData must be maps of strings, those of data in base64; hint: put numbers in quotes";

fn supported_kinds() -> String {
    let kinds = Kind::ALL.map(|kind| format!("{} {kind}", kind.api_version()));
    kinds.join(", ")
}

/// An object with the type of its kind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Pod(Box<Pod>),
    Claim(Box<PersistentVolumeClaim>),
    Volume(Box<PersistentVolume>),
    StorageClass(StorageClass),
    RuntimeClass(RuntimeClass),
    Driver(CSIDriver),
    Secret(Secret),
}

/// An object of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    /// The whole document, including unknown fields.
    pub(crate) document: Value,
    pub(crate) object: Object,
}

/// Parses all documents of a manifest. Empty documents are skipped.
pub(crate) fn read(text: &str) -> Result<Vec<Manifest>, ManifestError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| ManifestError::Yaml(yaml_message(&error)))?;
    let documents = documents.into_iter().enumerate();
    let objects = documents.filter(|(_, document)| !document.is_null());
    objects
        .map(|(index, document)| {
            from_document(document).map_err(|source| ManifestError::Document {
                document: index + 1,
                source,
            })
        })
        .collect()
}

/// Returns the first line of an error, without a snippet of the manifest, which may contain secrets.
fn yaml_message(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet().to_string();
    error.lines().next().unwrap_or_default().to_owned()
}

/// The fields that every object has.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: String,
    kind: String,
    metadata: ObjectMeta,
}

/// Converts a document to an object.
pub(crate) fn from_document(document: Value) -> Result<Manifest, DocumentError> {
    let header =
        Header::deserialize(&document).map_err(|error| DocumentError::Header(error.to_string()))?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.as_str() == header.kind && kind.api_version() == header.api_version)
        .ok_or(DocumentError::UnsupportedKind {
            api_version: header.api_version,
            kind: header.kind,
        })?;
    let missing = || DocumentError::Header(format!("the {kind} has no metadata.name"));
    let name = header
        .metadata
        .name
        .filter(|name| !name.is_empty())
        .ok_or_else(missing)?;
    let namespace = match header.metadata.namespace {
        _ if !kind.is_namespaced() => String::new(),
        Some(namespace) if !namespace.is_empty() => namespace,
        _ => DEFAULT_NAMESPACE.to_owned(),
    };
    let name = Name { namespace, name };
    let invalid = |reason| DocumentError::Field {
        kind,
        name: name.clone(),
        reason,
    };
    if let Some(part) = [&name.name, &name.namespace]
        .into_iter()
        .find(|part| !part.is_empty() && !is_name(part))
    {
        return Err(invalid(format!(
            "{part:?} is not a valid name; hint: use lower-case letters, digits, `-` and `.`, at most 253 bytes"
        )));
    }
    let object = typed(kind, &name, &document).map_err(invalid)?;
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
        Kind::PersistentVolumeClaim => Object::Claim(Box::new(deserialize(document)?)),
        Kind::PersistentVolume => Object::Volume(Box::new(deserialize(document)?)),
        Kind::StorageClass => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct ExtraFields {
                #[serde(default)]
                allow_runtime_assisted_mount: Option<bool>,
            }
            let extra: ExtraFields = deserialize(document)?;
            Object::StorageClass(StorageClass {
                object: deserialize(document)?,
                allow_runtime_assisted_mount: extra
                    .allow_runtime_assisted_mount
                    .unwrap_or_default(),
            })
        }
        Kind::RuntimeClass => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct ExtraFields {
                #[serde(default)]
                fs_mgmt_socket: Option<PathBuf>,
            }
            let extra: ExtraFields = deserialize(document)?;
            let socket = extra
                .fs_mgmt_socket
                .filter(|path| !path.as_os_str().is_empty());
            if let Some(relative) = socket.as_ref().filter(|socket| !socket.is_absolute()) {
                let relative = relative.display();
                return Err(format!("fsMgmtSocket: {relative} is not an absolute path"));
            }
            Object::RuntimeClass(RuntimeClass {
                object: deserialize(document)?,
                fs_mgmt_socket: socket,
            })
        }
        Kind::CSIDriver => Object::Driver(deserialize(document)?),
        // serde's error would contain the invalid value, which may be secret.
        Kind::Secret => {
            Object::Secret(Secret::deserialize(document).map_err(|_| INVALID_SECRET.to_owned())?)
        }
    })
}

/// Deserializes a document. The error names the invalid field.
pub(super) fn deserialize<T: DeserializeOwned>(document: &Value) -> Result<T, String> {
    T::deserialize(document).map_err(
        |error| match find_unreadable_field::<T>(document).as_str() {
            "" => error.to_string(),
            field => format!("{field}: {error}"),
        },
    )
}

/// Returns whether a text is a DNS subdomain (RFC 1123), as Kubernetes' names are. Names become parts of paths.
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

/// kubelet's directory for raw block volumes, which is next to the directories of drivers.
pub(crate) const BLOCK_VOLUMES: &str = "volumeDevices";

/// Returns whether a text is a valid name of a CSI driver. The name becomes part of paths.
pub(crate) fn is_driver_name(text: &str) -> bool {
    is_name(&text.to_ascii_lowercase()) && text != BLOCK_VOLUMES
}

/// Returns the first name that occurs twice.
pub(super) fn find_duplicate<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut unique = BTreeSet::new();
    let mut names = names;
    names.find(|name| !unique.insert(*name))
}
