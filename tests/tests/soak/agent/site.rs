//! What all pods of a delegate's share: a testbed, and looks at it that need no agent.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use runcrust_tests::cri::runtime_v1::{Container, ContainerState};
use runcrust_tests::manifests::{Pod, RuntimeClass, StorageClass};
use runcrust_tests::{Delegate, Setup, Testbed, holds_within};

use super::census::First;
use super::line::Line;

/// The handler that pods run under.
pub(super) const CLASS: &str = "microvm";

/// Who is killed again and again takes longer; what failed meanwhile is tried again later and later.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The testbed.
pub(super) struct Site {
    pub(super) bed: Testbed,
    pub(super) first: First,
    /// Counts what pods have come to.
    pub(super) progress: AtomicUsize,
    line: Line,
}

impl Site {
    pub(super) fn new(delegate: Delegate) -> Self {
        let bed = Testbed::with(delegate, &Setup::default());
        let fstype = |fstype: &str| {
            let class = StorageClass::new(fstype);
            class.parameter(&format!("csi.storage.k8s.io/fstype: {fstype}"))
        };
        // Both ways to bind.
        let (ext4, xfs) = (fstype("ext4"), fstype("xfs").immediate());
        bed.apply(
            "classes",
            &[&ext4, &xfs, &RuntimeClass::new(CLASS, "crust")],
        );
        let line = bed.node.handler().path().with_file_name("l");
        let site = Self {
            line: Line::start(&line, &bed.containerd.socket()),
            bed,
            first: First::new(),
            progress: AtomicUsize::new(0),
        };
        site.bed.crustlet.kill();
        site.start_agent();
        site
    }

    /// Starts crustlet, which doesn't run.
    pub(super) fn start_agent(&self) {
        let crustlet = &self.bed.crustlet;
        let line = self.line.socket().display();
        let line = format!("--container-runtime-endpoint=unix://{line}");
        crustlet.spawn(crustlet.command(&[&line]));
    }

    /// Asks the agent, whoever that is by then, until it has done so, or there is nothing to do any more.
    ///
    /// # Panics
    ///
    /// When it refuses.
    #[track_caller]
    pub(super) fn ask(&self, arguments: &[&str]) {
        let mut told = None;
        let is_done = holds_within(PATIENCE, || {
            let run = self.bed.crustlet.cli(arguments);
            let is_done = run.status.success() || run.stderr.contains("not found");
            told = Some(run);
            is_done
        });
        assert!(is_done, "{}", told.expect("it was asked"));
    }

    /// A pod's containers that there are.
    pub(super) fn containers(&self, pod: &Pod) -> Vec<Container> {
        let sandboxes = self.all_sandboxes(pod);
        let mut containers = self.bed.cri().containers("").unwrap_or_default();
        containers.retain(|it| sandboxes.contains(&it.pod_sandbox_id));
        containers
    }

    /// The one of them that runs.
    pub(super) fn running(&self, pod: &Pod) -> Option<String> {
        let mut containers = self.containers(pod).into_iter();
        let running = containers.find(|it| it.state() == ContainerState::ContainerRunning);
        running.map(|it| it.id)
    }

    /// A pod's sandboxes, whether they run or not.
    pub(super) fn all_sandboxes(&self, pod: &Pod) -> Vec<String> {
        let uid = pod.uid();
        let pods = self.bed.cri().pods().unwrap_or_default().into_iter();
        let of_it = pods.filter(|it| it.metadata.as_ref().is_some_and(|it| it.uid == uid));
        of_it.map(|it| it.id).collect()
    }

    /// Waits until nothing is left of a pod.
    ///
    /// # Panics
    ///
    /// When something stays.
    #[track_caller]
    pub(super) fn wait_gone(&self, pod: &Pod) {
        let crustlet = &self.bed.crustlet;
        let places = [crustlet.pod_dir(&pod.uid()), crustlet.manifest(pod.name())];
        let mut left: Vec<PathBuf> = Vec::new();
        let mut sandboxes = Vec::new();
        let is_gone = holds_within(PATIENCE, || {
            left = places.iter().filter(|it| it.exists()).cloned().collect();
            sandboxes = self.all_sandboxes(pod);
            left.is_empty() && sandboxes.is_empty()
        });
        self.progress.fetch_add(1, Ordering::Relaxed);
        let name = pod.name();
        assert!(
            is_gone,
            "pod {name} doesn't go: {left:?} {sandboxes:?}\n{}",
            self.told()
        );
    }

    /// For whoever reads why it failed.
    pub(super) fn told(&self) -> String {
        let tail = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(60)..].join("\n")
        };
        format!(
            "crust-csi:\n{}\ncrust_ops:\n{}",
            tail(self.bed.csi.log()),
            tail(self.bed.ops.log())
        )
    }
}
