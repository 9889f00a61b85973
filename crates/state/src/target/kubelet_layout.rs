//! Target paths by kubelet's layout of directories: its root directory, the pod, the CSI volume, and the bind of a
//! subPath that a stock kubelet makes before it asks for the container.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::TargetPath;

/// The CSI volume that a path leads to or into.
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

impl TargetPath {
    /// Returns the part of the path that names a CSI volume, `…/volumes/kubernetes.io~csi/<pv>/mount`, at the end or
    /// followed by more; `None` for any other path.
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

    /// Returns the UID of the path's pod in `…/pods/<uid>/volumes/…`; `None` for any other path.
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

    /// Returns the stock kubelet's bind of a subPath that the path is at or below; `None` for any other path.
    #[must_use]
    pub fn subpath_bind(&self) -> Option<SubpathBind> {
        SubpathBind::of(self)
    }
}

/// A bind of a subPath by a stock kubelet: `<kubelet dir>/pods/<uid>/volume-subpaths/<volume>/<container>/<n>`
/// (kubelet's `pkg/volume/util/subpath`). `<volume>` is the directory's name under `kubernetes.io~csi`, if it is a CSI
/// volume's at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubpathBind {
    kubelet_dir: PathBuf,
    pod_uid: OsString,
    volume: OsString,
}

impl SubpathBind {
    fn of(path: &TargetPath) -> Option<Self> {
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

    /// Returns the name that the bind has from its volume.
    #[must_use]
    pub fn volume(&self) -> &OsStr {
        &self.volume
    }

    /// Returns the directory that holds the CSI volumes of the same pod.
    #[must_use]
    pub fn csi_directory(&self) -> PathBuf {
        pod_csi_directory(&self.kubelet_dir, &self.pod_uid)
    }

    /// Returns the target path of the CSI volume with that name.
    #[must_use]
    pub fn target(&self) -> TargetPath {
        let directory = self.csi_directory();
        let path = directory.join(&self.volume).join("mount");
        TargetPath(path.into_os_string().into_vec())
    }
}
