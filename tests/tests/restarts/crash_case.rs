//! A case in which crustlet is killed at a certain call.

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

use crate::scene::{Mounting, Scene, Storage, pod_with};

/// The call at which crustlet is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeldCall {
    NodeStageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeUnstageVolume,
    /// A call to the container runtime.
    Runtime(&'static str),
}

/// The change of the pod's manifest while crustlet does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ManifestChange {
    /// The manifest exists, without a deletion timestamp.
    Kept,
    /// The manifest has a deletion timestamp.
    Deleted,
    /// The manifest was removed.
    Forced,
}

/// A call, the moment, and the state that the next crustlet finds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CrashCase {
    pub(crate) call: HeldCall,
    pub(crate) moment: Moment,
    pub(crate) manifest_change: ManifestChange,
    pub(crate) mounting: Mounting,
}

impl HeldCall {
    /// Reports whether the call is only made for a pod that ends.
    fn is_teardown(self) -> bool {
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

impl fmt::Display for CrashCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (moment, manifest_change, mounting) =
            (self.moment, self.manifest_change, self.mounting);
        match self.call {
            HeldCall::Runtime(name) => {
                write!(f, "{name} {moment:?} {manifest_change:?} {mounting}")
            }
            call => write!(f, "{call:?} {moment:?} {manifest_change:?} {mounting}"),
        }
    }
}

impl CrashCase {
    /// Reports whether the call is one of the container runtime.
    pub(crate) fn is_runtime_call(&self) -> bool {
        matches!(self.call, HeldCall::Runtime(_))
    }

    /// Returns how often the container has to have started in the end: once, unless it was stopped and its pod is
    /// wanted again.
    fn expected_starts(&self) -> usize {
        let is_stopped = self.call.is_teardown()
            && (self.call, self.moment) != (HeldCall::Runtime("StopContainer"), Moment::Before);
        if is_stopped { 2 } else { 1 }
    }

    /// Kills crustlet while the call is held, and checks that the next crustlet recovers.
    pub(crate) fn check_killed_at(&self, scene: &Scene, storage: &Storage, name: &str) {
        let pod = pod_with(name, storage, self.mounting);
        scene.clear_requests();
        self.trigger(scene, &pod, || self.call.hold(scene, self.moment));
        self.call.wait_held(scene, self.moment);
        scene.crustlet.kill();
        self.recover(
            scene,
            storage,
            &pod,
            self.expected_starts()..=self.expected_starts(),
        );
    }

    /// Kills crustlet while the runtime carries out the call, at an unknown point.
    pub(crate) fn check_killed_during(&self, scene: &Scene, storage: &Storage, name: &str) {
        let HeldCall::Runtime(call) = self.call else {
            panic!("{self}");
        };
        let pod = pod_with(name, storage, self.mounting);
        scene.clear_requests();
        self.trigger(scene, &pod, || ());
        wait_until(call, WAIT_TIMEOUT, || scene.runtime.count(call) > 0);
        scene.crustlet.kill();
        self.recover(scene, storage, &pod, 1..=2);
    }

    /// Runs `first`, and then makes crustlet make the call.
    fn trigger(&self, scene: &Scene, pod: &Pod, first: impl FnOnce()) {
        if !self.call.is_teardown() {
            first();
            return scene.apply_pod(pod);
        }
        scene.run(pod);
        let _ = scene.sh(pod, &format!("echo {} > /data/kept; sync", pod.name()));
        first();
        match self.manifest_change {
            ManifestChange::Kept => scene.crustlet.remove(pod.name()),
            ManifestChange::Deleted | ManifestChange::Forced => scene.delete(pod),
        }
    }

    /// Changes the manifest while the call is held, without killing crustlet. The call in progress has to end first.
    pub(crate) fn check_delayed(&self, scene: &Scene, storage: &Storage, name: &str) {
        let pod = pod_with(name, storage, self.mounting);
        scene.clear_requests();
        self.trigger(scene, &pod, || self.call.hold(scene, self.moment));
        self.call.wait_held(scene, self.moment);
        self.change(scene, &pod);
        scene.wait_for_relist();
        scene.relay.clear_faults();
        scene.runtime.clear_faults();
        let mut expected_starts = 1..=1;
        if self.call.is_teardown() && self.manifest_change == ManifestChange::Kept {
            scene.crustlet.wait("the pod to be started again", || {
                scene.runtime.count("RunPodSandbox") == 2
            });
            expected_starts = 2..=2;
        }
        self.assert_recovered(scene, storage, &pod, expected_starts);
    }

    fn change(&self, scene: &Scene, pod: &Pod) {
        match self.manifest_change {
            ManifestChange::Kept => scene.apply_pod(pod),
            ManifestChange::Deleted => scene.delete(pod),
            ManifestChange::Forced => scene.crustlet.remove(pod.name()),
        }
    }

    fn recover(
        &self,
        scene: &Scene,
        storage: &Storage,
        pod: &Pod,
        expected_starts: RangeInclusive<usize>,
    ) {
        self.change(scene, pod);
        // By the time the new agent listens, the call of the old agent that was held back has ended.
        scene.start(&[]);
        scene.relay.clear_faults();
        scene.runtime.clear_faults();
        if self.manifest_change == ManifestChange::Kept
            && expected_starts.start() < expected_starts.end()
        {
            // A container that was being stopped may seem to keep running.
            scene.wait_for_relist();
        }
        self.assert_recovered(scene, storage, pod, expected_starts);
    }

    fn assert_recovered(
        &self,
        scene: &Scene,
        storage: &Storage,
        pod: &Pod,
        expected_starts: RangeInclusive<usize>,
    ) {
        if self.manifest_change == ManifestChange::Kept {
            scene.wait_running(pod);
            scene.assert_mounted(pod, storage, self.mounting);
            if self.call.is_teardown() {
                assert_eq!(scene.sh(pod, "cat /data/kept"), pod.name());
            }
            let start_count = scene.start_count(pod);
            assert!(
                expected_starts.contains(&start_count),
                "the container has started {start_count} times"
            );
            scene.end(pod);
        }
        scene.assert_nothing_left(&[storage]);
        assert!(!scene.crustlet.manifest(pod.name()).exists());
        scene.assert_unpublished(self.mounting);
    }
}
