//! The testbed of all pods with one delegate, and lookups in it that need no agent.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runcrust_tests::cri::runtime_v1::{Container, ContainerState};
use runcrust_tests::manifests::{Pod, RuntimeClass, StorageClass};
use runcrust_tests::{Delegate, Setup, Testbed, holds_within};

use super::containerd_proxy::ContainerdProxy;
use super::leftovers::FirstMemory;

/// The runtime class of the pods.
pub(super) const CLASS: &str = "microvm";

/// Long, because daemons are killed repeatedly, and failed operations are retried with increasing delays.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// A testbed with an agent that may be killed at any time.
pub(super) struct AgentNode {
    pub(super) testbed: Testbed,
    pub(super) first_memory: FirstMemory,
    /// Number of steps that pods have completed.
    pub(super) progress: AtomicUsize,
    proxy: ContainerdProxy,
}

impl AgentNode {
    pub(super) fn new(delegate: Delegate) -> Self {
        let testbed = Testbed::with(delegate, &Setup::default());
        let fstype = |fstype: &str| {
            let class = StorageClass::new(fstype);
            class.parameter(&format!("csi.storage.k8s.io/fstype: {fstype}"))
        };
        // One class with each binding mode.
        let (ext4, xfs) = (fstype("ext4"), fstype("xfs").immediate());
        testbed.apply(
            "classes",
            &[&ext4, &xfs, &RuntimeClass::new(CLASS, "crust")],
        );
        let proxy = testbed.node.handler().path().with_file_name("l");
        let node = Self {
            proxy: ContainerdProxy::start(&proxy, &testbed.containerd.socket()),
            testbed,
            first_memory: FirstMemory::new(),
            progress: AtomicUsize::new(0),
        };
        node.testbed.crustlet.kill();
        node.start_agent();
        node
    }

    /// Starts crustlet, which must not be running.
    pub(super) fn start_agent(&self) {
        let crustlet = &self.testbed.crustlet;
        let proxy = self.proxy.socket().display();
        let proxy = format!("--container-runtime-endpoint=unix://{proxy}");
        crustlet.spawn(crustlet.command(&[&proxy]));
    }

    /// Repeats a command until the agent has carried it out, or the object no longer exists.
    ///
    /// # Panics
    ///
    /// If the agent refuses.
    #[track_caller]
    pub(super) fn run_command(&self, arguments: &[&str]) {
        let mut logs = None;
        let is_done = holds_within(TIMEOUT, || {
            let run = self.testbed.crustlet.cli(arguments);
            let is_done = run.status.success() || run.stderr.contains("not found");
            logs = Some(run);
            is_done
        });
        assert!(is_done, "{}", logs.expect("a run"));
    }

    /// Returns the existing containers of a pod.
    pub(super) fn containers(&self, pod: &Pod) -> Vec<Container> {
        let sandboxes = self.all_sandboxes(pod);
        let mut containers = self.testbed.cri().containers("").unwrap_or_default();
        containers.retain(|it| sandboxes.contains(&it.pod_sandbox_id));
        containers
    }

    /// Returns the running container of a pod.
    pub(super) fn running(&self, pod: &Pod) -> Option<String> {
        let mut containers = self.containers(pod).into_iter();
        let running = containers.find(|it| it.state() == ContainerState::ContainerRunning);
        running.map(|it| it.id)
    }

    /// Returns all sandboxes of a pod, running or not.
    pub(super) fn all_sandboxes(&self, pod: &Pod) -> Vec<String> {
        let uid = pod.uid();
        let pods = self.testbed.cri().pods().unwrap_or_default().into_iter();
        let of_pod = pods.filter(|it| it.metadata.as_ref().is_some_and(|it| it.uid == uid));
        of_pod.map(|it| it.id).collect()
    }

    /// Waits until nothing is left of a pod.
    ///
    /// # Panics
    ///
    /// If something stays.
    #[track_caller]
    pub(super) fn wait_gone(&self, pod: &Pod) {
        let crustlet = &self.testbed.crustlet;
        let paths = [crustlet.pod_dir(&pod.uid()), crustlet.manifest(pod.name())];
        let mut left: Vec<PathBuf> = Vec::new();
        let mut sandboxes = Vec::new();
        let is_gone = holds_within(TIMEOUT, || {
            left = paths.iter().filter(|it| it.exists()).cloned().collect();
            sandboxes = self.all_sandboxes(pod);
            left.is_empty() && sandboxes.is_empty()
        });
        self.progress.fetch_add(1, Ordering::Relaxed);
        let name = pod.name();
        assert!(
            is_gone,
            "pod {name} is not removed: {left:?} {sandboxes:?}\n{}",
            self.logs()
        );
    }

    /// Returns the ends of the daemons' logs, for the message of a failed assertion.
    pub(super) fn logs(&self) -> String {
        let tail = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        format!(
            "crust-csi:\n{}\ncrust_ops:\n{}",
            tail(self.testbed.csi.log()),
            tail(self.testbed.ops.log())
        )
    }
}
