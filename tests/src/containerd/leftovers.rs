//! What a containerd leaves, and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::config;
use crate::cri::Cri;
use crate::daemon::Daemon;
use crate::wait::comes_true;
use crate::{Run, Runtime, cgroup, process};

/// All that a private containerd has started, by name.
#[derive(Debug)]
pub(super) struct Leftovers {
    pub(super) socket: PathBuf,
    pub(super) state: PathBuf,
    pub(super) cgroup: String,
    pub(super) handlers: Vec<config::Handler>,
    pub(super) daemon: Daemon,
}

impl Leftovers {
    /// Ends it all: in good order where the daemon still answers, then whatever is left.
    pub(super) fn remove(self) -> Vec<String> {
        let mut errors = Vec::new();
        if self.daemon.is_running() {
            errors.extend(remove_pods(&Cri::new(&self.socket)));
        }
        self.daemon.kill();
        let sockets = self.shim_sockets();
        let tasks = self.tasks();
        self.kill_shims(&mut errors);
        for handler in &self.handlers {
            let all = children(&handler.root.join("k8s.io"));
            let own = |container: &PathBuf| {
                tasks
                    .iter()
                    .any(|it| it.file_name() == container.file_name())
            };
            let containers = all.into_iter().filter(|it| !handler.is_shared || own(it));
            errors.extend(delete_containers(handler, containers));
        }
        errors.extend(cgroup::remove_parent(&self.cgroup));
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
        errors
    }

    fn kill_shims(&self, errors: &mut Vec<String>) {
        let shims = || shims(&self.socket);
        let gone = comes_true(Duration::from_secs(10), || {
            let shims = shims();
            shims.iter().copied().for_each(process::kill_now);
            shims.is_empty()
        });
        if !gone {
            errors.push(format!("shims {:?} don't end", shims()));
        }
    }

    /// The directories of its containers.
    fn tasks(&self) -> Vec<PathBuf> {
        children(&self.state.join("io.containerd.runtime.v2.task/k8s.io"))
    }

    /// Shims listen in `/run/containerd/s`, outside of the state directory; a killed one leaves
    /// its socket there.
    fn shim_sockets(&self) -> Vec<PathBuf> {
        let addresses = self.tasks().into_iter().map(|task| task.join("address"));
        let addresses = addresses.filter_map(|file| fs::read_to_string(file).ok());
        addresses
            .filter_map(|at| Some(at.trim().strip_prefix("unix://")?.into()))
            .collect()
    }
}

/// Shims are told their containerd's socket, which no other test's are.
pub(super) fn shims(socket: &Path) -> Vec<i32> {
    process::with_command_line(|line| {
        let mut words = line.split('\0');
        line.contains("containerd-shim") && words.any(|word| Path::new(word) == socket)
    })
}

/// Through the CRI, as kubelet ends pods. Errors matter only where something stays.
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

fn delete_containers(
    handler: &config::Handler,
    containers: impl Iterator<Item = PathBuf>,
) -> Vec<String> {
    let root = handler.root.join("k8s.io");
    let delegate = Runtime::bare(handler.runtime.delegate());
    let mut errors = Vec::new();
    for container in containers {
        let Some(id) = container.file_name() else {
            continue;
        };
        let mut delete = delegate.command();
        delete
            .arg("--root")
            .arg(&root)
            .args(["delete", "--force"])
            .arg(id);
        let run = Run::of(&mut delete);
        if container.exists() {
            errors.push(run.to_string());
        }
    }
    errors
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).collect()
}
