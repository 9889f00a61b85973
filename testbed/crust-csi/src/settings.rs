//! The command line. It is all the configuration there is: a plugin's is its `DaemonSet`'s arguments.

use std::path::PathBuf;

use clap::Parser;
use crust_serve::flags::{host_name, parse_absolute_path, parse_socket_path};
use crust_serve::log::LogLevel;

use crate::features::{Feature, Features};

/// The most bytes of a label's value in Kubernetes.
pub(crate) const MAX_LABEL_BYTES: usize = 63;

/// The default of `--driver-name`, and so of `provisioner` in a `StorageClass`.
pub(crate) const DRIVER: &str = "csi.crust.dev";

/// A CSI driver on loop devices that can defer mounts to the container runtime (KEP-2857)
#[derive(Debug, Clone, Parser)]
#[command(name = "crust-csi", version)]
pub(crate) struct Settings {
    /// The socket to serve CSI on
    #[arg(long, value_name = "unix://PATH", value_parser = parse_socket_path, default_value = "unix:///run/crust-csi/csi.sock")]
    pub(crate) endpoint: PathBuf,
    /// What this node is called; without it, the host's name
    #[arg(long, value_name = "ID", value_parser = node_id)]
    node_id: Option<String>,
    /// What the driver is called
    #[arg(long, value_name = "NAME", value_parser = driver_name, default_value = DRIVER)]
    pub(crate) driver_name: String,
    /// Where volumes are kept: their images, and a record each
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path, default_value = "/var/lib/crust-csi")]
    pub(crate) data_dir: PathBuf,
    /// At most so many bytes for all volumes; without it, as many as the data directory's file system has
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<u64>,
    /// At most so many volumes in use on this node; 0 is no limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..), default_value = "0")]
    pub(crate) max_volumes: i64,
    /// The socket of `crust_ops`, which deferred volumes are staged by
    #[arg(long, value_name = "PATH", value_parser = parse_socket_path, default_value = crust_state::ops::DEFAULT_SOCKET)]
    pub(crate) crust_ops: PathBuf,
    /// Where the runtime looks for staged volumes (`crust_root` of its configuration)
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path, default_value = "/run/crust")]
    pub(crate) crust_root: PathBuf,
    /// Where files go that a pod left in a deferred volume's target directory, on the same mount as that;
    /// without it, plugins/<driver's name>/quarantine below kubelet's directory
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path)]
    pub(crate) quarantine_dir: Option<PathBuf>,
    /// Leave out a capability, to play an older driver; more than once
    #[arg(long, value_name = "CAPABILITY", value_enum)]
    without: Vec<Feature>,
    /// Calls under way in all; more are told to try again
    #[arg(long, value_name = "N", value_parser = max_calls, default_value = "128")]
    pub(crate) max_calls: usize,
    /// What is logged
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
}

impl Settings {
    /// Returns the driver's capabilities.
    pub(crate) fn features(&self) -> Features {
        Features::without(&self.without)
    }

    /// Returns the node's name.
    pub(crate) fn node_id(&self) -> String {
        self.node_id.clone().unwrap_or_else(host_name)
    }
}

/// Each call has a thread.
fn max_calls(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=10_000).contains(number));
    number.ok_or_else(|| "it has to be 1 to 10000".to_owned())
}

/// `NodeGetInfoResponse.node_id` has at most 256 bytes; as a label's value, 63.
fn node_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_LABEL_BYTES {
        return Err(format!(
            "it has to have 1 to {MAX_LABEL_BYTES} bytes, for it is a label's value too"
        ));
    }
    Ok(text.to_owned())
}

/// `GetPluginInfoResponse.name`: a domain's, at most 63 bytes.
fn driver_name(text: &str) -> Result<String, String> {
    let is_edge = |byte: u8| byte.is_ascii_alphanumeric();
    let is_inner = |byte: u8| is_edge(byte) || matches!(byte, b'-' | b'.');
    let (first, last) = (text.bytes().next(), text.bytes().last());
    let ends_well = first.is_some_and(is_edge) && last.is_some_and(is_edge);
    if ends_well && text.len() <= 63 && text.bytes().all(is_inner) {
        return Ok(text.to_owned());
    }
    Err("it has to be a domain name of at most 63 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_name_is_a_domains() {
        for name in [DRIVER, "a", "A-1.b"] {
            assert!(driver_name(name).is_ok(), "{name}");
        }
        let long = "a".repeat(64);
        for name in ["", "-a", "a.", "a_b", "a/b", &long] {
            assert!(driver_name(name).is_err(), "{name}");
        }
    }
}
