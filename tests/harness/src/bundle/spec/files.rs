//! The files that are bound into the containers of a pod.

use std::fs;
use std::path::PathBuf;

use crate::TestDir;
use crate::bundle::PodIdentity;

/// Files that containerd creates for a sandbox and that its apps use as well.
pub(in crate::bundle) struct SandboxFiles {
    pub(super) hostname: PathBuf,
    pub(super) resolv_conf: PathBuf,
    pub(super) shm: PathBuf,
}

impl SandboxFiles {
    pub(in crate::bundle) fn make(dir: &TestDir, sandbox: &str) -> Self {
        let base = dir.subdir(format!("cri/sandboxes/{sandbox}"));
        let files = Self {
            hostname: base.join("hostname"),
            resolv_conf: base.join("resolv.conf"),
            shm: base.join("shm"),
        };
        fs::create_dir_all(&files.shm).expect("mkdir shm");
        fs::write(&files.hostname, "pod-1\n").expect("write hostname");
        fs::write(&files.resolv_conf, "").expect("write resolv.conf");
        files
    }
}

/// Files that kubelet creates for a container.
pub(in crate::bundle) struct KubeletFiles {
    pub(super) hosts: PathBuf,
    pub(super) termination_log: PathBuf,
    pub(super) token: PathBuf,
}

impl KubeletFiles {
    pub(in crate::bundle) fn make(dir: &TestDir, pod: &PodIdentity, container: &str) -> Self {
        let base = dir.subdir(format!("kubelet/pods/{}", pod.uid));
        let logs = dir.subdir(format!("kubelet/pods/{}/containers/app-1", pod.uid));
        let token = dir.subdir(format!(
            "kubelet/pods/{}/volumes/kubernetes.io~projected/kube-api-access",
            pod.uid
        ));
        let files = Self {
            hosts: base.join("etc-hosts"),
            termination_log: logs.join(container),
            token,
        };
        fs::write(&files.hosts, "127.0.0.1 localhost\n").expect("write etc-hosts");
        fs::write(&files.termination_log, "").expect("write termination-log");
        fs::write(files.token.join("token"), "not a real token\n").expect("write token");
        files
    }
}
