//! The API server: objects of all kinds, the logs of containers, and programs in them.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{
    Api, AttachParams, DeleteParams, DynamicObject, ListParams, LogParams, Patch, PatchParams,
    PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::arguments::Arguments;
use crate::manifest;
use crate::wait::{Progress, Timeout};

/// The time that a program in a container may take.
const EXECUTE_TIMEOUT: Duration = Duration::from_secs(60);

/// The time that kubelet may take for its stats.
const STATS_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a cluster, and the node that the scenarios use.
#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
    node: String,
}

/// The output of a program that was run in a container.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Standard output, without the blanks at its end.
    pub(crate) stdout: String,
    /// The reason of a failure, with the standard error; `None` if the program succeeded.
    pub(crate) failure: Option<String>,
}

impl Cluster {
    /// Connects to a cluster, and selects the node.
    pub(crate) async fn connect(arguments: &Arguments) -> Result<Self> {
        let options = KubeConfigOptions {
            context: arguments.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &arguments.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file);
                let kubeconfig = read.with_context(|| file.display().to_string())?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await?
            }
            None if arguments.context.is_some() => Config::from_kubeconfig(&options).await?,
            None => Config::infer()
                .await
                .context("no cluster is configured; hint: give --kubeconfig, or set KUBECONFIG")?,
        };
        let client = Client::try_from(config)?;
        let node = match &arguments.node {
            Some(node) => node.clone(),
            None => wait_for_node(&client, arguments).await?,
        };
        Ok(Self { client, node })
    }

    /// Returns the name of the node that the pods run on.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }

    pub(crate) async fn node_count(&self) -> Result<usize> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes
            .list(&ListParams::default())
            .await
            .context("list Node")?;
        Ok(nodes.items.len())
    }

    pub(crate) async fn node_object(&self) -> Result<Node> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node).await;
        node.with_context(|| format!("node {}", self.node))
    }

    pub(crate) async fn version(&self) -> Result<String> {
        let version = self.client.apiserver_version().await;
        Ok(version.context("the API server's version")?.git_version)
    }

    /// Returns the objects of a kind; all of the cluster's if it has no namespaces, or `namespace` is empty.
    fn api(&self, kind: &str, namespace: &str) -> Result<Api<DynamicObject>> {
        let resource = manifest::resource(kind)?;
        Ok(if is_cluster_wide(kind) || namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        })
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn create(&self, namespace: &str, object: &DynamicObject) -> Result<()> {
        let kind = object.types.as_ref().map_or("", |types| &types.kind);
        let created = self
            .api(kind, namespace)?
            .create(&PostParams::default(), object)
            .await;
        created.with_context(|| format!("create {kind}/{}", object.name_any()))?;
        Ok(())
    }

    /// Returns an object as JSON; `None` if it doesn't exist.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<Value>> {
        let found = self.api(kind, namespace)?.get_opt(name).await;
        let found = found.with_context(|| format!("get {kind}/{name}"))?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    /// Returns all objects of a kind in a namespace as JSON; in all namespaces if it is empty.
    pub(crate) async fn list(&self, namespace: &str, kind: &str) -> Result<Vec<Value>> {
        let listed = self
            .api(kind, namespace)?
            .list(&ListParams::default())
            .await;
        let listed = listed.with_context(|| format!("list {kind}"))?;
        let values = listed.items.into_iter().map(serde_json::to_value);
        Ok(values.collect::<Result<_, _>>()?)
    }

    /// Changes an object by a merge patch (RFC 7386).
    pub(crate) async fn patch(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
        change: &Value,
    ) -> Result<()> {
        let objects = self.api(kind, namespace)?;
        let parameters = PatchParams::default();
        let patched = objects
            .patch(name, &parameters, &Patch::Merge(change))
            .await;
        patched.with_context(|| format!("patch {kind}/{name}"))?;
        Ok(())
    }

    /// Adds an ephemeral container to a pod.
    pub(crate) async fn add_ephemeral_container(
        &self,
        namespace: &str,
        pod: &str,
        container: &Value,
    ) -> Result<()> {
        let change = json!({"spec": {"ephemeralContainers": [container]}});
        let pods = self.pods(namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Strategic(change));
        let patched = pods
            .patch_ephemeral_containers(pod, &parameters, &patch)
            .await;
        patched.with_context(|| format!("add an ephemeral container to pod {pod}"))?;
        Ok(())
    }

    /// Deletes an object, if it exists. `grace_period` is a pod's, in seconds; with 0 the API server deletes the pod
    /// without waiting for kubelet.
    pub(crate) async fn delete(
        &self,
        namespace: &str,
        kind: &str,
        name: &str,
        grace_period: Option<u32>,
    ) -> Result<()> {
        let parameters = DeleteParams {
            grace_period_seconds: grace_period,
            ..DeleteParams::background()
        };
        match self.api(kind, namespace)?.delete(name, &parameters).await {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("delete {kind}/{name}")),
        }
    }

    /// Returns what the events about an object say, the oldest first.
    pub(crate) async fn events(&self, namespace: &str, name: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let selector = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = events.list(&selector).await.context("list Event")?;
        let texts = events.items.into_iter().map(|event| {
            let reason = event.reason.unwrap_or_default();
            format!("{reason}: {}", event.message.unwrap_or_default())
        });
        Ok(texts.collect())
    }

    /// Returns the log of a container. A pod with one container needs no name.
    pub(crate) async fn log(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
    ) -> Result<String> {
        let parameters = LogParams {
            container: container.map(str::to_owned),
            ..LogParams::default()
        };
        let log = self.pods(namespace).logs(pod, &parameters).await;
        log.with_context(|| format!("the log of pod {pod}"))
    }

    /// Runs a program in a container. A pod with one container needs no name. Fails after a minute: if kubelet or the
    /// engine is killed, the end of the program is never reported.
    pub(crate) async fn execute(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[&str],
    ) -> Result<Output> {
        let executed = self.try_execute(namespace, pod, container, command);
        let executed = tokio::time::timeout(EXECUTE_TIMEOUT, executed).await;
        executed.with_context(|| format!("timeout: {command:?} in pod {pod}"))?
    }

    async fn try_execute(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[&str],
    ) -> Result<Output> {
        let called = || format!("{command:?} in pod {pod}");
        let mut parameters = AttachParams::default()
            .stdin(false)
            .stdout(true)
            .stderr(true);
        if let Some(container) = container {
            parameters = parameters.container(container);
        }
        let process = self
            .pods(namespace)
            .exec(pod, command.iter().copied(), &parameters)
            .await;
        let mut process = process.with_context(called)?;
        let status = process.take_status();
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let read = async |stream: Option<_>| {
            let mut text = Vec::new();
            if let Some(mut stream) = stream {
                read_to_end(&mut stream, &mut text).await?;
            }
            anyhow::Ok(String::from_utf8_lossy(&text).trim_end().to_owned())
        };
        let (stdout, stderr) = tokio::try_join!(read(stdout), read(stderr)).with_context(called)?;
        let status = match status {
            Some(status) => status.await,
            None => None,
        };
        let status = status.ok_or_else(|| anyhow!("{}: its end wasn't reported", called()))?;
        Ok(Output {
            stdout,
            failure: failure(&status, &stderr),
        })
    }

    /// Returns what kubelet says about the node's pods and volumes (`/stats/summary`). Fails after ten seconds: the API
    /// server waits for a kubelet that ends.
    pub(crate) async fn stats_summary(&self) -> Result<Value> {
        let path = format!("/api/v1/nodes/{}/proxy/stats/summary", self.node);
        let request = http_get(&path)?;
        let summary = self.client.request(request);
        let summary = tokio::time::timeout(STATS_TIMEOUT, summary).await;
        summary
            .with_context(|| format!("timeout: GET {path}"))?
            .with_context(|| format!("GET {path}"))
    }
}

async fn read_to_end(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    text: &mut Vec<u8>,
) -> Result<()> {
    stream.read_to_end(text).await?;
    Ok(())
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(Vec::new())?)
}

/// Returns why a program failed; `None` if it succeeded.
fn failure(status: &Status, stderr: &str) -> Option<String> {
    if status.status.as_deref() == Some("Success") {
        return None;
    }
    let message = status.message.as_deref().unwrap_or("failed");
    Some(match stderr {
        "" => message.to_owned(),
        stderr => format!("{message}: {stderr}"),
    })
}

fn is_cluster_wide(kind: &str) -> bool {
    matches!(
        kind,
        "CSIDriver" | "Namespace" | "PersistentVolume" | "RuntimeClass" | "StorageClass"
    )
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Waits for a node on which pods can be scheduled: a node that has just joined has taints for a while.
async fn wait_for_node(client: &Client, arguments: &Arguments) -> Result<String> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut found = String::new();
    let is_found = async || {
        let nodes = nodes.list(&ListParams::default()).await;
        let nodes = nodes.context("list Node")?.items;
        let names: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
        let ready = nodes.iter().find(|node| is_ready(node));
        found = ready.map(ResourceExt::name_any).unwrap_or_default();
        Ok(Progress::of(ready.is_some(), &format_args!("{names:?}")))
    };
    let what = "a node is ready and schedulable for pods without tolerations (hint: --node selects another one)";
    Timeout::new(arguments).wait_until(what, is_found).await?;
    Ok(found)
}

/// Returns whether pods without tolerations can be scheduled on a node.
fn is_ready(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let is_unschedulable = spec.and_then(|spec| spec.unschedulable) == Some(true);
    let taints = spec
        .and_then(|spec| spec.taints.as_ref())
        .into_iter()
        .flatten();
    let is_tainted = taints
        .into_iter()
        .any(|taint| taint.effect != "PreferNoSchedule");
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_linux = node
        .labels()
        .get("kubernetes.io/os")
        .is_none_or(|os| os == "linux");
    is_ready && is_linux && !is_unschedulable && !is_tainted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_a_taint_or_another_system_is_not_selected() {
        let node = |os: &str, spec: Value, ready: &str| {
            let node = json!({
                "metadata": {"name": "a", "labels": {"kubernetes.io/os": os}},
                "spec": spec,
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            is_ready(&serde_json::from_value(node).unwrap())
        };
        let tainted = |effect: &str| json!({"taints": [{"key": "a", "effect": effect}]});
        assert!(node("linux", json!({}), "True"));
        assert!(node("linux", tainted("PreferNoSchedule"), "True"));
        for (os, spec, ready) in [
            ("linux", tainted("NoSchedule"), "True"),
            ("linux", json!({"unschedulable": true}), "True"),
            ("linux", json!({}), "Unknown"),
            ("windows", json!({}), "True"),
        ] {
            assert!(!node(os, spec.clone(), ready), "{os} {spec} {ready}");
        }
    }
}
