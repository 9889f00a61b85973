//! The command line. There is no configuration file: a CSI plugin is configured in its `DaemonSet`.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, ValueEnum};
use crust_serve::flags::{host_name, parse_absolute_path, parse_socket_path};
use crust_serve::log::LogLevel;

use crate::features::{Feature, Features};

/// The maximum length of a label's value in Kubernetes, in bytes.
pub(crate) const MAX_LABEL_BYTES: usize = 63;

/// The default of `--driver-name`, which is the `provisioner` in a `StorageClass`.
pub(crate) const DRIVER: &str = "csi.crust.dev";

/// The default of `--driver-name` with `--driver nfs`.
pub(crate) const NFS_DRIVER: &str = "nfs.csi.crust.dev";

/// The volumes that the driver has.
#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverKind {
    /// Image files on this node, attached as loop devices.
    Block,
    /// Directories of shares of NFS servers.
    Nfs,
}

/// A CSI driver on loop devices or NFS shares that can defer mounts to the container runtime (KEP-2857)
#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, Clone, Parser)]
#[command(name = "crust-csi", version)]
pub(crate) struct Settings {
    /// Volumes that the driver has. With nfs, the defaults of --endpoint, --driver-name and --data-dir have nfs in their
    /// names
    #[arg(long, value_name = "KIND", value_enum, default_value = "block")]
    pub(crate) driver: DriverKind,
    /// Socket to serve CSI on
    #[arg(long, value_name = "unix://PATH", value_parser = parse_socket_path, default_value = "unix:///run/crust-csi/csi.sock", default_value_if("driver", "nfs", "unix:///run/crust-csi-nfs/csi.sock"))]
    pub(crate) endpoint: PathBuf,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "ID", value_parser = node_id)]
    node_id: Option<String>,
    /// Name of the driver, as in the provisioner of a StorageClass
    #[arg(long, value_name = "NAME", value_parser = driver_name, default_value = DRIVER, default_value_if("driver", "nfs", NFS_DRIVER))]
    pub(crate) driver_name: String,
    /// Directory for the images and records of volumes
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path, default_value = "/var/lib/crust-csi", default_value_if("driver", "nfs", "/var/lib/crust-csi-nfs"))]
    pub(crate) data_dir: PathBuf,
    /// Maximum total size of all volumes in bytes; not with --driver nfs [default: the space in the data directory's file system]
    #[arg(long, value_name = "BYTES")]
    pub(crate) capacity: Option<u64>,
    /// Maximum total size of the volumes in the specs of pods in bytes; not with --driver nfs [default: no limit other
    /// than --capacity]
    #[arg(long, value_name = "BYTES")]
    pub(crate) inline_capacity: Option<u64>,
    /// Maximum number of volumes in use on this node; 0 is no limit
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..), default_value = "0")]
    pub(crate) max_volumes: i64,
    /// Socket of crust_ops, which stages deferred volumes
    #[arg(long, value_name = "PATH", value_parser = parse_socket_path, default_value = crust_state::ops::DEFAULT_SOCKET)]
    pub(crate) crust_ops: PathBuf,
    /// Directory where the runtime finds staged volumes (crust_root in its configuration)
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path, default_value = "/run/crust")]
    pub(crate) crust_root: PathBuf,
    /// Directory for files that a pod left in the target directory of a deferred volume; must be on the same mount as
    /// that directory [default: plugins/DRIVER/quarantine in kubelet's directory]
    #[arg(long, value_name = "DIR", value_parser = parse_absolute_path)]
    pub(crate) quarantine_dir: Option<PathBuf>,
    /// Leave out a capability, to behave like an older driver; can be repeated
    #[arg(long, value_name = "CAPABILITY", value_enum)]
    without: Vec<Feature>,
    /// Maximum number of calls in progress; further calls are refused and should be retried
    #[arg(long, value_name = "N", value_parser = max_calls, default_value = "128")]
    pub(crate) max_calls: usize,
    /// Log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
}

impl Settings {
    /// Parses the command line of this process. Prints an error and ends the process if it is invalid.
    pub(crate) fn parse_or_exit() -> Self {
        let settings = Self::parse();
        let sizes = [
            ("--capacity", settings.capacity),
            ("--inline-capacity", settings.inline_capacity),
        ];
        if settings.driver == DriverKind::Nfs
            && let Some((flag, _)) = sizes.iter().find(|(_, size)| size.is_some())
        {
            let message = format!(
                "{flag} can't be used with --driver nfs: the server limits the size of its shares"
            );
            Self::command()
                .error(ErrorKind::ArgumentConflict, message)
                .exit();
        }
        settings
    }

    /// Returns the driver's capabilities.
    pub(crate) fn features(&self) -> Features {
        let unsupported: &[Feature] = match self.driver {
            DriverKind::Block => &[],
            // The server has no size for a directory, and its health isn't known here.
            DriverKind::Nfs => &[
                Feature::ExpandVolume,
                Feature::GetVolumeHealth,
                Feature::GetStorageHealth,
            ],
        };
        Features::without(&[unsupported, &self.without].concat())
    }

    /// Returns the node's name. It is not validated if it is the host name.
    pub(crate) fn node_id(&self) -> String {
        self.node_id.clone().unwrap_or_else(host_name)
    }
}

/// At most 10000, because each call has a thread.
fn max_calls(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=10_000).contains(number));
    number.ok_or_else(|| "must be from 1 to 10000".to_owned())
}

/// `NodeGetInfoResponse.node_id` may have 256 bytes, but the node id is also the value of a label, which may have 63.
fn node_id(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_LABEL_BYTES {
        return Err(format!(
            "must have 1 to {MAX_LABEL_BYTES} bytes, because it is also the value of a label"
        ));
    }
    Ok(text.to_owned())
}

/// Parses a `GetPluginInfoResponse.name`, which must be a domain name of at most 63 bytes.
fn driver_name(text: &str) -> Result<String, String> {
    let is_edge = |byte: u8| byte.is_ascii_alphanumeric();
    let is_inner = |byte: u8| is_edge(byte) || matches!(byte, b'-' | b'.');
    let (first, last) = (text.bytes().next(), text.bytes().last());
    let ends_well = first.is_some_and(is_edge) && last.is_some_and(is_edge);
    if ends_well && text.len() <= 63 && text.bytes().all(is_inner) {
        return Ok(text.to_owned());
    }
    Err("must be a domain name of at most 63 bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_name_must_be_a_domain_name() {
        for name in [DRIVER, "a", "A-1.b"] {
            assert!(driver_name(name).is_ok(), "{name}");
        }
        let long = "a".repeat(64);
        for name in ["", "-a", "a.", "a_b", "a/b", &long] {
            assert!(driver_name(name).is_err(), "{name}");
        }
    }
}
