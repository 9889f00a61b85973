//! The command line of `crustlet serve`. Flags have kubelet's names where kubelet has them.

mod gates;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crust_serve::flags::{host_name, parse_absolute_path, parse_socket_path};
use crust_serve::log::LogLevel;

use crate::objects::manifest::{is_driver_name, is_name};

pub(crate) use gates::FeatureGates;

/// The default socket of the agent's API.
pub(crate) const SOCKET: &str = "/run/crustlet/crustlet.sock";

/// The directory of manifests below the root directory.
pub(crate) const MANIFESTS: &str = "manifests";

/// The settings of the agent.
#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Directory of the pods' volumes. It must be crustlet's own, and listed in runcrust's kubelet_dirs
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path, default_value = "/var/lib/crustlet")]
    pub(crate) root_dir: PathBuf,
    /// Directory of YAML manifests to watch; repeatable. "crustlet run" writes to the first one [default: "manifests"
    /// in the root directory]
    #[arg(long = "manifests", value_name = "DIR", value_parser = parse_absolute_path)]
    manifests: Vec<PathBuf>,
    /// Socket of the container runtime
    #[arg(long, value_name = "unix://PATH", value_parser = parse_socket_path, default_value = "unix:///run/containerd/containerd.sock")]
    pub(crate) container_runtime_endpoint: PathBuf,
    /// Socket of a CSI driver that doesn't register itself in plugins_registry; repeatable
    #[arg(long, value_name = "NAME=unix://PATH", value_parser = driver)]
    pub(crate) csi: Vec<(String, PathBuf)>,
    /// Feature gates: RuntimeAssistedMount (KEP-2857), NewVolumeManagerReconstruction (KEP-3756)
    #[arg(long, value_name = "NAME=true|false,...", default_value = "")]
    pub(crate) feature_gates: FeatureGates,
    /// Policy that sets deferFSMount: rules of storage class, runtime class and post-mount steps
    #[arg(long, value_name = "FILE", value_parser = parse_absolute_path)]
    pub(crate) admission_policy: Option<PathBuf>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    node_name: Option<String>,
    /// Socket that the agent listens on for "crustlet get", "crustlet run" and the other commands
    #[arg(long, value_name = "PATH", value_parser = parse_socket_path, default_value = SOCKET)]
    pub(crate) listen: PathBuf,
    /// Loopback address to serve metrics and health checks on. Without it, neither is served
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
    pub(crate) metrics_address: Option<SocketAddr>,
    /// Parent cgroup of all pods. Without it, the container runtime's default
    #[arg(long, value_name = "CGROUP", default_value = "")]
    pub(crate) cgroup_root: String,
    /// Directory of the containers' logs. Without it, "logs" in the root directory
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path)]
    pod_logs_dir: Option<PathBuf>,
    /// Interval at which volume statistics are collected, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub(crate) volume_stats_agg_period: Duration,
    /// Most verbose level that is logged
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
}

impl Settings {
    /// Returns the manifest directories. `crustlet run` writes to the first.
    pub(crate) fn manifests(&self) -> Vec<PathBuf> {
        if self.manifests.is_empty() {
            vec![self.root_dir.join(MANIFESTS)]
        } else {
            self.manifests.clone()
        }
    }

    pub(crate) fn node_name(&self) -> String {
        self.node_name.clone().unwrap_or_else(host_name)
    }

    /// Returns the directory of the containers' logs.
    pub(crate) fn pod_logs_dir(&self) -> PathBuf {
        let default = || self.root_dir.join("logs");
        self.pod_logs_dir.clone().unwrap_or_else(default)
    }
}

fn driver(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=unix:///PATH")?;
    if !is_driver_name(name) {
        return Err(format!("{name:?} is not a valid driver name"));
    }
    Ok((name.to_owned(), parse_socket_path(path)?))
}

fn node_name(text: &str) -> Result<String, String> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("the name must be a DNS subdomain".to_owned())
    }
}

/// Parses a loopback address and a port. Only processes of the node can connect to it.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| {
        "expected a loopback address and a port, such as 127.0.0.1:10248".to_owned()
    })?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("not a loopback address".to_owned())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or("the value must be 1 or more")?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use std::path::Path;

    use super::*;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        settings: Settings,
    }

    fn parse_error(argument: &str) -> String {
        let cli = TestCli::try_parse_from(["serve", argument]);
        cli.err().expect(argument).to_string()
    }

    #[test]
    fn default_directories_are_in_the_root_directory() {
        let cli = TestCli::try_parse_from(["serve", "--root-dir=/r"]).unwrap();
        assert_eq!(cli.settings.manifests(), [Path::new("/r/manifests")]);
        assert_eq!(cli.settings.pod_logs_dir(), Path::new("/r/logs"));
        let arguments = ["serve", "--manifests=/a", "--manifests=/b"];
        let cli = TestCli::try_parse_from(arguments).unwrap();
        assert_eq!(cli.settings.manifests(), [Path::new("/a"), Path::new("/b")]);
    }

    #[test]
    fn invalid_values_are_refused() {
        for (argument, expected) in [
            ("--metrics-address=0.0.0.0:1", "not a loopback address"),
            ("--metrics-address=x", "127.0.0.1:10248"),
            ("--csi=/run/csi.sock", "NAME=unix:///PATH"),
            ("--csi=../x=/run/csi.sock", "is not a valid driver name"),
            (
                "--csi=volumeDevices=/run/csi.sock",
                "is not a valid driver name",
            ),
            ("--csi=a=csi.sock", "not an absolute path of a unix socket"),
            ("--root-dir=r", "must be an absolute path"),
            ("--node-name=A_B", "a DNS subdomain"),
            ("--volume-stats-agg-period=0", "1 or more"),
        ] {
            let error = parse_error(argument);
            assert!(error.contains(expected), "{argument}: {error}");
        }
        let cli = TestCli::try_parse_from(["serve", "--csi=A.b=unix:///run/csi.sock"]).unwrap();
        assert_eq!(
            cli.settings.csi,
            [("A.b".to_owned(), PathBuf::from("/run/csi.sock"))]
        );
    }
}
