//! The directory of a docker daemon, and its configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::process;

/// The paths of a daemon's files.
#[derive(Debug, Clone)]
pub(super) struct Files {
    base: PathBuf,
}

impl Files {
    pub(super) fn new(base: PathBuf) -> Self {
        Self { base }
    }

    pub(super) fn configuration(&self) -> PathBuf {
        self.base.join("daemon.json")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.base.join("log")
    }

    pub(super) fn image(&self) -> PathBuf {
        self.base.join("image.tar")
    }

    /// Returns the socket and the state directory of the containerd that dockerd starts.
    pub(super) fn containerd(&self) -> (PathBuf, PathBuf) {
        let own = self.exec_root().join("containerd");
        (own.join("containerd.sock"), own.join("daemon"))
    }

    /// Returns the `--root` of all runtimes, which has a directory for each containerd namespace.
    pub(super) fn runtime_root(&self) -> PathBuf {
        self.exec_root().join("runtime-runc")
    }

    /// Returns the daemon's command.
    pub(super) fn daemon(&self) -> Command {
        let mut dockerd = Command::new("dockerd");
        dockerd.arg("--config-file").arg(self.configuration());
        dockerd
    }

    /// Returns a command of the client without arguments.
    pub(super) fn client(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.args(["--host", &self.host(), "--config"]);
        docker.arg(self.base.join("client"));
        docker
    }

    /// Returns the pids of the containerd that dockerd starts.
    pub(super) fn containerds(&self) -> Vec<i32> {
        let configuration = self.exec_root().join("containerd/containerd.toml");
        let names_configuration = |line: &str| {
            line.split('\0')
                .any(|word| Path::new(word) == configuration)
        };
        let mut pids = process::with_command_line(names_configuration);
        pids.retain(|pid| process::is_alive(*pid));
        pids
    }

    /// Writes `daemon.json`: all files are below one directory, and the machine's network is not changed.
    pub(super) fn configure(&self, cgroup: &str, runtimes: &[(&str, &Path)], settings: Value) {
        let mut all = json!({
            "data-root": self.base.join("data"),
            "exec-root": self.exec_root(),
            "pidfile": self.base.join("pid"),
            "hosts": [self.host()],
            "bridge": "none",
            "iptables": false,
            "ip6tables": false,
            "ip-forward": false,
            "storage-driver": "vfs",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": cgroup,
        });
        let (Value::Object(merged), Value::Object(settings)) = (&mut all, settings) else {
            panic!("a daemon's settings are a JSON object");
        };
        if !runtimes.is_empty() {
            let of = |&(name, path): &(&str, &Path)| (name.to_owned(), json!({"path": path}));
            let runtimes: Map<_, _> = runtimes.iter().map(of).collect();
            merged.insert("runtimes".to_owned(), runtimes.into());
        }
        merged.extend(settings);
        let text = serde_json::to_string_pretty(&all).expect("a Value is JSON");
        fs::write(self.configuration(), text + "\n").expect("write daemon.json");
    }

    fn exec_root(&self) -> PathBuf {
        self.base.join("exec")
    }

    fn host(&self) -> String {
        format!("unix://{}", self.base.join("s").display())
    }
}
