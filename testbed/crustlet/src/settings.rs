//! The command line of `crustlet serve`. Flags have kubelet's names where kubelet has them.

mod gates;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crust_serve::flags::{absolute, host_name, socket};
use crust_serve::log::LogLevel;

use crate::objects::manifest::{is_driver, is_name};

pub(crate) use gates::Gates;

/// The default socket of `crustlet`'s own interface.
pub(crate) const SOCKET: &str = "/run/crustlet/crustlet.sock";

/// The directory of manifests below the root directory.
pub(crate) const MANIFESTS: &str = "manifests";

/// A node agent's.
#[allow(
    clippy::doc_markdown,
    reason = "what is printed as help has no marks in it"
)]
#[derive(Debug, Clone, Args)]
pub(crate) struct Settings {
    /// Where pods' volumes are: a directory of crustlet's own, whose path has to be among runcrust's `kubelet_dirs`
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value = "/var/lib/crustlet")]
    pub(crate) root_dir: PathBuf,
    /// A directory of manifests, YAML, that is watched; more than once. Without it, manifests below the root
    /// directory. `crustlet run` writes into the first
    #[arg(long = "manifests", value_name = "DIR", value_parser = absolute)]
    manifests: Vec<PathBuf>,
    /// Where the container runtime answers
    #[arg(long, value_name = "unix://PATH", value_parser = socket, default_value = "unix:///run/containerd/containerd.sock")]
    pub(crate) container_runtime_endpoint: PathBuf,
    /// A CSI driver's socket, besides those that register in plugins_registry; more than once
    #[arg(long, value_name = "NAME=unix://PATH", value_parser = driver)]
    pub(crate) csi: Vec<(String, PathBuf)>,
    /// Features on or off: RuntimeAssistedMount (KEP-2857), NewVolumeManagerReconstruction (KEP-3756)
    #[arg(long, value_name = "NAME=true|false,...", default_value = "")]
    pub(crate) feature_gates: Gates,
    /// Where deferFSMount is set: triples of storage class, runtime class and what is to be done after the mount
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub(crate) admission_policy: Option<PathBuf>,
    /// What this node is called; without it, the host's name
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    node_name: Option<String>,
    /// The socket for `crustlet get`, `run` and the others
    #[arg(long, value_name = "PATH", value_parser = socket, default_value = SOCKET)]
    pub(crate) listen: PathBuf,
    /// Where metrics and health are asked for, on the loopback; without it, nowhere
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
    pub(crate) metrics_address: Option<SocketAddr>,
    /// The cgroup of all pods; without it, the runtime's choice
    #[arg(long, value_name = "CGROUP", default_value = "")]
    pub(crate) cgroup_root: String,
    /// Where containers' logs are; without it, logs below the root directory
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    pod_logs_dir: Option<PathBuf>,
    /// How often volumes' statistics are asked for
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub(crate) volume_stats_agg_period: Duration,
    /// What is logged
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
}

impl Settings {
    /// Returns the directories of manifests. `crustlet run` writes to the first.
    pub(crate) fn manifests(&self) -> Vec<PathBuf> {
        if self.manifests.is_empty() {
            vec![self.root_dir.join(MANIFESTS)]
        } else {
            self.manifests.clone()
        }
    }

    /// Returns the node's name.
    pub(crate) fn node_name(&self) -> String {
        self.node_name.clone().unwrap_or_else(host_name)
    }

    /// Returns the directory of containers' logs.
    pub(crate) fn pod_logs_dir(&self) -> PathBuf {
        let own = || self.root_dir.join("logs");
        self.pod_logs_dir.clone().unwrap_or_else(own)
    }
}

fn driver(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text
        .split_once('=')
        .ok_or("it has to be NAME=unix:///PATH")?;
    if !is_driver(name) {
        return Err(format!("{name:?} is no driver's name"));
    }
    Ok((name.to_owned(), socket(path)?))
}

fn node_name(text: &str) -> Result<String, String> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("it has to be a domain's name".to_owned())
    }
}

/// Parses an address of the loopback, which only processes of the node can reach.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "it has to be as 127.0.0.1:10248".to_owned())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("it isn't on the loopback".to_owned())
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or("it has to be 1 or more")?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use std::path::Path;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn refused(argument: &str) -> String {
        let line = Line::try_parse_from(["serve", argument]);
        line.err().expect(argument).to_string()
    }

    #[test]
    fn what_is_not_said_is_below_the_root_directory() {
        let line = Line::try_parse_from(["serve", "--root-dir=/r"]).unwrap();
        assert_eq!(line.settings.manifests(), [Path::new("/r/manifests")]);
        assert_eq!(line.settings.pod_logs_dir(), Path::new("/r/logs"));
        let said = ["serve", "--manifests=/a", "--manifests=/b"];
        let line = Line::try_parse_from(said).unwrap();
        assert_eq!(
            line.settings.manifests(),
            [Path::new("/a"), Path::new("/b")]
        );
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        for (argument, told) in [
            ("--metrics-address=0.0.0.0:1", "it isn't on the loopback"),
            ("--metrics-address=x", "127.0.0.1:10248"),
            ("--csi=/run/csi.sock", "NAME=unix:///PATH"),
            ("--csi=../x=/run/csi.sock", "is no driver's name"),
            ("--csi=volumeDevices=/run/csi.sock", "is no driver's name"),
            ("--csi=a=csi.sock", "no socket's absolute path"),
            ("--root-dir=r", "it isn't an absolute path"),
            ("--node-name=A_B", "a domain's name"),
            ("--volume-stats-agg-period=0", "1 or more"),
        ] {
            let error = refused(argument);
            assert!(error.contains(told), "{argument}: {error}");
        }
        let line = Line::try_parse_from(["serve", "--csi=A.b=unix:///run/csi.sock"]).unwrap();
        assert_eq!(
            line.settings.csi,
            [("A.b".to_owned(), PathBuf::from("/run/csi.sock"))]
        );
    }
}
