//! Stops a docker daemon and removes what it has started.

use std::fs;
use std::path::Path;

use super::files::Files;
use crate::containerd::shims::{Shims, delete};
use crate::daemon::Daemon;
use crate::node::WAIT_TIMEOUT;
use crate::wait::holds_within;
use crate::{Delegate, Run, cgroup, process};

/// Everything that a docker daemon has started.
#[derive(Debug)]
pub(super) struct Leftovers {
    pub(super) files: Files,
    pub(super) delegate: Delegate,
    pub(super) cgroup: String,
    pub(super) shims: Shims,
    pub(super) daemon: Daemon,
}

impl Leftovers {
    /// Stops everything: in order if the daemon still answers, and then whatever remains.
    pub(super) fn remove(self) -> Vec<String> {
        let mut errors = Vec::new();
        if self.daemon.is_running() {
            errors.extend(self.remove_containers());
        }
        self.daemon.kill();
        holds_within(WAIT_TIMEOUT, || {
            let left = self.files.containerds();
            left.iter().copied().for_each(process::kill_now);
            left.is_empty()
        });
        let (bundles, sockets) = (self.shims.bundles(), self.shims.sockets());
        errors.extend(self.shims.kill());
        for bundle in bundles {
            errors.extend(self.delete(&bundle));
        }
        errors.extend(cgroup::remove_parent(&self.cgroup));
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
        errors
    }

    fn remove_containers(&self) -> Option<String> {
        let list = Run::capture(self.files.client().args(["ps", "--all", "--quiet"]));
        if list.stdout.is_empty() {
            return (!list.status.success()).then(|| list.to_string());
        }
        let mut remove = self.files.client();
        remove.args(["rm", "--force", "--volumes"]);
        let run = Run::capture(remove.args(list.stdout.lines()));
        (!run.status.success()).then(|| run.to_string())
    }

    /// Deletes the container of a bundle with the path `…/<containerd namespace>/<id>`.
    fn delete(&self, bundle: &Path) -> Option<String> {
        let (id, namespace) = (bundle.file_name()?, bundle.parent()?.file_name()?);
        let container = self.files.runtime_root().join(namespace).join(id);
        container
            .exists()
            .then(|| delete(self.delegate, &container))?
    }
}
