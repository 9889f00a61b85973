//! The shims of a containerd, and what they leave when containerd does not stop them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wait::holds_within;
use crate::{Delegate, Run, Runtime, process};

/// The running shims of one containerd.
#[derive(Debug, Clone)]
pub struct Shims {
    socket: PathBuf,
    state: PathBuf,
}

impl Shims {
    /// The shims of the containerd with this socket and state directory.
    pub fn new(socket: PathBuf, state: PathBuf) -> Self {
        Self { socket, state }
    }

    /// Returns the pids of the running shims. Their command lines name containerd's socket, which no other test has.
    pub fn running(&self) -> Vec<i32> {
        process::with_command_line(|line| {
            let mut words = line.split('\0');
            line.contains("containerd-shim") && words.any(|word| Path::new(word) == self.socket)
        })
    }

    /// Returns the bundles of all containers in all containerd namespaces.
    pub fn bundles(&self) -> Vec<PathBuf> {
        let namespaces = children(&self.state.join("io.containerd.runtime.v2.task"));
        let bundles = namespaces.iter().flat_map(|namespace| children(namespace));
        bundles.collect()
    }

    /// Returns the shims' sockets in `/run/containerd/s`, where a killed shim leaves its own.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let addresses = self
            .bundles()
            .into_iter()
            .map(|bundle| bundle.join("address"));
        let addresses = addresses.filter_map(|file| fs::read_to_string(file).ok());
        addresses
            .filter_map(|at| Some(at.trim().strip_prefix("unix://")?.into()))
            .collect()
    }

    /// Kills the shims. Returns an error if one does not end.
    pub fn kill(&self) -> Option<String> {
        let ended = holds_within(Duration::from_secs(10), || {
            let shims = self.running();
            shims.iter().copied().for_each(process::kill_now);
            shims.is_empty()
        });
        (!ended).then(|| format!("shims {:?} did not end after SIGKILL", self.running()))
    }
}

/// Deletes a container with the delegate. `container` is its directory below the delegate's root. Returns the error if
/// the directory remains.
pub fn delete(delegate: Delegate, container: &Path) -> Option<String> {
    let (root, id) = (container.parent()?, container.file_name()?);
    let mut delete = Runtime::bare(delegate).command();
    delete.arg("--root").arg(root);
    let run = Run::capture(delete.args(["delete", "--force"]).arg(id));
    container.exists().then(|| run.to_string())
}

/// Lists a directory, which may be missing.
pub fn children(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}
