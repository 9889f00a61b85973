//! Installs the manifests of `deploy/kubernetes` as users do, with kubectl, and removes them in the documented order.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::arguments::Arguments;
use crate::cluster::Cluster;
use crate::manifest;
use crate::node::{NodeShell, remove_namespace};
use crate::test::describe_pod;
use crate::wait::{Progress, Timeout};

/// The namespace of the pod that runs during an upgrade, and its objects.
const UPGRADED: &str = "crust-e2e-upgrade";
const UPGRADED_POD: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: crust-e2e-upgrade, labels: {pod-security.kubernetes.io/enforce: privileged}}
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
    has_one_node: bool,
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
            has_one_node: cluster.node_count().await? == 1,
        };
        for namespace in ["runcrust", "crust-csi"] {
            if cluster.get("", "Namespace", namespace).await?.is_some() {
                bail!(
                    "namespace {namespace} exists, and --install would remove it at the end; hint: leave out --install to \
                     test what is installed, or remove that first"
                );
            }
        }
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
        self.kubectl("apply", &directory.join("base")).await?;
        self.ready("runcrust").await?;
        self.kubectl("apply", self.driver(directory)?.path())
            .await?;
        self.ready("crust-csi").await?;
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
        Timeout::new(self.arguments)
            .wait_until("the pod of the older release runs", runs)
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
        Timeout::new(self.arguments).wait_until(&what, ready).await
    }

    /// Makes a kustomization of the driver. On a cluster with one node it has the component for expansion, which is for
    /// such clusters only.
    fn driver(&self, directory: &Path) -> Result<Kustomization> {
        Kustomization::new(directory, self.has_one_node)
    }

    /// Removes everything in the order that docs/operators.md gives, and checks that the node's engine has no handler
    /// left.
    pub(crate) async fn remove(&self, node: &NodeShell<'_>) -> Result<()> {
        self.kubectl("delete", self.driver(&self.directory)?.path())
            .await?;
        self.kubectl("apply", &self.directory.join("uninstall"))
            .await?;
        self.ready("runcrust").await?;
        let handlers = node
            .run("grep -rl runcrust /etc/containerd || true")
            .await?;
        ensure!(
            handlers.is_empty(),
            "the engine's configuration still has the handler: {handlers}"
        );
        self.kubectl("delete", &self.directory.join("base")).await?;
        let left = node
            .run("find /run/crust -type f 2> /dev/null; true")
            .await?;
        ensure!(
            left.is_empty(),
            "volumes are still staged on the node: {left}"
        );
        self.arguments.print("what was installed has been removed");
        Ok(())
    }

    async fn kubectl(&self, verb: &str, directory: &Path) -> Result<()> {
        let mut kubectl = Command::new("kubectl");
        if let Some(file) = &self.arguments.kubeconfig {
            kubectl.arg("--kubeconfig").arg(file);
        }
        if let Some(context) = &self.arguments.context {
            kubectl.arg("--context").arg(context);
        }
        let output = kubectl
            .args([verb, "--kustomize"])
            .arg(directory)
            .output()
            .await;
        let output = output.context("kubectl; hint: --install needs kubectl in the PATH")?;
        if !output.status.success() {
            let (path, error) = (directory.display(), String::from_utf8_lossy(&output.stderr));
            bail!("kubectl {verb} --kustomize {path}: {}", error.trim());
        }
        Ok(())
    }
}

/// A directory with a kustomization, which is removed with this value.
struct Kustomization(TempDir);

impl Kustomization {
    /// Makes a kustomization of `csi` of a directory of manifests.
    fn new(manifests: &Path, has_expansion: bool) -> Result<Self> {
        let real = manifests.canonicalize();
        let real = real.with_context(|| manifests.display().to_string())?;
        let directory = TempDir::new().context("a temporary directory")?;
        let own = directory
            .path()
            .canonicalize()
            .context("a temporary directory")?;
        let text = kustomization(&relative_path(&own, &real), has_expansion);
        std::fs::write(own.join("kustomization.yaml"), text).context("a temporary file")?;
        Ok(Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Returns a kustomization as docs/crust-csi.md shows it. `manifests` is a relative path, which kustomize requires.
fn kustomization(manifests: &Path, has_expansion: bool) -> String {
    let manifests = manifests.display();
    let components = if has_expansion {
        format!("components: [{manifests}/components/expansion]\n")
    } else {
        String::new()
    };
    format!(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [{manifests}/csi]\n{components}"
    )
}

/// Returns the path from a directory to another one. Both are absolute, and without links.
fn relative_path(from: &Path, to: &Path) -> PathBuf {
    let is_name = |component: &Component<'_>| matches!(component, Component::Normal(_));
    let up = from
        .components()
        .filter(is_name)
        .map(|_| Component::ParentDir);
    up.chain(to.components().filter(is_name)).collect()
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
    fn the_driver_is_installed_by_a_relative_path() {
        let path = relative_path(Path::new("/tmp/a"), Path::new("/src/deploy/kubernetes"));
        assert_eq!(path, Path::new("../../src/deploy/kubernetes"));
        let text = kustomization(&path, true);
        for line in [
            "resources: [../../src/deploy/kubernetes/csi]",
            "components: [../../src/deploy/kubernetes/components/expansion]",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!kustomization(&path, false).contains("components"));
    }

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
