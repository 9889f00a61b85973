//! The parts of a target path in kubelet's directory layout: the kubelet directory, the pod and the CSI volume. Also
//! the bind mounts that a stock kubelet makes for subPaths before it creates a container.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::TargetPath;

/// The CSI volume whose directory a path is, or is below.
#[derive(Debug, PartialEq, Eq)]
pub struct CsiVolume<'a> {
    directory: &'a [u8],
    /// The name of the directory below `kubernetes.io~csi`: that of the PV, or of the inline volume.
    pub name: &'a OsStr,
}

impl CsiVolume<'_> {
    /// Returns the directory where the volume is mounted, `…/kubernetes.io~csi/<pv>/mount`. No parent of it can be a
    /// volume.
    #[must_use]
    pub fn directory(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.directory))
    }
}

/// Returns the directory with the CSI volumes of a pod.
#[must_use]
pub fn pod_csi_directory(kubelet_dir: &Path, pod_uid: impl AsRef<Path>) -> PathBuf {
    let mut path = kubelet_dir.join("pods");
    path.push(pod_uid);
    path.push("volumes");
    path.push("kubernetes.io~csi");
    path
}

impl TargetPath {
    /// Returns the CSI volume of a path that is, or is below, `…/volumes/kubernetes.io~csi/<pv>/mount`; `None` for any
    /// other path.
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

    /// Returns the target path of the CSI volume whose directory this path is, or is below, and the rest of this path
    /// below it. Returns `None` for any other path. Only the form of the path is considered.
    #[must_use]
    pub fn csi_directory(&self) -> Option<(TargetPath, &Path)> {
        let directory = Self(self.csi_volume()?.directory.to_vec());
        let below = &self.0[directory.length()..];
        let below = below.strip_prefix(b"/").unwrap_or(below);
        Some((directory, Path::new(OsStr::from_bytes(below))))
    }

    /// Returns the pod's UID in `…/pods/<uid>/volumes/…`; `None` for any other path.
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

    /// Returns the kubelet directory of a path that is, or is below, the target path of a CSI volume; `None` for any
    /// other path.
    #[must_use]
    pub fn kubelet_dir(&self) -> Option<&Path> {
        // <kubelet dir>/pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
        let length = self.csi_volume()?.directory().as_os_str().len();
        let directory = Path::new(OsStr::from_bytes(&self.0[..length]));
        let pods = directory.ancestors().nth(5)?;
        pods.parent().filter(|_| pods.ends_with("pods"))
    }

    /// Returns the stock kubelet's bind mount of a subPath that this path is, or is below; `None` for any other path.
    #[must_use]
    pub fn subpath_bind(&self) -> Option<SubpathBind> {
        SubpathBind::parse(self)
    }
}

/// A stock kubelet's bind mount of a subPath: `<kubelet dir>/pods/<uid>/volume-subpaths/<volume>/<container>/<n>`
/// (kubelet's `pkg/volume/util/subpath`). For a CSI volume, `<volume>` is the name of its directory below
/// `kubernetes.io~csi`. It may be a volume of another kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubpathBind {
    kubelet_dir: PathBuf,
    pod_uid: OsString,
    volume: OsString,
}

impl SubpathBind {
    fn parse(path: &TargetPath) -> Option<Self> {
        let names: Vec<&[u8]> = path.0[1..].split(|byte| *byte == b'/').collect();
        let is_bind = |window: &[&[u8]]| window[0] == b"pods" && window[2] == b"volume-subpaths";
        let at = names.windows(4).position(is_bind)?;
        let mut kubelet_dir = PathBuf::from("/");
        kubelet_dir.extend(names[..at].iter().map(|name| OsStr::from_bytes(name)));
        let owned = |name: &[u8]| OsString::from_vec(name.to_vec());
        Some(Self {
            kubelet_dir,
            pod_uid: owned(names[at + 1]),
            volume: owned(names[at + 3]),
        })
    }

    /// Returns the name of the volume in the path.
    #[must_use]
    pub fn volume(&self) -> &OsStr {
        &self.volume
    }

    /// Returns the directory with the CSI volumes of the same pod.
    #[must_use]
    pub fn csi_directory(&self) -> PathBuf {
        pod_csi_directory(&self.kubelet_dir, &self.pod_uid)
    }

    /// Returns the target path of the CSI volume with the name [`Self::volume`].
    #[must_use]
    pub fn target(&self) -> TargetPath {
        let directory = self.csi_directory();
        let path = directory.join(&self.volume).join("mount");
        TargetPath(path.into_os_string().into_vec())
    }
}
