//! The paths of a container's volumes on the host, for the container runtime.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, fchmod, fchown, openat};

use super::{OperationError, directories, subpath};
use crate::volumes::layout::Layout;

/// The kind of a pod's volume, by which its path on the host is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum VolumeKind {
    /// A CSI volume's target path.
    Csi {
        /// The volume's directory in the pod's.
        directory: String,
        /// Whether the runtime mounts it: it resolves subPaths, and nothing is there for us to look at.
        by_runtime: bool,
        /// For every container.
        read_only: bool,
    },
    /// A directory of the pod's own.
    EmptyDir {
        /// The volume's name.
        name: String,
        /// The pod's fsGroup.
        group: Option<i64>,
    },
    /// The host's.
    HostPath {
        path: PathBuf,
        /// `type`
        kind: String,
    },
}

/// A request for the path of a container's mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathRequest {
    /// The volume.
    pub(crate) place: VolumeKind,
    /// The part of the volume, or `None` for all of it.
    pub(crate) subpath: Option<PathBuf>,
}

/// The source of a container's mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountSource {
    /// The path on the host.
    pub(crate) path: PathBuf,
    /// Whether it is mounted read-only whatever the container asks for.
    pub(crate) read_only: bool,
}

/// Returns the sources of a container's mounts in their order. Makes those that have to be made.
pub(crate) fn paths(
    layout: &Layout,
    pod: &str,
    container: &str,
    wanted: &[PathRequest],
) -> Result<Vec<MountSource>, OperationError> {
    let given = wanted.iter().enumerate().map(|(index, wanted)| {
        let (path, read_only) = base(layout, pod, &wanted.place)?;
        let path = match (&wanted.subpath, &wanted.place) {
            (None, _) => path,
            // KEP-2857, "Enhancements to Kubelet": no probing, no bind.
            (
                Some(subpath),
                VolumeKind::Csi {
                    by_runtime: true, ..
                },
            ) => path.join(subpath),
            (Some(part), place) => {
                let name = match place {
                    VolumeKind::Csi { directory, .. } => directory.as_str(),
                    VolumeKind::EmptyDir { name, .. } => name,
                    VolumeKind::HostPath { .. } => "hostpath",
                };
                let binds = layout.subpaths(pod).join(name).join(container);
                let place = binds.join(index.to_string());
                subpath::bind(&real(path, &wanted.place)?, part, &place)?;
                place
            }
        };
        Ok(MountSource { path, read_only })
    });
    given.collect()
}

/// A host's path may be a link, as for kubelet, which looks for subPaths where it leads. Ours are none.
fn real(path: PathBuf, place: &VolumeKind) -> Result<PathBuf, OperationError> {
    match place {
        VolumeKind::HostPath { .. } => {
            fs::canonicalize(&path).map_err(OperationError::io("realpath", &path))
        }
        VolumeKind::Csi { .. } | VolumeKind::EmptyDir { .. } => Ok(path),
    }
}

fn base(layout: &Layout, pod: &str, place: &VolumeKind) -> Result<(PathBuf, bool), OperationError> {
    match place {
        VolumeKind::Csi {
            directory,
            read_only,
            ..
        } => Ok((layout.target(pod, directory), *read_only)),
        VolumeKind::EmptyDir { name, group } => {
            let path = layout.empty_dirs(pod).join(name);
            empty_dir(&path, *group)?;
            Ok((path, false))
        }
        VolumeKind::HostPath { path, kind } => {
            host_path(path, kind)?;
            Ok((path.clone(), false))
        }
    }
}

/// With kubelet's mode; what is in it already is the pod's. It has its name once it is whole: nobody would look at
/// its mode and its group again.
fn empty_dir(path: &Path, group: Option<i64>) -> Result<(), OperationError> {
    if path
        .try_exists()
        .map_err(OperationError::io("stat", path))?
    {
        return Ok(());
    }
    // Volumes' names have no dot.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = path.with_file_name(format!(".{name}"));
    directories::directory(&unfinished)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, &unfinished, flags, Mode::empty())
        .map_err(OperationError::system("open", &unfinished))?;
    let mut mode = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    if let Some(group) = group {
        let gid = u32::try_from(group).map_err(|_| OperationError::NotAGroup(group))?;
        fchown(&directory, None, Some(Gid::from_raw(gid)))
            .map_err(OperationError::system("fchown", &unfinished))?;
        mode |= Mode::SGID;
    }
    // Not as our umask would have it.
    fchmod(&directory, mode).map_err(OperationError::system("fchmod", &unfinished))?;
    fs::rename(&unfinished, path).map_err(OperationError::io("rename", path))
}

/// Checks or makes what `hostPath.type` asks for.
fn host_path(path: &Path, kind: &str) -> Result<(), OperationError> {
    let failed = OperationError::io("stat", path);
    let metadata = match fs::metadata(path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let there = metadata.as_ref().map(fs::Metadata::file_type);
    let is_right = match (kind, there) {
        // The runtime makes a directory where there is nothing.
        ("", _) => true,
        ("DirectoryOrCreate", None) => {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
            made.map_err(OperationError::io("mkdir", path))?;
            true
        }
        ("FileOrCreate", None) => {
            let made = fs::File::options().create(true).append(true).open(path);
            made.map_err(OperationError::io("open", path))?;
            true
        }
        ("Directory" | "DirectoryOrCreate", Some(it)) => it.is_dir(),
        ("File" | "FileOrCreate", Some(it)) => it.is_file(),
        ("Socket", Some(it)) => it.is_socket(),
        ("CharDevice", Some(it)) => it.is_char_device(),
        ("BlockDevice", Some(it)) => it.is_block_device(),
        _ => false,
    };
    if is_right {
        Ok(())
    } else {
        let path = path.display();
        Err(OperationError::Task(format!(
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
    fn a_deferred_volumes_subpath_is_its_target_path_and_the_rest() {
        let layout = Layout::new(Path::new("/nowhere"));
        let wanted = [None, Some(PathBuf::from("a/b"))].map(|subpath| PathRequest {
            place: csi(true),
            subpath,
        });
        let given = paths(&layout, "uid", "app", &wanted).unwrap();
        let target = layout.target("uid", "pv-1");
        assert_eq!(given[0].path, target);
        assert_eq!(given[1].path, target.join("a/b"));
        assert!(given[0].read_only);
    }

    #[test]
    fn an_empty_dir_is_made_once_for_all() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
        let wanted = PathRequest {
            place: VolumeKind::EmptyDir {
                name: "scratch".to_owned(),
                group: Some(77),
            },
            subpath: None,
        };
        let given = paths(&layout, "uid", "app", std::slice::from_ref(&wanted)).unwrap();
        let made = fs::metadata(&given[0].path).unwrap();
        assert_eq!(made.permissions().mode() & 0o7777, 0o2777);
        assert_eq!(made.gid(), 77);
        fs::write(given[0].path.join("file"), "kept").unwrap();
        let again = paths(&layout, "uid", "app", &[wanted]).unwrap();
        assert!(again[0].path.join("file").exists());
    }

    #[test]
    fn an_empty_dir_that_was_made_half_is_made_whole() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
        let wanted = |group| {
            let name = "scratch".to_owned();
            let place = VolumeKind::EmptyDir { name, group };
            [PathRequest {
                place,
                subpath: None,
            }]
        };
        // Between its mkdir and its chmod.
        let error = paths(&layout, "uid", "app", &wanted(Some(-1))).unwrap_err();
        assert!(matches!(error, OperationError::NotAGroup(-1)), "{error}");
        let given = paths(&layout, "uid", "app", &wanted(Some(77))).unwrap();
        let made = fs::metadata(&given[0].path).unwrap();
        assert_eq!(
            (made.permissions().mode() & 0o7777, made.gid()),
            (0o2777, 77)
        );
        let all = fs::read_dir(layout.empty_dirs("uid")).unwrap();
        assert_eq!(all.count(), 1);
    }

    #[test]
    fn a_host_path_is_what_it_is_said_to_be() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
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
        for (kind, name, is_right) in cases {
            let checked = host_path(&path(name), kind);
            assert_eq!(checked.is_ok(), is_right, "{kind} {name}: {checked:?}");
        }
    }
}
