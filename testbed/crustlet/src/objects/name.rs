//! The kinds, names and UIDs of objects.

use std::fmt;
use std::io;
use std::path::Path;

use crust_blockfs::bounded;

/// The kind of an object. The variants have the names that people type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// A pod.
    Pod,
    /// A request for storage.
    PersistentVolumeClaim,
    /// Storage.
    PersistentVolume,
    /// How storage is made.
    StorageClass,
    /// The runtime handler of pods.
    RuntimeClass,
    /// A CSI driver's properties for kubelet.
    CSIDriver,
    /// Secrets for CSI calls.
    Secret,
}

impl Kind {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::Pod,
        Self::PersistentVolumeClaim,
        Self::PersistentVolume,
        Self::StorageClass,
        Self::RuntimeClass,
        Self::CSIDriver,
        Self::Secret,
    ];

    /// `kind` in a manifest.
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

    /// `apiVersion` in a manifest.
    pub(crate) const fn api_version(self) -> &'static str {
        match self {
            Self::Pod | Self::PersistentVolumeClaim | Self::PersistentVolume | Self::Secret => "v1",
            Self::StorageClass | Self::CSIDriver => "storage.k8s.io/v1",
            Self::RuntimeClass => "node.k8s.io/v1",
        }
    }

    /// Whether its objects are in namespaces.
    pub(crate) const fn is_namespaced(self) -> bool {
        matches!(self, Self::Pod | Self::PersistentVolumeClaim | Self::Secret)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An object's name, and its namespace; that is empty for kinds without.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    /// Empty for kinds without.
    pub(crate) namespace: String,
    /// The name in it.
    pub(crate) name: String,
}

impl Name {
    /// In a namespace, or in none.
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// `default/web`, or the name alone where there is no namespace.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The kernel's file with a new random UUID at each read (random(4)).
const SOURCE: &str = "/proc/sys/kernel/random/uuid";

/// The kernel gives no UUID.
#[derive(Debug, thiserror::Error)]
#[error("read {SOURCE}: {0}; hint: is /proc mounted?")]
pub(crate) struct UidError(#[source] io::Error);

/// Returns a new UID.
pub(crate) fn new_uid() -> Result<String, UidError> {
    let made = bounded::read_to_string(Path::new(SOURCE), bounded::KERNELS_WORD);
    Ok(made.map_err(UidError)?.trim().to_owned())
}

/// Returns whether a text has the form of a UID that was made here (RFC 9562, section 4).
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
    fn what_the_kernel_gives_is_one_and_no_other() {
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
