//! Stops a containerd and removes what it has started.

use std::fs;
use std::path::PathBuf;

use super::config;
use super::shims::{Shims, children, delete};
use crate::cgroup;
use crate::cri::Cri;
use crate::daemon::Daemon;

/// Everything that a private containerd has started.
#[derive(Debug)]
pub(super) struct Leftovers {
    pub(super) socket: PathBuf,
    pub(super) shims: Shims,
    pub(super) cgroup: String,
    pub(super) handlers: Vec<config::Handler>,
    pub(super) daemon: Daemon,
}

impl Leftovers {
    /// Stops everything: in order if the daemon still answers, and then whatever remains.
    pub(super) fn remove(self) -> Vec<String> {
        let mut errors = Vec::new();
        if self.daemon.is_running() {
            errors.extend(remove_pods(&Cri::new(&self.socket)));
        }
        self.daemon.kill();
        let sockets = self.shims.sockets();
        let bundles = self.shims.bundles();
        errors.extend(self.shims.kill());
        for handler in &self.handlers {
            let is_own = |container: &PathBuf| {
                let mut bundles = bundles.iter();
                bundles.any(|bundle| bundle.file_name() == container.file_name())
            };
            for container in children(&handler.root.join("k8s.io")) {
                if !handler.is_shared || is_own(&container) {
                    errors.extend(delete(handler.runtime.delegate(), &container));
                }
            }
        }
        errors.extend(cgroup::remove_parent(&self.cgroup));
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
        errors
    }
}

/// Removes all pods through the CRI, as kubelet does.
fn remove_pods(cri: &Cri) -> Vec<String> {
    let pods = match cri.pods() {
        Ok(pods) => pods,
        Err(error) => return vec![format!("ListPodSandbox: {error}")],
    };
    let mut errors = Vec::new();
    for pod in pods {
        let result = cri.stop_pod(&pod.id).and_then(|()| cri.remove_pod(&pod.id));
        errors.extend(result.err().map(|error| format!("pod {}: {error}", pod.id)));
    }
    errors
}
