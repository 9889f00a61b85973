//! Installs the manifests of `deploy/kubernetes` as users do, with kubectl, and removes them in the documented order.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::arguments::Arguments;
use crate::cluster::Cluster;
use crate::manifest;
use crate::node::{NodeShell, remove_namespace};
use crate::test::{Patience, Progress, describe_pod};

/// The kustomizations and their namespaces, in the order in which they are installed.
const PARTS: [(&str, &str); 2] = [("base", "runcrust"), ("csi", "crust-csi")];

/// The namespace of the pod that runs during an upgrade, and its objects.
const UPGRADED: &str = "crust-e2e-upgrade";
const UPGRADED_POD: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: crust-e2e-upgrade}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: crust-deferred}
---
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sh, -c, echo before > /data/file; exec sleep 1000000], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

/// An installation that [`Self::remove`] removes.
pub(crate) struct Installation<'a> {
    cluster: &'a Cluster,
    arguments: &'a Arguments,
    directory: PathBuf,
}

impl<'a> Installation<'a> {
    /// Applies the manifests, and waits until all pods of the `DaemonSet`s are ready. With `--upgrade-from`, the manifests
    /// of the older release come first, and a pod with a volume has to keep it during the upgrade.
    pub(crate) async fn install(
        cluster: &'a Cluster,
        arguments: &'a Arguments,
        directory: &Path,
    ) -> Result<Self> {
        let installation = Self {
            cluster,
            arguments,
            directory: directory.to_owned(),
        };
        if let Some(older) = &arguments.upgrade_from {
            installation.apply_all(older).await?;
            installation.start_pod().await?;
        }
        installation.apply_all(directory).await?;
        if arguments.upgrade_from.is_some() {
            installation.check_pod().await?;
        }
        Ok(installation)
    }

    async fn apply_all(&self, directory: &Path) -> Result<()> {
        for (part, namespace) in PARTS {
            self.kubectl(&["apply", "--kustomize"], &directory.join(part))
                .await?;
            self.ready(namespace).await?;
        }
        self.arguments
            .print(&format!("{} is installed", directory.display()));
        Ok(())
    }

    /// Starts a pod that the upgrade must not affect.
    async fn start_pod(&self) -> Result<()> {
        remove_namespace(self.cluster, self.arguments, UPGRADED).await?;
        for object in manifest::read(UPGRADED_POD)? {
            let object = manifest::adapt(object, self.arguments, self.cluster.node())?;
            self.cluster.create(UPGRADED, &object).await?;
        }
        let runs = async || {
            let pod = self
                .cluster
                .get(UPGRADED, "Pod", "a")
                .await?
                .unwrap_or_default();
            Ok(Progress::of(
                pod["status"]["phase"] == "Running",
                &describe_pod(&pod),
            ))
        };
        Patience::new(self.arguments)
            .wait("the pod of the older release runs", runs)
            .await
    }

    /// Checks that the pod was not restarted and can still write, and removes it.
    async fn check_pod(&self) -> Result<()> {
        let pod = self
            .cluster
            .get(UPGRADED, "Pod", "a")
            .await?
            .unwrap_or_default();
        let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
        ensure!(
            *restarts == 0,
            "the upgrade has restarted a pod: {}",
            describe_pod(&pod)
        );
        let write = ["sh", "-c", "echo after >> /data/file && cat /data/file"];
        let output = self.cluster.execute(UPGRADED, "a", None, &write).await?;
        ensure!(
            output.stdout == "before\nafter",
            "after the upgrade a pod's volume is another one: {output:?}"
        );
        self.arguments
            .print("a pod has kept its volume during the upgrade");
        remove_namespace(self.cluster, self.arguments, UPGRADED).await
    }

    /// Waits until the pods of all `DaemonSet`s of a namespace are ready, and replaced after a change.
    async fn ready(&self, namespace: &str) -> Result<()> {
        let ready = async || {
            let sets = self.cluster.list(namespace, "DaemonSet").await?;
            let waiting = sets.iter().filter(|set| !is_ready(set));
            let waiting: Vec<String> = waiting.map(|set| set["status"].to_string()).collect();
            let is_done = !sets.is_empty() && waiting.is_empty();
            Ok(Progress::of(is_done, &format_args!("{waiting:?}")))
        };
        let what = format!("the DaemonSets of namespace {namespace} are ready");
        Patience::new(self.arguments).wait(&what, ready).await
    }

    /// Removes everything in the order that docs/operators.md gives, and checks that the node's engine has no handler
    /// left.
    pub(crate) async fn remove(&self, node: &NodeShell<'_>) -> Result<()> {
        self.delete("csi").await?;
        self.apply("uninstall").await?;
        self.ready("runcrust").await?;
        let handlers = node
            .run("grep -rl runcrust /etc/containerd || true")
            .await?;
        ensure!(
            handlers.is_empty(),
            "the engine's configuration still has the handler: {handlers}"
        );
        self.delete("base").await?;
        let left = node
            .run("ls -A /run/crust /run/runcrust 2> /dev/null || true")
            .await?;
        ensure!(
            !left.contains("crust-"),
            "state is left on the node: {left}"
        );
        Ok(())
    }

    async fn apply(&self, part: &str) -> Result<()> {
        self.kubectl(&["apply", "--kustomize"], &self.directory.join(part))
            .await
    }

    async fn delete(&self, part: &str) -> Result<()> {
        self.kubectl(&["delete", "--kustomize"], &self.directory.join(part))
            .await
    }

    async fn kubectl(&self, command: &[&str], directory: &Path) -> Result<()> {
        let mut kubectl = Command::new("kubectl");
        if let Some(file) = &self.arguments.kubeconfig {
            kubectl.arg("--kubeconfig").arg(file);
        }
        if let Some(context) = &self.arguments.context {
            kubectl.arg("--context").arg(context);
        }
        let kubectl = kubectl.args(command).arg(directory);
        let output = kubectl.output().await;
        let output = output.context("kubectl; hint: --install needs kubectl in the PATH")?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            bail!(
                "kubectl {command:?} {}: {}",
                directory.display(),
                error.trim()
            );
        }
        Ok(())
    }
}

fn is_ready(set: &Value) -> bool {
    let status = &set["status"];
    let wanted = status["desiredNumberScheduled"].as_i64().unwrap_or(0);
    let are_ready = ["numberReady", "updatedNumberScheduled"]
        .iter()
        .all(|count| status[count].as_i64().unwrap_or(0) == wanted);
    wanted > 0 && are_ready && status["observedGeneration"] == set["metadata"]["generation"]
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pod_of_the_upgrade_has_only_fields_of_its_type() {
        let arguments = Arguments::parse_from(["crust-e2e"]);
        for object in manifest::read(UPGRADED_POD).unwrap().into_iter().skip(1) {
            let object = manifest::adapt(object, &arguments, "node-1").unwrap();
            manifest::tests::check_strictly(&serde_json::to_value(object).unwrap());
        }
    }

    #[test]
    fn a_daemonset_is_ready_when_all_its_pods_are_new_and_ready() {
        let set = |wanted: i64, ready: i64, updated: i64, observed: i64| {
            is_ready(&json!({
                "metadata": {"generation": 2},
                "status": {
                    "desiredNumberScheduled": wanted,
                    "numberReady": ready,
                    "updatedNumberScheduled": updated,
                    "observedGeneration": observed,
                },
            }))
        };
        assert!(set(1, 1, 1, 2));
        for (wanted, ready, updated, observed) in
            [(0, 0, 0, 2), (1, 0, 1, 2), (1, 1, 0, 2), (1, 1, 1, 1)]
        {
            assert!(!set(wanted, ready, updated, observed));
        }
    }
}
