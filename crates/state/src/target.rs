//! Target paths, which name volumes: the `target_path` of CSI's `NodePublishVolume`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::printable::printable;

mod kubelet_layout;
mod lookup;
mod presence;
mod roots;

pub use kubelet_layout::{CsiVolume, SubpathBind, pod_csi_directory};
pub use lookup::TargetLookup;
pub(crate) use presence::TARGET_FILE;
pub use presence::{PresenceError, TargetPresence};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TargetPathError {
    #[error(
        "target path {0:?} is relative; hint: give the absolute target_path of NodePublishVolume"
    )]
    Relative(OsString),
    /// A component is `..`. Two spellings of the same directory would be two volumes.
    #[error("target path {0:?} has a `..` component; hint: give the path without `..`")]
    Parent(OsString),
    /// The path is `/`, where no volume can be mounted.
    #[error(
        "target path {0:?} is the root directory; hint: give the target_path of NodePublishVolume"
    )]
    Root(OsString),
    #[error("target path {0:?} has a NUL byte")]
    Nul(OsString),
}

/// A normalised absolute path: without `//`, `/./`, a trailing `/`, `..` and NUL. It need not be UTF-8.
///
/// The name of a volume's entry is the digest of this path (KEP-2857, "Overview of Interactions"). So the writer and
/// the reader of the crust directory have to normalise in the same way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath(Vec<u8>);

impl TargetPath {
    /// Normalises `path` lexically. Symbolic links aren't resolved.
    pub fn new(path: impl AsRef<OsStr>) -> Result<Self, TargetPathError> {
        let given = path.as_ref();
        let bytes = given.as_bytes();
        if bytes.contains(&0) {
            return Err(TargetPathError::Nul(given.to_owned()));
        }
        if bytes.first() != Some(&b'/') {
            return Err(TargetPathError::Relative(given.to_owned()));
        }
        let mut normal = Vec::with_capacity(bytes.len());
        for component in bytes.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => return Err(TargetPathError::Parent(given.to_owned())),
                name => {
                    normal.push(b'/');
                    normal.extend_from_slice(name);
                }
            }
        }
        if normal.is_empty() {
            return Err(TargetPathError::Root(given.to_owned()));
        }
        Ok(Self(normal))
    }

    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Returns the length of the path in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of components.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.split(|byte| *byte == b'/').skip(1).count()
    }

    /// Returns the digest of the path: the name of the volume's entry in the crust directory.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(&self.0).into())
    }

    /// Returns this path and its parents, the nearest first, each with the rest of the path below it.
    pub fn ancestors(&self) -> impl Iterator<Item = (TargetPath, &Path)> {
        // The rest is cut off by length. `Path::strip_prefix` compares component by component, and would make the whole
        // cost quadratic in the depth.
        self.as_path().ancestors().map(|ancestor| {
            let parent = ancestor.as_os_str().as_bytes();
            let rest = &self.0[parent.len()..];
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            (Self(parent.to_vec()), Path::new(OsStr::from_bytes(rest)))
        })
    }

    /// Returns the digests of the parents and, last, of the path itself, each with the length of that path in bytes.
    /// All are computed in one pass; hashing each parent separately would make the cost quadratic in the depth.
    pub(crate) fn digests(&self) -> impl Iterator<Item = (usize, Digest)> {
        let mut hash = Sha256::new();
        let mut length = 0;
        self.0[1..].split(|byte| *byte == b'/').map(move |name| {
            hash.update(b"/");
            hash.update(name);
            length += 1 + name.len();
            (length, Digest(hash.clone().finalize().into()))
        })
    }

    /// Returns the name of the volume for messages: its CSI name or, if the path isn't that of a CSI volume, the path.
    #[must_use]
    pub fn volume_name(&self) -> String {
        match self.csi_volume() {
            Some(volume) => volume.name.to_string_lossy().into_owned(),
            None => self.as_path().to_string_lossy().into_owned(),
        }
    }
}

impl AsRef<Path> for TargetPath {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

impl fmt::Debug for TargetPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_path().fmt(formatter)
    }
}

/// Formats the path for messages and logs: characters that aren't printable are escaped. Programs get
/// [`Self::as_path`].
impl fmt::Display for TargetPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&printable(&self.as_path().to_string_lossy()))
    }
}

/// A SHA-256 digest. The digest of a target path is the name of an entry in the crust directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of arbitrary bytes, for records that aren't named after a target path.
    #[must_use]
    pub fn compute(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the first 12 hex digits, which suffice to distinguish the volumes of one node.
    #[must_use]
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        // Can't fail: the buffer is twice as long as the digest, and hex digits are UTF-8.
        let _ = hex::encode_to_slice(self.0, &mut text);
        formatter.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} isn't a SHA-256 digest in lower-case hex")]
pub struct ParseDigestError(String);

impl std::str::FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        let mut digest = [0; 32];
        let lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        match hex::decode_to_slice(text, &mut digest) {
            Ok(()) if lower => Ok(Self(digest)),
            _ => Err(ParseDigestError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = ParseDigestError;

    fn try_from(text: String) -> Result<Self, ParseDigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests;
