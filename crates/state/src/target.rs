//! Target paths: the names of volumes, as CSI `NodePublishVolume` gives them.

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
pub(crate) use presence::TARGET;
pub use presence::{PresenceError, TargetPresence};

/// The error of a path that can't be a target path.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TargetPathError {
    /// The path doesn't begin with `/`.
    #[error(
        "target path {0:?} is relative; hint: give the absolute target_path of NodePublishVolume"
    )]
    Relative(OsString),
    /// A component is `..`: two spellings of one directory would be two volumes.
    #[error("target path {0:?} has a `..` component; hint: give the path without `..`")]
    Parent(OsString),
    /// The root directory, which no volume is mounted at.
    #[error(
        "target path {0:?} is the root directory; hint: give the target_path of NodePublishVolume"
    )]
    Root(OsString),
    /// The path holds a NUL byte, which no system call can take.
    #[error("target path {0:?} has a NUL byte")]
    Nul(OsString),
}

/// A normalised absolute path: `//` and `/./` collapsed, no trailing `/`, no `..`, no NUL.
///
/// Bytes, not necessarily UTF-8. The writer and the reader of the crust directory normalise the
/// same way, because the directory's name is the digest of these bytes (KEP-2857, "Overview of
/// Interactions").
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetPath(Vec<u8>);

impl TargetPath {
    /// Normalises `path`.
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

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// How many bytes it has.
    #[must_use]
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// How many names it has.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.0.split(|byte| *byte == b'/').skip(1).count()
    }

    /// The name of this volume's entry in the crust directory.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest(Sha256::digest(&self.0).into())
    }

    /// This path and its parents, nearest first, each with what remains of the path below it.
    pub fn ancestors(&self) -> impl Iterator<Item = (TargetPath, &Path)> {
        // By their lengths: compared name by name a deep path would cost its depth squared.
        self.as_path().ancestors().map(|ancestor| {
            let parent = ancestor.as_os_str().as_bytes();
            let rest = &self.0[parent.len()..];
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            (Self(parent.to_vec()), Path::new(OsStr::from_bytes(rest)))
        })
    }

    /// The digests of its parents and, last, of itself, each with the path's length: all in one pass,
    /// where asking each of a deep path's would cost its depth squared.
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

    /// How a message calls this volume: its CSI name where the path has one.
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

/// For people, in messages and logs: what isn't printable is escaped. A program is given the path.
impl fmt::Display for TargetPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&printable(&self.as_path().to_string_lossy()))
    }
}

/// SHA-256 of a normalised target path: the name of an entry of the crust directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of arbitrary bytes, for records that aren't named by a target path.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The first 12 hex digits: enough to tell the volumes of one node apart.
    #[must_use]
    pub fn short(&self) -> String {
        hex::encode(&self.0[..6])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        // Twice as long as a digest, and ASCII.
        let _ = hex::encode_to_slice(self.0, &mut text);
        formatter.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// A string that isn't a digest.
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
