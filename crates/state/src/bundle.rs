//! Records under `<state_dir>/bundles`: how a bundle's config looked before it was rewritten.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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
    /// For which container, by [`BundleRecord::container`].
    #[serde(with = "crate::record::as_string")]
    pub container: Digest,
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
    /// The name of a bundle's record: a digest of its config's real path. Of a container that can't
    /// come to be, because another has its id, nothing is told but of its own bundle.
    #[must_use]
    pub fn name(config: &Path) -> Digest {
        Digest::of(config.as_os_str().as_bytes())
    }

    /// A container as its runtime knows it: a digest of `--root`, however it is spelt, and id.
    #[must_use]
    pub fn container(root: Option<&OsStr>, id: &OsStr) -> Digest {
        let mut bytes = Vec::new();
        for component in Path::new(root.unwrap_or_default()).components() {
            bytes.extend_from_slice(component.as_os_str().as_bytes());
            bytes.push(b'/');
        }
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
        Digest::of(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_the_same_however_its_root_is_spelt() {
        let container = |root, id| BundleRecord::container(Some(OsStr::new(root)), OsStr::new(id));
        let expected = container("/run/runc", "a");
        for root in ["/run/runc/", "/run//runc", "/run/./runc"] {
            assert_eq!(container(root, "a"), expected, "{root}");
        }
        assert_ne!(container("/run/runc", "b"), expected);
        assert_ne!(container("/run/runc/a", ""), expected);
        assert_ne!(container("run/runc", "a"), expected);
    }
}
