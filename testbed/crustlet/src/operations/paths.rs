//! The host paths of a container's volumes, for the container runtime.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, fchmod, fchown, openat};

use super::{OperationError, directories, subpath};
use crate::volumes::layout::RootDirLayout;

/// The kind of a pod's volume, which determines its path on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeKind {
    Csi {
        /// The name of the volume's directory.
        directory: String,
        /// Whether the runtime mounts the volume. The runtime then also resolves subPaths, because the volume isn't
        /// mounted on the host.
        by_runtime: bool,
        /// Whether the volume is read-only in all containers.
        read_only: bool,
    },
    EmptyDir {
        /// The volume's name in the pod.
        name: String,
        /// The pod's fsGroup.
        group: Option<i64>,
    },
    HostPath {
        path: PathBuf,
        /// `type` of the volume.
        kind: String,
    },
}

/// A request for the source of a container's mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathRequest {
    pub(crate) volume: VolumeKind,
    /// The subPath. `None` means the whole volume.
    pub(crate) subpath: Option<PathBuf>,
}

/// The host path of a container's mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedPath {
    pub(crate) path: PathBuf,
    /// Whether the mount is read-only even if the container doesn't request that.
    pub(crate) read_only: bool,
}

/// Returns the sources of a container's mounts, in the order of the requests. Creates directories and bind mounts as
/// needed.
pub(crate) fn mount_sources(
    layout: &RootDirLayout,
    pod: &str,
    container: &str,
    requests: &[PathRequest],
) -> Result<Vec<ResolvedPath>, OperationError> {
    let sources = requests.iter().enumerate().map(|(index, request)| {
        let (path, read_only) = volume_path(layout, pod, &request.volume)?;
        let path = match (&request.subpath, &request.volume) {
            (None, _) => path,
            // KEP-2857, "Enhancements to Kubelet": kubelet neither resolves nor bind-mounts the subPath.
            (
                Some(subpath),
                VolumeKind::Csi {
                    by_runtime: true, ..
                },
            ) => path.join(subpath),
            (Some(subpath), volume) => {
                let name = match volume {
                    VolumeKind::Csi { directory, .. } => directory.as_str(),
                    VolumeKind::EmptyDir { name, .. } => name,
                    VolumeKind::HostPath { .. } => "hostpath",
                };
                let bind_mounts = layout.subpaths(pod).join(name).join(container);
                let mount_point = bind_mounts.join(index.to_string());
                subpath::bind(&resolve_host_path(path, volume)?, subpath, &mount_point)?;
                mount_point
            }
        };
        Ok(ResolvedPath { path, read_only })
    });
    sources.collect()
}

/// Resolves symbolic links in a `hostPath`, as kubelet does before it resolves a subPath. The paths of other volumes
/// contain no symbolic links.
fn resolve_host_path(path: PathBuf, volume: &VolumeKind) -> Result<PathBuf, OperationError> {
    match volume {
        VolumeKind::HostPath { .. } => {
            fs::canonicalize(&path).map_err(OperationError::io("realpath", &path))
        }
        VolumeKind::Csi { .. } | VolumeKind::EmptyDir { .. } => Ok(path),
    }
}

/// Returns the host path of a volume, and whether it is read-only.
fn volume_path(
    layout: &RootDirLayout,
    pod: &str,
    volume: &VolumeKind,
) -> Result<(PathBuf, bool), OperationError> {
    match volume {
        VolumeKind::Csi {
            directory,
            read_only,
            ..
        } => Ok((layout.target(pod, directory), *read_only)),
        VolumeKind::EmptyDir { name, group } => {
            let path = layout.empty_dirs(pod).join(name);
            create_empty_dir(&path, *group)?;
            Ok((path, false))
        }
        VolumeKind::HostPath { path, kind } => {
            prepare_host_path(path, kind)?;
            Ok((path.clone(), false))
        }
    }
}

/// Creates an `emptyDir` with kubelet's mode, unless it exists. The mode and group of an existing directory aren't
/// checked, so the directory gets them under a temporary name and is then renamed.
fn create_empty_dir(path: &Path, group: Option<i64>) -> Result<(), OperationError> {
    if path
        .try_exists()
        .map_err(OperationError::io("stat", path))?
    {
        return Ok(());
    }
    // The names of volumes contain no dot, so no other volume has this name.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}"));
    directories::create_directory(&temporary)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, &temporary, flags, Mode::empty())
        .map_err(OperationError::system("open", &temporary))?;
    let mut mode = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    if let Some(group) = group {
        let gid = u32::try_from(group).map_err(|_| OperationError::InvalidFsGroup(group))?;
        fchown(&directory, None, Some(Gid::from_raw(gid)))
            .map_err(OperationError::system("fchown", &temporary))?;
        mode |= Mode::SGID;
    }
    // mkdir(2) has applied the umask.
    fchmod(&directory, mode).map_err(OperationError::system("fchmod", &temporary))?;
    fs::rename(&temporary, path).map_err(OperationError::io("rename", path))
}

/// Checks that a `hostPath` has the requested type. Creates a missing one for `DirectoryOrCreate` and `FileOrCreate`.
fn prepare_host_path(path: &Path, kind: &str) -> Result<(), OperationError> {
    let stat_error = OperationError::io("stat", path);
    let metadata = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(stat_error(error)),
    };
    let file_type = metadata.as_ref().map(fs::Metadata::file_type);
    let is_valid = match (kind, file_type) {
        // The runtime creates a missing directory.
        ("", _) => true,
        ("DirectoryOrCreate", None) => {
            let created = DirBuilder::new().recursive(true).mode(0o755).create(path);
            created.map_err(OperationError::io("mkdir", path))?;
            true
        }
        ("FileOrCreate", None) => {
            let created = fs::File::options().create(true).append(true).open(path);
            created.map_err(OperationError::io("open", path))?;
            true
        }
        ("Directory" | "DirectoryOrCreate", Some(file_type)) => file_type.is_dir(),
        ("File" | "FileOrCreate", Some(file_type)) => file_type.is_file(),
        ("Socket", Some(file_type)) => file_type.is_socket(),
        ("CharDevice", Some(file_type)) => file_type.is_char_device(),
        ("BlockDevice", Some(file_type)) => file_type.is_block_device(),
        _ => false,
    };
    if is_valid {
        Ok(())
    } else {
        let path = path.display();
        Err(OperationError::Other(format!(
            "hostPath type check failed: {path} is not a {kind}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    fn csi(by_runtime: bool) -> VolumeKind {
        VolumeKind::Csi {
            directory: "pv-1".to_owned(),
            by_runtime,
            read_only: true,
        }
    }

    #[test]
    fn a_deferred_volumes_subpath_follows_the_target_path() {
        let layout = RootDirLayout::new(Path::new("/nowhere"));
        let requests = [None, Some(PathBuf::from("a/b"))].map(|subpath| PathRequest {
            volume: csi(true),
            subpath,
        });
        let sources = mount_sources(&layout, "uid", "app", &requests).unwrap();
        let target = layout.target("uid", "pv-1");
        assert_eq!(sources[0].path, target);
        assert_eq!(sources[1].path, target.join("a/b"));
        assert!(sources[0].read_only);
    }

    #[test]
    fn an_empty_dir_is_created_once() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        let request = PathRequest {
            volume: VolumeKind::EmptyDir {
                name: "scratch".to_owned(),
                group: Some(77),
            },
            subpath: None,
        };
        let sources = mount_sources(&layout, "uid", "app", std::slice::from_ref(&request)).unwrap();
        let metadata = fs::metadata(&sources[0].path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o2777);
        assert_eq!(metadata.gid(), 77);
        fs::write(sources[0].path.join("file"), "kept").unwrap();
        let sources = mount_sources(&layout, "uid", "app", &[request]).unwrap();
        assert!(sources[0].path.join("file").exists());
    }

    #[test]
    fn a_half_created_empty_dir_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        let request = |group| {
            let name = "scratch".to_owned();
            [PathRequest {
                volume: VolumeKind::EmptyDir { name, group },
                subpath: None,
            }]
        };
        // Fails after mkdir(2), before fchmod(2).
        let error = mount_sources(&layout, "uid", "app", &request(Some(-1))).unwrap_err();
        assert!(
            matches!(error, OperationError::InvalidFsGroup(-1)),
            "{error}"
        );
        let sources = mount_sources(&layout, "uid", "app", &request(Some(77))).unwrap();
        let metadata = fs::metadata(&sources[0].path).unwrap();
        assert_eq!(
            (metadata.permissions().mode() & 0o7777, metadata.gid()),
            (0o2777, 77)
        );
        let entries = fs::read_dir(layout.empty_dirs("uid")).unwrap();
        assert_eq!(entries.count(), 1);
    }

    #[test]
    fn a_host_path_must_have_its_type() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let cases = [
            ("", "nothing", true),
            ("Directory", "nothing", false),
            ("DirectoryOrCreate", "directory", true),
            ("Directory", "directory", true),
            ("File", "directory", false),
            ("FileOrCreate", "file", true),
            ("File", "file", true),
            ("Socket", "file", false),
            ("Other", "file", false),
        ];
        for (kind, name, is_valid) in cases {
            let result = prepare_host_path(&path(name), kind);
            assert_eq!(result.is_ok(), is_valid, "{kind} {name}: {result:?}");
        }
    }
}
