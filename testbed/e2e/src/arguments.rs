//! The command line of `crust-e2e`.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// Test deferred volumes on a Kubernetes cluster
///
/// Runs pods with volumes that the container runtime mounts (KEP-2857), each scenario in a namespace of its own, which it
/// removes. The handler, its RuntimeClass, crust_ops, and a StorageClass that defers must be installed, or are installed
/// with --install. Exits with 0 if no scenario failed, with 1 if one failed, and with 2 if the tests could not be run.
#[derive(Debug, clap::Parser)]
#[command(name = "crust-e2e", version)]
#[allow(
    clippy::doc_markdown,
    clippy::struct_excessive_bools,
    reason = "clap prints the comments as help, without markup; each switch is a flag of its own"
)]
pub(crate) struct Arguments {
    /// Configuration of the connection; by default $KUBECONFIG, ~/.kube/config, or the pod's service account
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; by default the current one
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Run only scenarios whose names contain this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Vec<String>,
    /// Leave out scenarios whose names contain this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) skip: Vec<String>,
    /// List the scenarios, and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Print the results as JSON on standard output, and the steps on standard error
    #[arg(long)]
    pub(crate) json: bool,
    /// Also run the scenarios that kill kubelet, the engine, crust_ops and the driver on the node, and delete its state
    /// as a reboot does. Other pods of the node are affected
    #[arg(long)]
    pub(crate) disrupt: bool,
    /// First install this directory's manifests (deploy/kubernetes) with `kubectl apply --kustomize`, and remove them at
    /// the end. The images must be on the nodes or in a registry
    #[arg(long, value_name = "DIR")]
    pub(crate) install: Option<PathBuf>,
    /// With --install: install the manifests of an older release first, and upgrade while a pod has a volume
    #[arg(long, value_name = "DIR", requires = "install")]
    pub(crate) upgrade_from: Option<PathBuf>,
    /// RuntimeClass of the handler that defers
    #[arg(long, value_name = "NAME", default_value = "crust")]
    pub(crate) runtime_class: String,
    /// StorageClass whose volumes are deferred
    #[arg(long, value_name = "NAME", default_value = "crust-deferred")]
    pub(crate) storage_class: String,
    /// StorageClass of shares of an NFS server that are deferred
    #[arg(long, value_name = "NAME", default_value = "crust-nfs-deferred")]
    pub(crate) nfs_storage_class: String,
    /// Image with busybox, for all pods; it is pulled only if the node does not have it
    #[arg(long, value_name = "IMAGE", default_value = "busybox")]
    pub(crate) image: String,
    /// Node that all pods run on; by default the first one that is ready and schedulable
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// Path of runcrust on the node
    #[arg(long, value_name = "PATH", default_value = "/usr/local/bin/runcrust")]
    pub(crate) runcrust: String,
    /// Directory of kubelet on the node
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_dir: String,
    /// Seconds that a step may take
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub(crate) timeout: u64,
    /// Keep the namespaces of scenarios that failed
    #[arg(long)]
    pub(crate) keep: bool,
}

impl Arguments {
    /// Returns whether a scenario is selected by its name.
    pub(crate) fn selects(&self, name: &str) -> bool {
        let contains = |texts: &[String]| texts.iter().any(|text| name.contains(&**text));
        (self.only.is_empty() || contains(&self.only)) && !contains(&self.skip)
    }

    /// Prints a line about the run: to standard error if standard output is for the results.
    pub(crate) fn print(&self, line: &str) {
        if self.json {
            let _ = writeln!(std::io::stderr(), "{line}");
        } else {
            print_result(line);
        }
    }
}

/// Prints to standard output. The run goes on if nobody reads it any more, because it still has to clean up.
pub(crate) fn print_result(text: impl Display) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn scenarios_are_selected_by_parts_of_their_names() {
        let selected = |flags: &str| {
            let arguments =
                Arguments::parse_from(["crust-e2e"].into_iter().chain(flags.split_whitespace()));
            ["job", "crash-loop", "subpath"].map(|name| arguments.selects(name))
        };
        assert_eq!(selected(""), [true, true, true]);
        assert_eq!(selected("--only job --only loop"), [true, true, false]);
        assert_eq!(selected("--skip path"), [true, true, false]);
        assert_eq!(selected("--only sub --skip path"), [false, false, false]);
    }
}
