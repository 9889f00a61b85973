//! The steps of a scenario: it creates objects in its namespace, waits, and looks. Each step prints a line.

use std::fmt;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::cluster::Cluster;
use crate::manifest;
use crate::node::NodeShell;
use crate::report::Skip;
use crate::scenarios::COMMON;
use crate::wait::{Progress, Timeout};

/// A scenario that is being run.
pub(crate) struct Test<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) arguments: &'a Arguments,
    pub(crate) node: &'a NodeShell<'a>,
    pub(crate) namespace: String,
    /// The objects that the scenario may create.
    pub(crate) manifest: &'static str,
    started: Instant,
}

impl<'a> Test<'a> {
    pub(crate) fn new(
        node: (&'a Cluster, &'a NodeShell<'a>),
        arguments: &'a Arguments,
        namespace: String,
        manifest: &'static str,
    ) -> Self {
        Self {
            cluster: node.0,
            arguments,
            node: node.1,
            namespace,
            manifest,
            started: Instant::now(),
        }
    }

    /// Prints what has been seen.
    pub(crate) fn step(&self, text: impl fmt::Display) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.arguments.print(&format!("  {seconds:6.1} s  {text}"));
    }

    /// Waits until `check` returns [`Progress::Done`], and prints `what` as a step.
    pub(crate) async fn wait_until(
        &self,
        what: &str,
        check: impl AsyncFnMut() -> Result<Progress>,
    ) -> Result<()> {
        Timeout::new(self.arguments).wait_until(what, check).await?;
        self.step(what);
        Ok(())
    }

    /// Returns an object of the scenario's manifest, or one that several scenarios have: `Pod/a`.
    pub(crate) fn find(&self, id: &str) -> Result<Value> {
        manifest::find(self.manifest, id).or_else(|_| manifest::find(COMMON, id))
    }

    /// Creates objects of the scenario's manifest: `Pod/a`.
    pub(crate) async fn create(&self, ids: &[&str]) -> Result<()> {
        for id in ids {
            self.create_object(self.find(id)?).await?;
        }
        Ok(())
    }

    /// Creates an object that a scenario has made from one of its manifest.
    pub(crate) async fn create_object(&self, object: Value) -> Result<()> {
        let object = manifest::adapt(object, self.arguments, self.cluster.node())?;
        self.cluster.create(&self.namespace, &object).await
    }

    /// Creates a claim and a pod, and waits until the pod runs.
    pub(crate) async fn start(&self, ids: &[&str]) -> Result<()> {
        self.create(ids).await?;
        for pod in ids.iter().filter_map(|id| id.strip_prefix("Pod/")) {
            self.running(pod).await?;
        }
        Ok(())
    }

    pub(crate) async fn object(&self, kind: &str, name: &str) -> Result<Value> {
        let object = self.cluster.get(&self.namespace, kind, name).await?;
        object.with_context(|| format!("{kind}/{name} doesn't exist"))
    }

    pub(crate) async fn pod(&self, name: &str) -> Result<Value> {
        self.object("Pod", name).await
    }

    pub(crate) async fn uid(&self, pod: &str) -> Result<String> {
        let pod = self.pod(pod).await?;
        Ok(pod["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned())
    }

    /// Waits until a pod and all its containers run.
    pub(crate) async fn running(&self, pod: &str) -> Result<()> {
        let what = format!("pod {pod} runs");
        self.wait_until(&what, async || {
            let object = self.pod(pod).await?;
            if matches!(
                object["status"]["phase"].as_str(),
                Some("Failed" | "Succeeded")
            ) {
                bail!("it has ended: {}", object["status"]);
            }
            Ok(Progress::of(is_running(&object), &describe_pod(&object)))
        })
        .await
    }

    /// Waits until a container of a pod was restarted at least this number of times.
    pub(crate) async fn restarted(&self, pod: &str, times: i64) -> Result<()> {
        let what = format!("the container of pod {pod} was restarted {times} times");
        self.wait_until(&what, async || {
            let object = self.pod(pod).await?;
            let restarts = object["status"]["containerStatuses"][0]["restartCount"].as_i64();
            Ok(Progress::of(
                restarts.unwrap_or(0) >= times,
                &describe_pod(&object),
            ))
        })
        .await
    }

    /// Waits for an event about an object that contains a text.
    pub(crate) async fn event(&self, name: &str, text: &str) -> Result<String> {
        let mut found = String::new();
        self.wait_until(&format!("an event of {name} says {text:?}"), async || {
            let events = self.cluster.events(&self.namespace, name).await?;
            let event = events.iter().find(|event| event.contains(text));
            found = event.cloned().unwrap_or_default();
            Ok(Progress::of(event.is_some(), &format_args!("{events:?}")))
        })
        .await?;
        Ok(found)
    }

    /// Deletes an object, `Pod/a`, and waits until it is gone.
    pub(crate) async fn delete(&self, id: &str) -> Result<()> {
        let (kind, name) = id.split_once('/').context("an id is Kind/name")?;
        self.cluster
            .delete(&self.namespace, kind, name, None)
            .await?;
        self.gone(id).await
    }

    /// Waits until an object, `Pod/a`, is gone.
    pub(crate) async fn gone(&self, id: &str) -> Result<()> {
        let (kind, name) = id.split_once('/').context("an id is Kind/name")?;
        self.wait_until(&format!("{id} is gone"), async || {
            let object = self.cluster.get(&self.namespace, kind, name).await?;
            let status = object.as_ref().map(|it| it["status"].clone());
            Ok(Progress::of(object.is_none(), &status.unwrap_or_default()))
        })
        .await
    }

    /// Runs a shell script in the only container of a pod, and returns its output.
    pub(crate) async fn sh(&self, pod: &str, script: &str) -> Result<String> {
        self.sh_in(pod, None, script).await
    }

    /// Runs a shell script in a container of a pod, and returns its output.
    pub(crate) async fn sh_in(
        &self,
        pod: &str,
        container: Option<&str>,
        script: &str,
    ) -> Result<String> {
        let command = ["sh", "-c", script];
        let output = self
            .cluster
            .execute(&self.namespace, pod, container, &command)
            .await?;
        match output.failure {
            Some(failure) => bail!("{script:?} in pod {pod}: {failure}"),
            None => Ok(output.stdout),
        }
    }

    /// Checks the output of a shell script in the only container of a pod.
    pub(crate) async fn expect(&self, pod: &str, script: &str, expected: &str) -> Result<()> {
        self.expect_in(pod, None, script, expected).await
    }

    /// Checks the output of a shell script in a container of a pod.
    pub(crate) async fn expect_in(
        &self,
        pod: &str,
        container: Option<&str>,
        script: &str,
        expected: &str,
    ) -> Result<()> {
        let output = self.sh_in(pod, container, script).await?;
        ensure!(
            output == expected,
            "{script:?} in pod {pod}: expected {expected:?}, but the output is {output:?}"
        );
        let place = container.map_or_else(|| pod.to_owned(), |name| format!("{pod}/{name}"));
        self.step(format_args!(
            "{place}: {script} -> {}",
            output.replace('\n', "|")
        ));
        Ok(())
    }

    /// Checks that a shell script fails in a container, and that its error contains a text.
    pub(crate) async fn refused(
        &self,
        pod: &str,
        container: Option<&str>,
        script: &str,
        text: &str,
    ) -> Result<()> {
        let command = ["sh", "-c", script];
        let output = self
            .cluster
            .execute(&self.namespace, pod, container, &command)
            .await?;
        let failure = output.failure.with_context(|| {
            format!(
                "{script:?} in pod {pod} should fail, but succeeded: {}",
                output.stdout
            )
        })?;
        ensure!(
            failure.contains(text),
            "{script:?} in pod {pod}: {text:?} isn't in: {failure}"
        );
        self.step(format_args!("{pod}: {script} -> {text}"));
        Ok(())
    }

    /// Checks that a running pod's volumes are deferred: the node's mount table doesn't have them, and each of `count`
    /// volumes is in use by the pod.
    pub(crate) async fn deferred(&self, pod: &str, count: usize) -> Result<()> {
        let uid = self.uid(pod).await?;
        let volumes = self.node.staged_volumes().await?;
        let in_use = volumes
            .iter()
            .filter(|it| it["pod_uid"] == *uid && it["state"] == "in use");
        let in_use: Vec<&Value> = in_use.collect();
        let devices: Vec<&str> = in_use
            .iter()
            .filter_map(|it| it["device_number"].as_str())
            .collect();
        let mounts = self.node.volume_mounts(&uid, &devices).await?;
        ensure!(
            mounts.is_empty(),
            "the node has volumes of pod {pod} mounted: {mounts:?}"
        );
        let found = in_use.len();
        ensure!(
            found == count,
            "pod {pod} should have {count} deferred volumes in use, but has {found}: {}",
            json!(volumes)
        );
        self.step(format_args!(
            "pod {pod} has {count} deferred, and none in the node's mount table"
        ));
        Ok(())
    }

    /// Creates a StorageClass for this scenario: the deferring one with other parameters. Skips the scenario if its
    /// driver isn't crust-csi, because other drivers have other parameters.
    pub(crate) async fn create_class(&self, name: &str, parameters: &Value) -> Result<String> {
        let mut class = self.class(&self.arguments.storage_class).await?;
        if class["provisioner"] != "csi.crust.dev" {
            bail!(Skip(format!(
                "StorageClass {} isn't one of crust-csi",
                self.arguments.storage_class
            )));
        }
        let name = format!("{}-{name}", self.namespace);
        class["metadata"] = json!({"name": name});
        for (key, value) in parameters.as_object().into_iter().flatten() {
            class["parameters"][key] = value.clone();
        }
        self.create_object(class).await?;
        Ok(name)
    }

    /// Returns a StorageClass. Skips the scenario if the cluster doesn't have it.
    pub(crate) async fn class(&self, name: &str) -> Result<Value> {
        let class = self.cluster.get("", "StorageClass", name).await?;
        class.with_context(|| Skip(format!("the cluster has no StorageClass {name}")))
    }
}

/// Returns whether a pod runs with all its containers ready.
fn is_running(pod: &Value) -> bool {
    let containers = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let statuses = pod["status"]["containerStatuses"].as_array();
    let ready = statuses
        .into_iter()
        .flatten()
        .filter(|it| it["ready"] == true);
    pod["status"]["phase"] == "Running" && ready.count() == containers
}

/// Describes a pod's state in one line.
pub(crate) fn describe_pod(pod: &Value) -> String {
    let status = &pod["status"];
    let lists = [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ];
    let statuses = lists
        .iter()
        .filter_map(|list| status[list].as_array())
        .flatten();
    let containers: Vec<String> = statuses
        .map(|it| {
            format!(
                "{}: {}, {} restarts",
                it["name"], it["state"], it["restartCount"]
            )
        })
        .collect();
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let unmet = conditions.filter(|it| it["status"] != "True");
    let unmet: Vec<String> = unmet
        .map(|it| format!("{}: {}", it["type"], it["message"]))
        .collect();
    format!(
        "{} {} {}",
        status["phase"],
        containers.join("; "),
        unmet.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_runs_when_all_its_containers_are_ready() {
        let pod = |phase: &str, ready: &[bool]| {
            let statuses: Vec<Value> = ready.iter().map(|ready| json!({"ready": ready})).collect();
            is_running(&json!({
                "spec": {"containers": [{}, {}]},
                "status": {"phase": phase, "containerStatuses": statuses},
            }))
        };
        assert!(pod("Running", &[true, true]));
        for (phase, ready) in [
            ("Running", &[true, false][..]),
            ("Running", &[true]),
            ("Pending", &[true, true]),
        ] {
            assert!(!pod(phase, ready), "{phase} {ready:?}");
        }
    }
}
