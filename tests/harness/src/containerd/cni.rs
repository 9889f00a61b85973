//! The network of pods without `hostNetwork`: two CNI plugins that do not change a pod's network namespace, so that the
//! standard plugins need not be installed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A CNI plugin that does nothing. It answers ADD with a fixed address for its pods.
const PLUGIN: &str = r#"#!/bin/sh
set -eu
cat >/dev/null # its configuration
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0"]}' ;;
ADD)
    cat <<END
{
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}],
    "ips": [{"address": "@ADDRESS", "interface": 0}]
}
END
    ;;
esac
"#;

const NETWORK: &str = r#"{
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [{"type": "pods"}]
}
"#;

/// Writes the plugins and a network configuration below a directory.
pub(super) fn write(base: &Path) {
    let (programs, networks) = (base.join("bin"), base.join("net.d"));
    for directory in [&programs, &networks] {
        fs::create_dir_all(directory).expect("a directory for the CNI");
    }
    // containerd calls `loopback` itself, with its own configuration.
    for (plugin, address) in [("loopback", "127.0.0.1/8"), ("pods", "10.88.0.2/16")] {
        let path = programs.join(plugin);
        fs::write(&path, PLUGIN.replace("@ADDRESS", address)).expect("write a CNI plugin");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("chmod of a CNI plugin");
    }
    fs::write(networks.join("pods.conflist"), NETWORK).expect("write a CNI configuration");
}
