//! Records under `<state_dir>/bundles`: how a bundle's config looked before it was rewritten.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::record::Version;
use crate::target::Digest;

/// What was changed in a bundle's `config.json`, so that a second `create` of the same bundle can
/// undo it and plan anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleRecord {
    /// 1.
    pub version: Version<1>,
    /// The real path of the config.
    pub config: PathBuf,
    /// Of the text that was written, by which it is known again.
    #[serde(with = "crate::record::as_string")]
    pub written: Digest,
    /// Mounts whose source was replaced.
    pub sources: Vec<ReplacedSource>,
    /// Elements that were added to the config's arrays.
    pub added: Vec<AddedElement>,
    /// Mounts that were taken out, by their index before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<RemovedMount>,
}

/// A mount that was taken out of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedMount {
    /// Its place in the list as it was.
    pub index: usize,
    /// It, as it was written.
    pub json: String,
}

/// A mount whose source was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedSource {
    /// What stands there now, a path in the attach directory.
    pub attached: String,
    /// What stood there.
    pub original: String,
    /// The mount's destination, which must still be the same.
    pub destination: String,
}

/// An element that was added to one of the config's arrays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddedElement {
    /// The array, as a path of keys joined by dots: `hooks.createRuntime`.
    pub array: String,
    /// The element.
    pub element: serde_json::Value,
}

impl BundleRecord {
    /// The record's name: a digest of the runtime's `--root` and the container's id, which
    /// together name a container.
    #[must_use]
    pub fn name(root: Option<&OsStr>, id: &OsStr) -> Digest {
        let mut bytes = root.map(OsStr::as_bytes).unwrap_or_default().to_vec();
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
        Digest::of(&bytes)
    }
}
