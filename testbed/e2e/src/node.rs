//! Looks at a node, and disruptions of it, by programs that a privileged pod runs among the node's own processes.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::cluster::{Cluster, Output};
use crate::manifest;
use crate::wait::{Progress, Timeout};

/// The namespace and the name of the pod.
const NAMESPACE: &str = "crust-e2e-node";
const POD: &str = "node";

/// A privileged pod with the node's processes. Its programs run in the node's namespaces.
pub(crate) struct NodeShell<'a> {
    cluster: &'a Cluster,
    arguments: &'a Arguments,
    /// The leftovers of other pods before the first scenario.
    before: Vec<Leftover>,
}

/// Something of a pod that doesn't exist any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftover(String);

impl<'a> NodeShell<'a> {
    /// Starts the pod, and waits until it runs.
    pub(crate) async fn start(cluster: &'a Cluster, arguments: &'a Arguments) -> Result<Self> {
        let mut shell = Self {
            cluster,
            arguments,
            before: Vec::new(),
        };
        shell.remove().await?;
        for object in objects(arguments) {
            let object = manifest::adapt(object, arguments, cluster.node())?;
            cluster.create(NAMESPACE, &object).await?;
        }
        let timeout = Timeout::new(arguments);
        timeout
            .wait_until("the pod that looks at the node runs", async || {
                let pod = cluster
                    .get(NAMESPACE, "Pod", POD)
                    .await?
                    .unwrap_or_default();
                Ok(Progress::of(
                    pod["status"]["phase"] == "Running",
                    &pod["status"],
                ))
            })
            .await?;
        shell.before = shell.leftovers().await?;
        Ok(shell)
    }

    /// Removes the pod and its namespace, and waits until they are gone.
    pub(crate) async fn remove(&self) -> Result<()> {
        remove_namespace(self.cluster, self.arguments, NAMESPACE).await
    }

    /// Runs a shell script in the node's mount namespace, and returns its output. Fails if the script fails. If kubelet or
    /// the engine doesn't answer, because it is being restarted, the script is run again.
    pub(crate) async fn run(&self, script: &str) -> Result<String> {
        let command = ["nsenter", "-t", "1", "-m", "--", "sh", "-c", script];
        let mut output = Output::default();
        let has_run = async || {
            let result = self.cluster.execute(NAMESPACE, POD, None, &command).await;
            Ok(match result {
                Ok(result) => {
                    output = result;
                    Progress::Done
                }
                Err(error) => Progress::NotYet(format!("{error:#}")),
            })
        };
        let timeout = Timeout::new(self.arguments);
        timeout
            .wait_until("a script is run on the node", has_run)
            .await?;
        match output.failure {
            Some(failure) => bail!("on node {}: {script}: {failure}", self.cluster.node()),
            None => Ok(output.stdout),
        }
    }

    /// Starts a shell script in the node's mount namespace, and doesn't wait for it. For scripts that end kubelet or the
    /// engine, which carry the output of [`Self::run`].
    pub(crate) async fn run_in_background(&self, script: &str) -> Result<()> {
        let quoted = script.replace('\'', r"'\''");
        // The pause lets the call return before the script begins.
        let start = format!("setsid sh -c 'sleep 1; {quoted}' > /dev/null 2>&1 < /dev/null &");
        self.run(&start).await.map(drop)
    }

    /// Returns the lines of the node's mount table that show a volume of a pod: a mount at the path of a volume, or a mount
    /// of one of these devices (`7:3`) anywhere. Kubelet's own mounts of subPaths are of the empty directories there.
    pub(crate) async fn volume_mounts(
        &self,
        pod_uid: &str,
        devices: &[&str],
    ) -> Result<Vec<String>> {
        let table = self.run("cat /proc/1/mountinfo").await?;
        Ok(find_volume_mounts(&table, pod_uid, devices))
    }

    /// Returns the volumes that are staged on the node, as `runcrust crust list --json` prints them.
    pub(crate) async fn staged_volumes(&self) -> Result<Vec<Value>> {
        let list = self
            .run(&format!("{} crust list --json", self.arguments.runcrust))
            .await?;
        let list: Value = serde_json::from_str(&list).context("runcrust crust list")?;
        Ok(list["volumes"].as_array().cloned().unwrap_or_default())
    }

    /// Returns what is left on the node of pods that don't exist any more, and wasn't there before the first scenario:
    /// staged volumes, and mounts.
    pub(crate) async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let pods = self.cluster.list("", "Pod").await?;
        let uids = pods
            .iter()
            .filter_map(|pod| pod["metadata"]["uid"].as_str());
        let uids: Vec<&str> = uids.collect();
        let volumes = self.staged_volumes().await?;
        let mounts = self.run("cat /proc/1/mountinfo").await?;
        let mut left = find_leftovers(&volumes, &mounts, &uids);
        left.retain(|it| !self.before.contains(it));
        Ok(left)
    }
}

/// Deletes a namespace, and waits until it is gone.
pub(crate) async fn remove_namespace(
    cluster: &Cluster,
    arguments: &Arguments,
    name: &str,
) -> Result<()> {
    cluster.delete("", "Namespace", name, None).await?;
    let timeout = Timeout::new(arguments);
    let is_gone = async || {
        let namespace = cluster.get("", "Namespace", name).await?;
        let status = namespace.as_ref().map(|it| it["status"].clone());
        Ok(Progress::of(
            namespace.is_none(),
            &status.unwrap_or_default(),
        ))
    };
    timeout
        .wait_until(&format!("namespace {name} is gone"), is_gone)
        .await
}

fn objects(arguments: &Arguments) -> [Value; 2] {
    // The level is needed where another one is the cluster's default.
    let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": labels},
    });
    let container = json!({
        "name": "shell",
        "image": arguments.image,
        "command": ["sleep", "1000000"],
        "securityContext": {"privileged": true},
    });
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "hostPID": true,
            "hostNetwork": true,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    });
    [namespace, pod]
}

/// Returns the parts of a pod's directory that follow `pods/`: the pod's uid, and the rest.
fn pod_of_path(path: &str) -> Option<&str> {
    let (_, rest) = path.split_once("/pods/")?;
    let (uid, rest) = rest.split_once('/')?;
    rest.starts_with("volume").then_some(uid)
}

fn find_volume_mounts(table: &str, pod_uid: &str, devices: &[&str]) -> Vec<String> {
    let volumes = format!("/pods/{pod_uid}/volumes/kubernetes.io~csi/");
    let is_of_volume = |line: &&str| {
        // Fields 3 and 5 of proc_pid_mountinfo(5).
        let mut fields = line.split(' ').skip(2);
        let device = fields.next().unwrap_or_default();
        let mount_point = fields.nth(1).unwrap_or_default();
        devices.contains(&device) || mount_point.contains(&volumes)
    };
    table
        .lines()
        .filter(is_of_volume)
        .map(str::to_owned)
        .collect()
}

fn find_leftovers(volumes: &[Value], mounts: &str, pods: &[&str]) -> Vec<Leftover> {
    let is_gone = |path: &str| pod_of_path(path).is_some_and(|uid| !pods.contains(&uid));
    let targets = volumes
        .iter()
        .filter_map(|volume| volume["target_path"].as_str());
    let staged = targets.filter(|target| is_gone(target));
    let staged = staged.map(|target| Leftover(format!("staged volume {target}")));
    let mounted = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let mounted = mounted.filter(|point| is_gone(point));
    let mounted = mounted.map(|point| Leftover(format!("mount {point}")));
    staged.chain(mounted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_on_the_node_is_found_by_its_path_or_its_device() {
        let volume = "/k/pods/a/volumes/kubernetes.io~csi/pv/mount";
        let subpath =
            format!("1 1 8:1 {volume}/sub /k/pods/a/volume-subpaths/pv/c/0 rw - ext4 /dev/a rw");
        let mounted = format!("2 1 0:9 / {volume} rw - nfs4 srv:/a rw");
        let elsewhere = "3 1 7:3 / /mnt rw - ext4 /dev/loop3 rw";
        let table = format!("{subpath}\n{mounted}\n{elsewhere}");
        let found = |uid, devices: &[&str]| find_volume_mounts(&table, uid, devices);
        assert_eq!(found("a", &["7:3"]), [&*mounted, elsewhere]);
        assert_eq!(found("b", &["7:3"]), [elsewhere]);
        assert!(found("b", &["7:33"]).is_empty());
    }

    #[test]
    fn leftovers_are_volumes_and_mounts_of_pods_that_are_gone() {
        let target = |uid| format!("/k/pods/{uid}/volumes/kubernetes.io~csi/pv/mount");
        let volumes = ["alive", "gone"].map(|uid| json!({"target_path": target(uid)}));
        let mounts = format!(
            "1 1 0:1 / / rw - ext4 /dev/a rw\n2 1 7:1 / {} rw - ext4 /dev/b rw\n\
             3 1 7:1 / {} rw - ext4 /dev/b rw\n4 1 0:9 / /x/pods/gone/etc-hosts rw - ext4 /dev/a rw",
            target("alive"),
            target("gone")
        );
        let expected =
            ["staged volume", "mount"].map(|kind| Leftover(format!("{kind} {}", target("gone"))));
        assert_eq!(find_leftovers(&volumes, &mounts, &["alive"]), expected);
    }

    #[test]
    fn the_pod_has_only_fields_of_its_type() {
        use clap::Parser;

        let arguments = Arguments::parse_from(["crust-e2e"]);
        let [_, pod] = objects(&arguments);
        let adapted = manifest::adapt(pod, &arguments, "node-1").unwrap();
        manifest::tests::check_strictly(&serde_json::to_value(adapted).unwrap());
    }
}
