//! Pairs of pods that run one after the other.

use std::sync::atomic::Ordering;

use runcrust_tests::cri::runtime_v1::ContainerState;
use runcrust_tests::holds_within;
use runcrust_tests::manifests::{Claim, Pod};
use runcrust_tests::random::Random;

use super::node::{AgentNode, TIMEOUT};
use super::pair::{LINES, Pair, PodPlan};

/// Runs pairs of pods one after the other.
pub(super) struct PairSequence<'s> {
    node: &'s AgentNode,
    index: usize,
    started: usize,
    random: Random,
}

/// The way in which a pod is removed.
#[derive(Debug, Clone, Copy)]
enum Removal {
    /// The pod's manifest is removed.
    Removed,
    /// The pod is removed with `crustlet delete`, which sets `metadata.deletionTimestamp`.
    Deleted,
    /// The pod is removed with `crustlet delete --force`.
    Forced,
}

const REMOVALS: [Removal; 5] = [
    Removal::Removed,
    Removal::Removed,
    Removal::Deleted,
    Removal::Deleted,
    Removal::Forced,
];

impl<'s> PairSequence<'s> {
    pub(super) fn new(node: &'s AgentNode, index: usize, random: Random) -> Self {
        Self {
            node,
            index,
            started: 0,
            random,
        }
    }

    /// Runs one pair.
    pub(super) fn run_pair(&mut self) {
        let pair = self.start_first();
        self.finish(pair);
    }

    /// Starts the first pod of a new pair, and waits until it has written.
    pub(super) fn start_first(&mut self) -> Pair {
        let pair = Pair::new(
            &format!("l{}-{}", self.index, self.started),
            &mut self.random,
        );
        self.started += 1;
        self.write(&pair.shared);
        self.apply(&pair.plans[0]);
        self.wait_done(&pair.plans[0]);
        pair
    }

    /// Starts the second pod of a pair, and removes both.
    pub(super) fn finish(&mut self, pair: Pair) {
        let Pair { shared, plans } = pair;
        let [one, two] = &plans;
        self.apply(two);
        if !one.ends {
            let sandboxes = self.node.all_sandboxes(&two.pod);
            assert_eq!(
                sandboxes,
                Vec::<String>::new(),
                "the volume belongs to {}",
                one.pod.name()
            );
        }
        self.end(one);
        self.wait_done(two);
        self.end(two);
        self.remove(&shared.0);
    }

    fn write(&self, (name, claim): &(String, Claim)) {
        self.node.testbed.apply(&claim_manifest(name), &[claim]);
    }

    /// Writes the manifests of a pod and its claims, in random order.
    fn apply(&mut self, plan: &PodPlan) {
        let testbed = &self.node.testbed;
        let is_first = self.random.once_in(2);
        if is_first {
            testbed.apply_pod(&plan.pod);
        }
        plan.claims.iter().for_each(|claim| self.write(claim));
        if !is_first {
            testbed.apply_pod(&plan.pod);
        }
    }

    /// Waits until a pod has written to all of its volumes.
    fn wait_done(&self, plan: &PodPlan) {
        let PodPlan { pod, ends, .. } = plan;
        let node = self.node;
        let is_done = holds_within(TIMEOUT, || {
            if *ends {
                has_succeeded(node, pod)
            } else {
                has_written(node, pod)
            }
        });
        node.progress.fetch_add(1, Ordering::Relaxed);
        let name = pod.name();
        assert!(
            is_done,
            "pod {name} has not written its data: {:?}\n{}",
            node.containers(pod),
            node.logs()
        );
    }

    /// Removes a pod, and each of its claims before or after it.
    fn end(&mut self, plan: &PodPlan) {
        let PodPlan { pod, claims, .. } = plan;
        let node = self.node;
        if !plan.ends {
            assert_lines(node, pod);
        }
        let mut later = Vec::new();
        for (name, _) in claims {
            if self.random.once_in(2) {
                node.run_command(&["delete", &format!("pvc/{name}"), "--wait=false"]);
            } else {
                later.push(name);
            }
        }
        let object = format!("pod/{}", pod.name());
        match self.random.pick(&REMOVALS) {
            Removal::Removed => node.testbed.crustlet.remove(pod.name()),
            Removal::Deleted => node.run_command(&["delete", &object, "--wait=false"]),
            Removal::Forced => node.run_command(&["delete", &object, "--wait=false", "--force"]),
        }
        node.wait_gone(pod);
        for name in later {
            self.remove(name);
        }
    }

    fn remove(&self, claim: &str) {
        // A claim is deleted by a command, because one whose manifest is only missing keeps its volume.
        let file = self.node.testbed.crustlet.manifest(&claim_manifest(claim));
        if file.exists() {
            self.node
                .run_command(&["delete", &format!("pvc/{claim}"), "--wait=false"]);
        }
    }
}

fn claim_manifest(name: &str) -> String {
    format!("claim-{name}")
}

fn has_written(node: &AgentNode, pod: &Pod) -> bool {
    let Some(container) = node.running(pod) else {
        return false;
    };
    let result = node
        .testbed
        .cri()
        .exec(&container, &["/bin/test", "-e", "/tmp/done"]);
    result.is_ok_and(|it| it.exit_code == 0)
}

fn has_succeeded(node: &AgentNode, pod: &Pod) -> bool {
    let mut containers = node.containers(pod).into_iter();
    containers.any(|it| {
        let status = node.testbed.cri().status(&it.id);
        status.is_ok_and(|it| it.state() == ContainerState::ContainerExited && it.exit_code == 0)
    })
}

/// Asserts that all lines that a pod has written are on its volumes.
#[track_caller]
fn assert_lines(node: &AgentNode, pod: &Pod) {
    let container = node.running(pod).expect("a running container");
    let script = "for v in 0 1 2; do n=$(wc -l < /v$v/lines); busybox seq 1 $n | cmp - /v$v/lines; echo $n; done";
    let counts = node.testbed.cri().sh(&container, script);
    let counts: Vec<usize> = counts
        .lines()
        .map(|it| it.parse().expect("a number"))
        .collect();
    assert!(
        counts.len() == 3 && counts.iter().all(|it| *it >= LINES),
        "{counts:?}"
    );
}
