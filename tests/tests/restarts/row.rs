//! crustlet is killed at some call.

use std::fmt;
use std::ops::RangeInclusive;

use crust_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::wait_until;

use crate::scene::{How, Scene, Storage, pod_with};

/// Who is asked, and what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    NodeStageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeUnstageVolume,
    /// The container runtime.
    Runtime(&'static str),
}

/// What becomes of the pod while crustlet isn't there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Its manifest is there, and says nothing of an end.
    Kept,
    /// Its manifest says that it is to end.
    Deleted,
    /// Its manifest is gone.
    Forced,
}

/// A moment, and what comes after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) call: Call,
    pub(crate) moment: Moment,
    pub(crate) fate: Fate,
    pub(crate) how: How,
}

impl Call {
    /// Whether a pod that ends comes to it, and no other.
    fn is_of_an_end(self) -> bool {
        match self {
            Self::NodeStageVolume | Self::NodePublishVolume => false,
            Self::NodeUnpublishVolume | Self::NodeUnstageVolume => true,
            Self::Runtime(name) => name.starts_with("Stop") || name.starts_with("Remove"),
        }
    }

    fn hold(self, scene: &Scene, moment: Moment) {
        let relay = &scene.relay;
        match self {
            Self::NodeStageVolume => relay.hold::<NodeStageVolumeRequest>(moment),
            Self::NodePublishVolume => relay.hold::<NodePublishVolumeRequest>(moment),
            Self::NodeUnpublishVolume => relay.hold::<NodeUnpublishVolumeRequest>(moment),
            Self::NodeUnstageVolume => relay.hold::<NodeUnstageVolumeRequest>(moment),
            Self::Runtime(name) => scene.runtime.hold(name, moment),
        }
    }

    #[track_caller]
    fn wait_held(self, scene: &Scene, moment: Moment) {
        match self {
            Self::Runtime(_) => scene.runtime.wait_held(),
            _ => scene.relay.wait_held(moment),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (moment, fate, how) = (self.moment, self.fate, self.how);
        match self.call {
            Call::Runtime(name) => write!(f, "{name} {moment:?} {fate:?} {how}"),
            call => write!(f, "{call:?} {moment:?} {fate:?} {how}"),
        }
    }
}

impl Row {
    /// Whether the container runtime is asked.
    pub(crate) fn is_the_runtimes(&self) -> bool {
        matches!(self.call, Call::Runtime(_))
    }

    /// How often the container has begun in the end: once, unless it was stopped and its pod is wanted again.
    fn begins(&self) -> usize {
        let is_stopped = self.call.is_of_an_end()
            && (self.call, self.moment) != (Call::Runtime("StopContainer"), Moment::Before);
        if is_stopped { 2 } else { 1 }
    }

    /// crustlet is killed there, and the next one does what is right.
    pub(crate) fn check(&self, scene: &Scene, storage: &Storage, name: &str) {
        let pod = pod_with(name, storage, self.how);
        scene.clear_requests();
        self.bring_about(scene, &pod, || self.call.hold(scene, self.moment));
        self.call.wait_held(scene, self.moment);
        scene.crustlet.kill();
        self.go_on(scene, storage, &pod, self.begins()..=self.begins());
    }

    /// The same, while it is done: nobody knows how far that comes.
    pub(crate) fn check_midst(&self, scene: &Scene, storage: &Storage, name: &str) {
        let Call::Runtime(call) = self.call else {
            panic!("{self}");
        };
        let pod = pod_with(name, storage, self.how);
        scene.clear_requests();
        self.bring_about(scene, &pod, || ());
        wait_until(call, WAIT_TIMEOUT, || scene.runtime.count(call) > 0);
        scene.crustlet.kill();
        self.go_on(scene, storage, &pod, 1..=2);
    }

    /// Has the call made; `first` comes before.
    fn bring_about(&self, scene: &Scene, pod: &Pod, first: impl FnOnce()) {
        if !self.call.is_of_an_end() {
            first();
            return scene.apply_pod(pod);
        }
        scene.run(pod);
        let _ = scene.sh(pod, &format!("echo {} > /data/kept; sync", pod.name()));
        first();
        match self.fate {
            Fate::Kept => scene.crustlet.remove(pod.name()),
            Fate::Deleted | Fate::Forced => scene.delete(pod),
        }
    }

    /// The same, and nobody is killed: what is under way meanwhile ends first.
    pub(crate) fn check_unkilled(&self, scene: &Scene, storage: &Storage, name: &str) {
        let pod = pod_with(name, storage, self.how);
        scene.clear_requests();
        self.bring_about(scene, &pod, || self.call.hold(scene, self.moment));
        self.call.wait_held(scene, self.moment);
        self.change(scene, &pod);
        scene.wait_look();
        scene.relay.clear_faults();
        scene.runtime.clear_faults();
        let mut begins = 1..=1;
        if self.call.is_of_an_end() && self.fate == Fate::Kept {
            scene.crustlet.wait("it to begin anew", || {
                scene.runtime.count("RunPodSandbox") == 2
            });
            begins = 2..=2;
        }
        self.assert_right(scene, storage, &pod, begins);
    }

    fn change(&self, scene: &Scene, pod: &Pod) {
        match self.fate {
            Fate::Kept => scene.apply_pod(pod),
            Fate::Deleted => scene.delete(pod),
            Fate::Forced => scene.crustlet.remove(pod.name()),
        }
    }

    fn go_on(&self, scene: &Scene, storage: &Storage, pod: &Pod, begins: RangeInclusive<usize>) {
        self.change(scene, pod);
        // Whoever was held up has left when it listens.
        scene.start(&[]);
        scene.relay.clear_faults();
        scene.runtime.clear_faults();
        if self.fate == Fate::Kept && begins.start() < begins.end() {
            // What was being stopped may look as if it ran on.
            scene.wait_look();
        }
        self.assert_right(scene, storage, pod, begins);
    }

    fn assert_right(
        &self,
        scene: &Scene,
        storage: &Storage,
        pod: &Pod,
        begins: RangeInclusive<usize>,
    ) {
        if self.fate == Fate::Kept {
            scene.wait_runs(pod);
            scene.assert_there(pod, storage, self.how);
            if self.call.is_of_an_end() {
                assert_eq!(scene.sh(pod, "cat /data/kept"), pod.name());
            }
            let begun = scene.begun(pod);
            assert!(begins.contains(&begun), "it has begun {begun} times");
            scene.end(pod);
        }
        scene.assert_nothing_left(&[storage]);
        assert!(!scene.crustlet.manifest(pod.name()).exists());
        scene.assert_unpublished(self.how);
    }
}
