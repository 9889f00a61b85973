//! The binds that a kubelet without the KEP makes on the host for a subPath before it creates a container.

use std::fs::{self, DirBuilder, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::mounts;

/// A container's `volumeMounts[].subPath` as kubelet sees it.
#[derive(Debug, Clone, Copy)]
pub struct SubPath<'a> {
    pub pod_uid: &'a str,
    /// The name of the volume's directory, which the bind's path contains.
    pub volume: &'a str,
    /// The volume's directory on the host.
    pub directory: &'a Path,
    /// The value of `subPath`.
    pub path: &'a str,
    /// The index of the mount in the container's `volumeMounts`.
    pub index: u32,
}

impl SubPath<'_> {
    /// Returns the path that kubelet binds the subPath to, for a container called `app`.
    pub fn place(&self, kubelet_dir: &Path) -> PathBuf {
        let pod = kubelet_dir.join("pods").join(self.pod_uid);
        let volume = pod.join("volume-subpaths").join(self.volume);
        volume.join("app").join(self.index.to_string())
    }

    /// Creates the subPath's directory in the volume's directory on the host if it is missing (`SafeMakeDir`), binds it
    /// (`doBindSubPath`), and returns the bind's path, which the container's config names. The bind is removed with the
    /// test's directory.
    #[track_caller]
    pub fn bind(&self, kubelet_dir: &Path) -> PathBuf {
        let source = self.directory.join(self.path);
        let make_all = |path: &Path| {
            let made = DirBuilder::new().recursive(true).mode(0o750).create(path);
            made.unwrap_or_else(|error| panic!("mkdir -p {}: {error}", path.display()));
        };
        if !source.exists() {
            make_all(&source);
        }
        let place = self.place(kubelet_dir);
        make_all(place.parent().expect("a container's directory"));
        if source.is_dir() {
            make_all(&place);
        } else {
            fs::write(&place, "").expect("touch");
        }
        let path_only = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        let source = File::options()
            .read(true)
            .custom_flags(path_only.bits())
            .open(&source)
            .expect("open a subPath");
        let link = format!("/proc/self/fd/{}", source.as_raw_fd());
        mounts::bind(Path::new(&link), &place);
        place
    }
}
