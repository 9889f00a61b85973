//! Pairs of pods one after the other.

use std::sync::atomic::Ordering;

use runcrust_tests::cri::runtime_v1::ContainerState;
use runcrust_tests::holds_within;
use runcrust_tests::manifests::{Claim, Pod};
use runcrust_tests::random::Random;

use super::pair::{LINES, Pair, Wish};
use super::site::{PATIENCE, Site};

/// Where they live.
pub(super) struct Lane<'s> {
    site: &'s Site,
    index: usize,
    lived: usize,
    random: Random,
}

/// How a pod is asked to go.
#[derive(Debug, Clone, Copy)]
enum Farewell {
    /// Its manifest is removed.
    Removed,
    /// `metadata.deletionTimestamp`
    Deleted,
    /// It is forgotten, and ended afterwards.
    Forced,
}

const FAREWELLS: [Farewell; 5] = [
    Farewell::Removed,
    Farewell::Removed,
    Farewell::Deleted,
    Farewell::Deleted,
    Farewell::Forced,
];

impl<'s> Lane<'s> {
    pub(super) fn new(site: &'s Site, index: usize, random: Random) -> Self {
        Self {
            site,
            index,
            lived: 0,
            random,
        }
    }

    /// A pair lives.
    pub(super) fn live(&mut self) {
        let pair = self.begun();
        self.finish(pair);
    }

    /// The first of a pair has written what it had to.
    pub(super) fn begun(&mut self) -> Pair {
        let pair = Pair::new(&format!("l{}-{}", self.index, self.lived), &mut self.random);
        self.lived += 1;
        self.write(&pair.shared);
        self.begin(&pair.wishes[0]);
        self.wait_done(&pair.wishes[0]);
        pair
    }

    /// The second comes, and both go.
    pub(super) fn finish(&mut self, pair: Pair) {
        let Pair { shared, wishes } = pair;
        let [one, two] = &wishes;
        self.begin(two);
        if !one.ends {
            let sandboxes = self.site.all_sandboxes(&two.pod);
            assert_eq!(
                sandboxes,
                Vec::<String>::new(),
                "the volume is {}'s",
                one.pod.name()
            );
        }
        self.end(one);
        self.wait_done(two);
        self.end(two);
        self.remove(&shared.0);
    }

    fn write(&self, (name, claim): &(String, Claim)) {
        self.site.bed.apply(&of_claim(name), &[claim]);
    }

    /// Both together, or the pod first.
    fn begin(&mut self, wish: &Wish) {
        let bed = &self.site.bed;
        let is_first = self.random.once_in(2);
        if is_first {
            bed.apply_pod(&wish.pod);
        }
        wish.claims.iter().for_each(|claim| self.write(claim));
        if !is_first {
            bed.apply_pod(&wish.pod);
        }
    }

    /// Waits until a pod has written to all of its volumes.
    fn wait_done(&self, wish: &Wish) {
        let Wish { pod, ends, .. } = wish;
        let site = self.site;
        let is_done = holds_within(PATIENCE, || {
            if *ends {
                has_succeeded(site, pod)
            } else {
                has_written(site, pod)
            }
        });
        site.progress.fetch_add(1, Ordering::Relaxed);
        let name = pod.name();
        assert!(
            is_done,
            "pod {name} isn't done: {:?}\n{}",
            site.containers(pod),
            site.told()
        );
    }

    /// A pod ends, and its claims before or after it.
    fn end(&mut self, wish: &Wish) {
        let Wish { pod, claims, .. } = wish;
        let site = self.site;
        if !wish.ends {
            assert_lines(site, pod);
        }
        let mut late = Vec::new();
        for (name, _) in claims {
            if self.random.once_in(2) {
                site.ask(&["delete", &format!("pvc/{name}"), "--wait=false"]);
            } else {
                late.push(name);
            }
        }
        let object = format!("pod/{}", pod.name());
        match self.random.pick(&FAREWELLS) {
            Farewell::Removed => site.bed.crustlet.remove(pod.name()),
            Farewell::Deleted => site.ask(&["delete", &object, "--wait=false"]),
            Farewell::Forced => site.ask(&["delete", &object, "--wait=false", "--force"]),
        }
        site.wait_gone(pod);
        for name in late {
            self.remove(name);
        }
    }

    fn remove(&self, claim: &str) {
        // One whose manifest is only away keeps its volume.
        let file = self.site.bed.crustlet.manifest(&of_claim(claim));
        if file.exists() {
            self.site
                .ask(&["delete", &format!("pvc/{claim}"), "--wait=false"]);
        }
    }
}

fn of_claim(name: &str) -> String {
    format!("claim-{name}")
}

fn has_written(site: &Site, pod: &Pod) -> bool {
    let Some(container) = site.running(pod) else {
        return false;
    };
    let looked = site
        .bed
        .cri()
        .exec(&container, &["/bin/test", "-e", "/tmp/done"]);
    looked.is_ok_and(|it| it.exit_code == 0)
}

fn has_succeeded(site: &Site, pod: &Pod) -> bool {
    let mut containers = site.containers(pod).into_iter();
    containers.any(|it| {
        let status = site.bed.cri().status(&it.id);
        status.is_ok_and(|it| it.state() == ContainerState::ContainerExited && it.exit_code == 0)
    })
}

/// All that it has written is there, and whole.
#[track_caller]
fn assert_lines(site: &Site, pod: &Pod) {
    let container = site.running(pod).expect("it runs until it is ended");
    let script = "for v in 0 1 2; do n=$(wc -l < /v$v/lines); busybox seq 1 $n | cmp - /v$v/lines; echo $n; done";
    let counts = site.bed.cri().sh(&container, script);
    let counts: Vec<usize> = counts
        .lines()
        .map(|it| it.parse().expect("a number"))
        .collect();
    assert!(
        counts.len() == 3 && counts.iter().all(|it| *it >= LINES),
        "{counts:?}"
    );
}
