//! The daemon's configuration: all files are below one directory, and nothing is fetched from a network.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use super::{PAUSE_IMAGE, cni};
use crate::{Runtime, cgroup, host};

/// One `runtimes.<name>` of the CRI plugin.
#[derive(Debug)]
pub(super) struct Handler {
    pub(super) name: String,
    pub(super) runtime: Runtime,
    pub(super) root: PathBuf,
    /// Whether other daemons use the same root.
    pub(super) is_shared: bool,
}

pub(super) fn write(base: &Path, socket: &Path, handlers: &[Handler]) {
    let cni = base.join("cni");
    cni::write(&cni);
    let first = &handlers.first().expect("at least one handler").name;
    let mut text = format!(
        r#"version = 2
root = {root:?}
state = {state:?}
disabled_plugins = [
    "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
    "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = {socket:?}

[plugins."io.containerd.internal.v1.opt"]
path = {opt:?}

# All containerds of a machine share this socket, and containerd 2 enables it by default.
[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = {PAUSE_IMAGE:?}
stream_server_address = "127.0.0.1"
stream_server_port = "0"
disable_tcp_service = true
netns_mounts_under_state_dir = true
disable_apparmor = true
# A container can't lower its own oom_score_adj where the machine has no CAP_SYS_RESOURCE.
restrict_oom_score_adj = true
tolerate_missing_hugetlb_controller = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = {plugins:?}
conf_dir = {networks:?}

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = {snapshotter:?}
default_runtime_name = {first:?}
"#,
        root = base.join("root"),
        state = base.join("state"),
        opt = base.join("opt"),
        plugins = cni.join("bin"),
        networks = cni.join("net.d"),
        snapshotter = snapshotter(base),
    );
    for handler in handlers {
        let section = format!(
            "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{}",
            handler.name
        );
        write!(
            text,
            "\n[{section}]\nruntime_type = \"io.containerd.runc.v2\"\n\
             \n[{section}.options]\nBinaryName = {:?}\nRoot = {:?}\nSystemdCgroup = {}\n",
            handler.runtime.program(),
            handler.root,
            cgroup::is_managed_by_systemd(),
        )
        .expect("writing to a string");
    }
    fs::write(base.join("config.toml"), text).expect("write containerd's configuration");
}

/// Returns `native` on overlayfs, because overlayfs can't be stacked on itself.
fn snapshotter(base: &Path) -> &'static str {
    let mounts = host::mounts();
    let holding = mounts
        .iter()
        .rev()
        .filter(|mount| base.starts_with(&mount.point));
    match holding.max_by_key(|mount| mount.point.components().count()) {
        Some(mount) if mount.fstype == "overlay" => "native",
        _ => "overlayfs",
    }
}
