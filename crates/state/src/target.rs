//! Target paths: the names of volumes, as CSI `NodePublishVolume` gives them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::printable::printable;

mod lookup;
mod presence;
mod roots;
mod subpath_bind;

pub use lookup::TargetLookup;
pub(crate) use presence::TARGET;
pub use presence::{PresenceError, TargetPresence};
pub use subpath_bind::SubpathBind;

/// Why a path can't be a target path.
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

    /// The part of the path that names a CSI volume, if it does:
    /// `…/volumes/kubernetes.io~csi/<pv>/mount`, at the end or followed by more.
    #[must_use]
    pub fn csi_volume(&self) -> Option<CsiVolume<'_>> {
        let mut components: Vec<(usize, &[u8])> = Vec::with_capacity(16);
        let mut start = 1;
        for name in self.0[1..].split(|byte| *byte == b'/') {
            components.push((start + name.len(), name));
            start += name.len() + 1;
        }
        let at = components.windows(4).position(|window| {
            window[0].1 == b"volumes"
                && window[1].1 == b"kubernetes.io~csi"
                && window[3].1 == b"mount"
        })?;
        Some(CsiVolume {
            directory: &self.0[..components[at + 3].0],
            name: OsStr::from_bytes(components[at + 2].1),
        })
    }

    /// Returns the target path of the CSI volume whose directory this is, or is below, by its form, and what remains
    /// of this path below it; `None` for any other path.
    #[must_use]
    pub fn csi_directory(&self) -> Option<(TargetPath, &Path)> {
        let directory = Self(self.csi_volume()?.directory.to_vec());
        let below = &self.0[directory.length()..];
        let below = below.strip_prefix(b"/").unwrap_or(below);
        Some((directory, Path::new(OsStr::from_bytes(below))))
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

    /// The pod that the path is of, if it is kubelet's `…/pods/<uid>/volumes/…`.
    #[must_use]
    pub fn pod_uid(&self) -> Option<&OsStr> {
        let mut names = self.0.split(|byte| *byte == b'/').skip(1);
        let mut window = [names.next()?, names.next()?, names.next()?];
        loop {
            if window[0] == b"pods" && window[2] == b"volumes" {
                return Some(OsStr::from_bytes(window[1]));
            }
            window = [window[1], window[2], names.next()?];
        }
    }

    /// Returns the root directory of the kubelet whose CSI volume's target path this is, or is below;
    /// `None` for any other path.
    #[must_use]
    pub fn kubelet_dir(&self) -> Option<&Path> {
        // <root>/pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
        let length = self.csi_volume()?.directory().as_os_str().len();
        let directory = Path::new(OsStr::from_bytes(&self.0[..length]));
        let pods = directory.ancestors().nth(5)?;
        pods.parent().filter(|_| pods.ends_with("pods"))
    }

    /// What the path says where it is of a stock kubelet's bind of a subPath, at it or below it.
    #[must_use]
    pub fn subpath_bind(&self) -> Option<SubpathBind> {
        SubpathBind::of(self)
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

/// What a path says of the CSI volume that it leads to or into.
#[derive(Debug, PartialEq, Eq)]
pub struct CsiVolume<'a> {
    directory: &'a [u8],
    /// The directory's name under `kubernetes.io~csi`: the PV's or inline volume's name.
    pub name: &'a OsStr,
}

impl CsiVolume<'_> {
    /// The volume's own directory, `…/kubernetes.io~csi/<pv>/mount`: no parent of it can be a
    /// volume.
    #[must_use]
    pub fn directory(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.directory))
    }
}

/// The directory below a kubelet's root that holds the CSI volumes of one pod.
#[must_use]
pub fn pod_csi_directory(kubelet_dir: &Path, pod_uid: impl AsRef<Path>) -> PathBuf {
    let mut path = kubelet_dir.join("pods");
    path.push(pod_uid);
    path.push("volumes");
    path.push("kubernetes.io~csi");
    path
}

/// SHA-256 of a normalised target path: the name of an entry of the crust directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of arbitrary bytes, for records that aren't named by a target path.
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
