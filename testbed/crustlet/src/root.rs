//! The root directory, which belongs to one crustlet and to no kubelet.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::files::{Directory, FileError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::objects::name::{UidError, is_uid, new_uid};

/// Says whose the directory is. In it is the id by which the container runtime's pods are known as its.
const LOCK: &str = "crustlet.lock";

/// Where pods, staged volumes and claims are.
const KEPT: [&str; 3] = ["pods", "plugins/kubernetes.io/csi", "crustlet/claims"];

/// What a kubelet leaves in its own.
const KUBELETS: [&str; 4] = [
    "cpu_manager_state",
    "memory_manager_state",
    "pki",
    "config.yaml",
];

/// The directory can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    /// A kubelet has it.
    #[error(
        "--root-dir {}: it is a kubelet's, which has {file}, and what crustlet doesn't know there it would take away; hint: a directory of its own, among runcrust's kubelet_dirs",
        root.display()
    )]
    Kubelets {
        /// The directory.
        root: PathBuf,
        /// By which it is known.
        file: &'static str,
    },
    /// It has pods, and nobody says whose.
    #[error(
        "--root-dir {}: it has pods, volumes or claims, and no crustlet.lock that says whose; hint: a directory of its own",
        .0.display()
    )]
    Others(PathBuf),
    /// Another crustlet runs.
    #[error("--root-dir {}: another crustlet has it", .0.display())]
    Taken(PathBuf),
    /// Somebody else could put there what root follows.
    #[error("--root-dir: {0}")]
    File(#[from] FileError),
    /// The lock says something else than an id.
    #[error(
        "{}: {id:?} is no id; hint: what runs has it as the label {} in the container runtime: write that one into the file, or, where nothing has the label, a new one (uuidgen)",
        path.display(),
        crate::pods::labels::OWNER
    )]
    Id {
        /// The file.
        path: PathBuf,
        /// What is in it.
        id: String,
    },
    /// There is no id for it.
    #[error(transparent)]
    Uid(#[from] UidError),
    /// A call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        /// The system call.
        call: &'static str,
        /// Of what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Held as long as the process lives.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    id: String,
    _lock: File,
}

impl Root {
    /// Takes a directory, which is made where there is none.
    pub(crate) fn take(root: &Path) -> Result<Self, RootError> {
        refuse_others(root)?;
        super::operations::make_directory(root).map_err(|error| RootError::Call {
            call: "mkdir",
            path: root.to_owned(),
            source: io::Error::other(error),
        })?;
        // As the kernel tells where something is mounted: without links, and without `..`.
        let path = fs::canonicalize(root).map_err(failed("realpath", root))?;
        Directory::open(&path)?;
        let lock = path.join(LOCK);
        let mut options = File::options();
        options.create(true).append(true).read(true);
        let file = options.open(&lock).map_err(failed("open", &lock))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(RootError::Taken(path)),
            Err(errno) => return Err(failed("flock", &lock)(errno.into())),
        }
        let id = id(&file, &lock, &path)?;
        Ok(Self {
            path,
            id,
            _lock: file,
        })
    }

    /// Where it is, by no link.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its own, and no other's: pods are known by it, whatever the node is called, and however many crustlets ask
    /// the same container runtime.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }
}

fn failed(call: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RootError {
    let path = path.to_owned();
    move |source| RootError::Call { call, path, source }
}

/// A directory that no crustlet had before.
fn refuse_others(root: &Path) -> Result<(), RootError> {
    let lock = root.join(LOCK);
    if lock.try_exists().map_err(failed("stat", &lock))? {
        return Ok(());
    }
    let is_there = |file: &&str| root.join(file).exists();
    if let Some(file) = KUBELETS.into_iter().find(is_there) {
        let root = root.to_owned();
        return Err(RootError::Kubelets { root, file });
    }
    if has_anything(root) {
        return Err(RootError::Others(root.to_owned()));
    }
    Ok(())
}

/// Whether somebody's pods, volumes or claims are there.
fn has_anything(root: &Path) -> bool {
    let has_any = |directory: &str| {
        let mut entries = fs::read_dir(root.join(directory));
        entries.as_mut().is_ok_and(|it| it.next().is_some())
    };
    KEPT.iter().any(|directory| has_any(directory))
}

/// What is in the lock; made with it, before there is any pod. By another one what runs would be nobody's, and its
/// volumes be taken away.
fn id(mut file: &File, lock: &Path, root: &Path) -> Result<String, RootError> {
    let read = bounded::read_open(file, bounded::KERNELS_WORD).map_err(failed("read", lock))?;
    let there = String::from_utf8_lossy(&read).trim().to_owned();
    if is_uid(&there) {
        return Ok(there);
    }
    if !there.is_empty() || has_anything(root) {
        let path = lock.to_owned();
        return Err(RootError::Id { path, id: there });
    }
    let made = new_uid()?;
    writeln!(file, "{made}").map_err(failed("write", lock))?;
    file.sync_all().map_err(failed("fsync", lock))?;
    let directory = File::open(root).map_err(failed("open", root))?;
    directory.sync_all().map_err(failed("fsync", root))?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_crustlets() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("crustlet");
        let first = Root::take(&root).unwrap();
        let second = Root::take(&root).unwrap_err();
        assert!(matches!(second, RootError::Taken(_)), "{second}");
        fs::create_dir_all(root.join("pods/uid")).unwrap();
        let id = first.id().to_owned();
        drop(first);
        let again = Root::take(&root).expect("its own pods");
        assert_eq!(again.id(), id, "by which its pods are known");
        let other = Root::take(&place.path().join("other")).unwrap();
        assert_ne!(other.id(), id);
    }

    #[test]
    fn what_is_no_id_is_no_new_one() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(LOCK), "node-1\n").unwrap();
        let error = Root::take(place.path()).unwrap_err();
        assert!(matches!(error, RootError::Id { .. }), "{error}");
        fs::write(place.path().join(LOCK), "").unwrap();
        for kept in KEPT {
            let kept = place.path().join(kept).join("some");
            fs::create_dir_all(&kept).unwrap();
            let error = Root::take(place.path()).unwrap_err();
            assert!(matches!(error, RootError::Id { .. }), "{error}");
            fs::remove_dir(kept).unwrap();
        }
        Root::take(place.path()).expect("written before there was a pod");
    }

    #[test]
    fn it_is_known_by_the_path_that_the_kernel_tells() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap().join("real");
        fs::create_dir_all(real.join("below")).unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink("real", &link).unwrap();
        for way in [link.clone(), real.join("below/..")] {
            assert_eq!(Root::take(&way).unwrap().path(), real);
        }
        let missing = link.join("missing");
        assert_eq!(Root::take(&missing).unwrap().path(), real.join("missing"));
    }

    #[test]
    fn what_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        let error = Root::take(&root).unwrap_err().to_string();
        assert!(error.starts_with("--root-dir: "), "{error}");
        assert!(error.contains("only root may"), "{error}");
    }

    #[test]
    fn a_kubelets_directory_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("pods/uid")).unwrap();
        let others = Root::take(place.path()).unwrap_err();
        assert!(matches!(others, RootError::Others(_)), "{others}");
        fs::write(place.path().join("cpu_manager_state"), "{}").unwrap();
        let kubelets = Root::take(place.path()).unwrap_err();
        assert!(kubelets.to_string().contains("cpu_manager_state"));
    }
}
