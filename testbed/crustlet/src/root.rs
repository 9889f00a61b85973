//! The root directory. Only one crustlet can use it at a time, and it must not be a kubelet's.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::files::{Directory, FileError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::objects::name::{UidError, is_uid, new_uid};

/// The lock file. It contains the ID that crustlet labels its pods with in the container runtime.
const LOCK: &str = "crustlet.lock";

/// Directories that contain pods, staged volumes and claims.
const STATE_DIRS: [&str; 3] = ["pods", "plugins/kubernetes.io/csi", "crustlet/claims"];

/// Entries of a kubelet's root directory that crustlet doesn't create.
const KUBELET_ENTRIES: [&str; 4] = [
    "cpu_manager_state",
    "memory_manager_state",
    "pki",
    "config.yaml",
];

/// The reason why the root directory can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    #[error(
        "--root-dir {}: the directory belongs to a kubelet (it contains {entry}), whose files crustlet would remove; hint: use a directory of crustlet's own and list it in runcrust's kubelet_dirs",
        root.display()
    )]
    UsedByKubelet {
        root: PathBuf,
        /// The entry that a kubelet has created.
        entry: &'static str,
    },
    /// The directory contains pods, volumes or claims, but no lock file.
    #[error(
        "--root-dir {}: the directory contains pods, volumes or claims but no crustlet.lock, so their owner is unknown; hint: use a directory of crustlet's own",
        .0.display()
    )]
    UnknownOwner(PathBuf),
    /// Another crustlet holds the lock.
    #[error(
        "--root-dir {}: another crustlet is using the directory; hint: stop it, or use another directory",
        .0.display()
    )]
    InUse(PathBuf),
    /// A user other than root could replace the directory or one above it.
    #[error(
        "--root-dir: {} {reason}; hint: let only root own and write to the root directory and the directories above it \
         (chown root:root, chmod go-w)",
        path.display()
    )]
    Untrusted { path: PathBuf, reason: &'static str },
    /// The directory can't be opened.
    #[error("--root-dir: {0}")]
    File(#[source] FileError),
    /// The lock file contains something other than an ID.
    #[error(
        "{}: {id:?} is not a valid ID; hint: write the value of the label {} of this agent's pods in the container runtime into the file, or a new UUID (uuidgen) if no pod has the label",
        path.display(),
        crate::pods::labels::OWNER
    )]
    InvalidId {
        /// The path of the lock file.
        path: PathBuf,
        /// The contents of the lock file.
        id: String,
    },
    /// No new ID could be generated.
    #[error(transparent)]
    Uid(#[from] UidError),
    /// A system call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl From<FileError> for RootError {
    fn from(error: FileError) -> Self {
        match error {
            // The hint of `FileError::Untrusted`, to stage the volume again, doesn't apply to this directory.
            FileError::Untrusted { path, reason } => Self::Untrusted { path, reason },
            error => Self::File(error),
        }
    }
}

/// The locked root directory. The lock is held until the process ends.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    id: String,
    _lock: File,
}

impl Root {
    /// Creates the directory if it doesn't exist, and locks it.
    pub(crate) fn acquire(root: &Path) -> Result<Self, RootError> {
        refuse_foreign_directory(root)?;
        super::operations::create_directory(root).map_err(|error| RootError::Call {
            call: "mkdir",
            path: root.to_owned(),
            source: io::Error::other(error),
        })?;
        // The kernel's mount table has paths without symbolic links and without `..`.
        let path = fs::canonicalize(root).map_err(call_error("realpath", root))?;
        Directory::open(&path)?;
        let lock = path.join(LOCK);
        let mut options = File::options();
        options.create(true).append(true).read(true);
        let file = options.open(&lock).map_err(call_error("open", &lock))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(RootError::InUse(path)),
            Err(errno) => return Err(call_error("flock", &lock)(errno.into())),
        }
        let id = load_id(&file, &lock, &path)?;
        Ok(Self {
            path,
            id,
            _lock: file,
        })
    }

    /// Returns the canonical path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the ID of this root directory. Pods in the container runtime are labelled with it, so that several
    /// crustlets can use one container runtime, and the node can be renamed.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

fn call_error(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RootError {
    let path = path.to_owned();
    move |source| RootError::Call { call, path, source }
}

/// Refuses a directory without a lock file that a kubelet uses, or that contains pods, volumes or claims.
fn refuse_foreign_directory(root: &Path) -> Result<(), RootError> {
    let lock = root.join(LOCK);
    if lock.try_exists().map_err(call_error("stat", &lock))? {
        return Ok(());
    }
    let exists = |entry: &&str| root.join(entry).exists();
    if let Some(entry) = KUBELET_ENTRIES.into_iter().find(exists) {
        let root = root.to_owned();
        return Err(RootError::UsedByKubelet { root, entry });
    }
    if has_state(root) {
        return Err(RootError::UnknownOwner(root.to_owned()));
    }
    Ok(())
}

/// Returns whether the directory contains pods, volumes or claims.
fn has_state(root: &Path) -> bool {
    let has_any = |directory: &str| {
        let mut entries = fs::read_dir(root.join(directory));
        entries
            .as_mut()
            .is_ok_and(|entries| entries.next().is_some())
    };
    STATE_DIRS.iter().any(|directory| has_any(directory))
}

/// Returns the ID in the lock file. An empty file gets a new ID, unless the directory already contains state: pods that
/// are labelled with another ID would not be recognised, and their volumes would be cleaned up.
fn load_id(mut file: &File, lock: &Path, root: &Path) -> Result<String, RootError> {
    let read =
        bounded::read_open(file, bounded::MAX_KERNEL_VALUE).map_err(call_error("read", lock))?;
    let stored = String::from_utf8_lossy(&read).trim().to_owned();
    if is_uid(&stored) {
        return Ok(stored);
    }
    if !stored.is_empty() || has_state(root) {
        let path = lock.to_owned();
        return Err(RootError::InvalidId { path, id: stored });
    }
    let id = new_uid()?;
    writeln!(file, "{id}").map_err(call_error("write", lock))?;
    file.sync_all().map_err(call_error("fsync", lock))?;
    let directory = File::open(root).map_err(call_error("open", root))?;
    directory.sync_all().map_err(call_error("fsync", root))?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_crustlet_at_a_time_uses_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("crustlet");
        let first = Root::acquire(&root).unwrap();
        let second = Root::acquire(&root).unwrap_err();
        assert!(matches!(second, RootError::InUse(_)), "{second}");
        fs::create_dir_all(root.join("pods/uid")).unwrap();
        let id = first.id().to_owned();
        drop(first);
        let reacquired = Root::acquire(&root).expect("the pods are crustlet's own");
        assert_eq!(reacquired.id(), id, "the ID is kept");
        let other = Root::acquire(&dir.path().join("other")).unwrap();
        assert_ne!(other.id(), id);
    }

    #[test]
    fn an_invalid_id_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOCK), "node-1\n").unwrap();
        let error = Root::acquire(dir.path()).unwrap_err();
        assert!(matches!(error, RootError::InvalidId { .. }), "{error}");
        fs::write(dir.path().join(LOCK), "").unwrap();
        for directory in STATE_DIRS {
            let entry = dir.path().join(directory).join("some");
            fs::create_dir_all(&entry).unwrap();
            let error = Root::acquire(dir.path()).unwrap_err();
            assert!(matches!(error, RootError::InvalidId { .. }), "{error}");
            fs::remove_dir(entry).unwrap();
        }
        Root::acquire(dir.path()).expect("an empty file without any state gets a new ID");
    }

    #[test]
    fn the_path_is_canonical() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        fs::create_dir_all(real.join("below")).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("real", &link).unwrap();
        for path in [link.clone(), real.join("below/..")] {
            assert_eq!(Root::acquire(&path).unwrap().path(), real);
        }
        let missing = link.join("missing");
        assert_eq!(
            Root::acquire(&missing).unwrap().path(),
            real.join("missing")
        );
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Root::acquire(&root).unwrap_err().to_string();
        assert!(error.starts_with("--root-dir: "), "{error}");
        assert!(error.contains("let only root own and write to"), "{error}");
    }

    #[test]
    fn a_kubelets_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("pods/uid")).unwrap();
        let error = Root::acquire(dir.path()).unwrap_err();
        assert!(matches!(error, RootError::UnknownOwner(_)), "{error}");
        fs::write(dir.path().join("cpu_manager_state"), "{}").unwrap();
        let error = Root::acquire(dir.path()).unwrap_err();
        assert!(error.to_string().contains("cpu_manager_state"), "{error}");
    }
}
