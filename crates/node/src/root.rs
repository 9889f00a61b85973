//! The root directory, which one crustlet has, and no kubelet.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Says whose the directory is.
const LOCK: &str = "crustlet.lock";

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
        "--root-dir {}: it has pods that no crustlet made; hint: a directory of its own",
        .0.display()
    )]
    Others(PathBuf),
    /// Another crustlet runs.
    #[error("--root-dir {}: another crustlet has it", .0.display())]
    Taken(PathBuf),
    /// A call failed.
    #[error("{call} {}: {source}", path.display())]
    Call {
        /// Which.
        call: &'static str,
        /// Of what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Held as long as the process lives.
#[derive(Debug)]
pub(crate) struct Root {
    _lock: File,
}

impl Root {
    /// Takes a directory, which is made where there is none.
    pub(crate) fn take(root: &Path) -> Result<Self, RootError> {
        let failed = |call, path: &Path| {
            let path = path.to_owned();
            move |source| RootError::Call { call, path, source }
        };
        let lock = root.join(LOCK);
        if !lock.try_exists().map_err(failed("stat", &lock))? {
            let is_there = |file: &&str| root.join(file).exists();
            if let Some(file) = KUBELETS.into_iter().find(is_there) {
                let root = root.to_owned();
                return Err(RootError::Kubelets { root, file });
            }
            let mut pods = fs::read_dir(root.join("pods"));
            if pods.as_mut().is_ok_and(|pods| pods.next().is_some()) {
                return Err(RootError::Others(root.to_owned()));
            }
        }
        super::operations::make_directory(root).map_err(|error| RootError::Call {
            call: "mkdir",
            path: root.to_owned(),
            source: io::Error::other(error),
        })?;
        let file = File::options().create(true).append(true).open(&lock);
        let file = file.map_err(failed("open", &lock))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _lock: file }),
            Err(Errno::WOULDBLOCK) => Err(RootError::Taken(root.to_owned())),
            Err(errno) => Err(failed("flock", &lock)(errno.into())),
        }
    }
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
        drop(first);
        Root::take(&root).expect("its own pods");
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
