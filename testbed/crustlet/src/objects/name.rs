//! The kinds, names and UIDs of objects.

use std::fmt;
use std::io;
use std::path::Path;

use crust_blockfs::bounded;

/// The kind of an object. The variants have Kubernetes' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Pod,
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    RuntimeClass,
    CSIDriver,
    Secret,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Pod,
        Self::PersistentVolumeClaim,
        Self::PersistentVolume,
        Self::StorageClass,
        Self::RuntimeClass,
        Self::CSIDriver,
        Self::Secret,
    ];

    /// Returns the `kind` in a manifest.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pod",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::PersistentVolume => "PersistentVolume",
            Self::StorageClass => "StorageClass",
            Self::RuntimeClass => "RuntimeClass",
            Self::CSIDriver => "CSIDriver",
            Self::Secret => "Secret",
        }
    }

    /// Returns the `apiVersion` in a manifest.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::PersistentVolumeClaim | Self::PersistentVolume | Self::Secret => "v1",
            Self::StorageClass | Self::CSIDriver => "storage.k8s.io/v1",
            Self::RuntimeClass => "node.k8s.io/v1",
        }
    }

    /// Returns whether objects of this kind have a namespace.
    pub(crate) const fn is_namespaced(self) -> bool {
        matches!(self, Self::Pod | Self::PersistentVolumeClaim | Self::Secret)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The namespace and the name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Name {
    /// Returns a name in a namespace, or a cluster-scoped name if the namespace is empty.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// Formats `default/web`, or the name alone for cluster-scoped objects.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The kernel's file that returns a new random UUID at each read (random(4)).
const UUID_FILE: &str = "/proc/sys/kernel/random/uuid";

/// The error of a UID that can't be generated.
#[derive(Debug, thiserror::Error)]
#[error("read {UUID_FILE}: {0}; hint: check that /proc is mounted")]
pub(crate) struct UidError(#[source] io::Error);

/// Generates a random UID, in the format of Kubernetes.
pub(crate) fn new_uid() -> Result<String, UidError> {
    let uuid = bounded::read_to_string(Path::new(UUID_FILE), bounded::MAX_KERNEL_VALUE);
    Ok(uuid.map_err(UidError)?.trim().to_owned())
}

/// Returns whether a text has the format of a generated UID (RFC 9562, section 4).
pub(crate) fn is_uid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let is_hex = |byte: u8| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase();
    lengths == [8, 4, 4, 4, 12] && parts.iter().all(|part| part.bytes().all(is_hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_uids_are_valid_and_unique() {
        let (one, other) = (new_uid().unwrap(), new_uid().unwrap());
        assert!(is_uid(&one) && is_uid(&other), "{one} {other}");
        assert_ne!(one, other);
        for text in [
            "",
            "node-1",
            &one[1..],
            &one.to_uppercase(),
            &format!("{one}-"),
        ] {
            assert!(!is_uid(text), "{text}");
        }
    }
}
