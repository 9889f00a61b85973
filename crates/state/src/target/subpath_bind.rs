//! Where a stock kubelet binds a volume's subPath before it asks for the container.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::{TargetPath, pod_csi_directory};

/// `<kubelet dir>/pods/<uid>/volume-subpaths/<volume>/<container>/<n>` (kubelet's
/// `pkg/volume/util/subpath`). `<volume>` is the directory's name under `kubernetes.io~csi`, if it
/// is a CSI volume's at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubpathBind {
    kubelet_dir: PathBuf,
    pod_uid: OsString,
    volume: OsString,
}

impl SubpathBind {
    /// `None` for any other path.
    pub(super) fn of(path: &TargetPath) -> Option<Self> {
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

    /// The name that the bind has from its volume.
    #[must_use]
    pub fn volume(&self) -> &OsStr {
        &self.volume
    }

    /// The directory that holds the CSI volumes of the same pod.
    #[must_use]
    pub fn csi_directory(&self) -> PathBuf {
        pod_csi_directory(&self.kubelet_dir, &self.pod_uid)
    }

    /// The target path of the CSI volume with that name.
    #[must_use]
    pub fn target(&self) -> TargetPath {
        let directory = self.csi_directory();
        let path = directory.join(&self.volume).join("mount");
        TargetPath(path.into_os_string().into_vec())
    }
}
