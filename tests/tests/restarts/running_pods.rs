//! Running pods while crustlet and other daemons are restarted.

use std::fs;
use std::path::Path;

use crust_proto::csi::v1::{
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};
use nix::mount::{MntFlags, umount2};
use runcrust_tests::manifests::Pod;
use runcrust_tests::{host, on_each_delegate, process};

use crate::scene::{Mounting, Scene, Storage, pod_with};

/// The sandboxes and the container of a pod, and how often the container has started.
#[derive(Debug, PartialEq)]
struct RunningState {
    sandboxes: Vec<String>,
    container: String,
    start_count: usize,
}

impl RunningState {
    #[track_caller]
    fn read(scene: &Scene, pod: &Pod) -> Self {
        Self {
            sandboxes: scene.sandboxes(pod),
            container: scene.container(pod),
            start_count: scene.start_count(pod),
        }
    }
}

/// A pod with a deferred and a plain volume, each mounted as a whole and with a subPath.
fn pod_with_both(deferred: &Storage, plain: &Storage) -> Pod {
    let plain = &plain.claim;
    pod_with("web", deferred, Mounting::Deferred)
        .mount_as(&deferred.claim, "/data-part", "subPath: part")
        .claim(plain)
        .mount(plain, "/plain")
        .mount_as(plain, "/plain-part", "subPath: part")
}

fn published(scene: &Scene) -> Vec<NodePublishVolumeRequest> {
    let mut requests = scene.relay.requests::<NodePublishVolumeRequest>();
    requests.sort_by(|one, other| one.volume_id.cmp(&other.volume_id));
    requests
}

/// Simulates a boot for everything except crustlet: ends all processes, removes mounts and files in memory, and starts
/// the daemons again.
#[track_caller]
fn boot(scene: &Scene) {
    let cri = scene.cri();
    let sandboxes = cri.pods().expect("ListPodSandbox");
    let containers = cri.containers("").expect("ListContainers");
    let mut pids: Vec<i32> = sandboxes
        .iter()
        .map(|it| cri.pod_pid(&it.id).expect("a pid"))
        .collect();
    pids.extend(containers.iter().map(|it| cri.pid(&it.id).expect("a pid")));
    let shims = scene.containerd.shims();
    scene.containerd.kill_daemon();
    scene.ops.kill();
    for pid in shims.into_iter().chain(pids) {
        process::kill_and_wait(pid);
    }
    let in_memory = [
        scene.node.dir().join("c/state"),
        scene.node.handler().crust_root(),
        scene.node.handler().state_dir(),
    ];
    for directory in &in_memory {
        for mount in host::mounts_below(directory).iter().rev() {
            umount2(mount, MntFlags::MNT_DETACH).expect("umount2");
        }
        fs::remove_dir_all(directory).expect("a directory in memory");
    }
    scene.csi.simulate_reboot();
    scene.ops.spawn(scene.ops.command());
    scene.csi.spawn(scene.csi.command(&[]));
    scene.containerd.restart();
}

const WRITE: &str =
    "for place in data data-part plain plain-part; do echo $place >> /$place/kept; done; sync";
const READ: &str = "cat /data/kept /data/part/kept /plain/kept /plain/part/kept";

on_each_delegate! {
    fn a_running_pod_is_left_alone(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (one, two) = (scene.claim("one"), scene.claim("two"));
        let pod = pod_with_both(&one, &two);
        scene.run(&pod);
        scene.sh(&pod, WRITE);
        let (state_before, requests_before) = (RunningState::read(&scene, &pod), published(&scene));
        let read = scene.sh(&pod, READ);
        assert_eq!(read, "data\ndata-part\nplain\nplain-part");
        for _ in 0..2 {
            scene.clear_requests();
            scene.restart();
            scene.wait_for_stats(&[&one, &two]);
            scene.wait_for_relist();
            let mut steps = scene.relay.steps();
            steps.sort_unstable();
            let [stage, publish] = ["NodeStageVolumeRequest", "NodePublishVolumeRequest"];
            assert_eq!(steps, [publish, publish, stage, stage], "each call is repeated once");
            assert_eq!(published(&scene), requests_before, "the requests are the same");
            assert_eq!(scene.runtime.steps(), Vec::<String>::new());
            assert_eq!(RunningState::read(&scene, &pod), state_before);
            assert_eq!(scene.sh(&pod, READ), read);
            scene.assert_mounted(&pod, &one, Mounting::Deferred);
        }
        scene.end(&pod);
        scene.assert_nothing_left(&[&one, &two]);
    }

    /// The pod's volumes are uncertain as long as the driver does not run.
    fn an_ended_container_restarts_once_its_volumes_are_certain(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (name, mounting) in [("deferred", Mounting::Deferred), ("plain", Mounting::Plain)] {
            let storage = scene.claim(name);
            let pod = pod_with(name, &storage, mounting);
            scene.run(&pod);
            let state_before = RunningState::read(&scene, &pod);
            scene.csi.kill();
            scene.crustlet.kill();
            scene.cri().stop(&state_before.container).expect("StopContainer");
            scene.clear_requests();
            scene.start(&[]);
            scene.wait_for_relist();
            assert_eq!(scene.runtime.steps(), Vec::<String>::new());
            scene.csi.spawn(scene.csi.command(&[]));
            scene.wait_running(&pod);
            assert_eq!(scene.sandboxes(&pod), state_before.sandboxes);
            assert_eq!(scene.start_count(&pod), 2);
            scene.assert_nothing_removed();
            scene.end(&pod);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(mounting);
        }
    }

    /// Everything that is needed to remove a volume is on record beside it.
    fn a_volumes_manifest_may_be_removed_while_its_pod_runs(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (name, mounting) in [("deferred", Mounting::Deferred), ("plain", Mounting::Plain)] {
            let storage = scene.claim(name);
            let pod = pod_with(name, &storage, mounting);
            scene.run(&pod);
            let state_before = RunningState::read(&scene, &pod);
            scene.clear_requests();
            scene.crustlet.remove(&storage.pv);
            scene.wait_for_relist();
            scene.restart();
            scene.wait_for_relist();
            assert_eq!(scene.relay.steps(), Vec::<&str>::new());
            assert_eq!(scene.runtime.steps(), Vec::<String>::new());
            assert_eq!(RunningState::read(&scene, &pod), state_before);
            scene.end(&pod);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(mounting);
        }
    }

    fn a_pod_that_has_ended_gets_no_volume_again(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = Pod::new("once").script("true").restart_policy("Never");
        let pod = pod.deferred("data").mount("data", "/data");
        scene.apply_pod(&pod);
        scene.crustlet.wait_pod("once", "Succeeded");
        scene.crustlet.wait("its volume to be unstaged", || scene.crustlet.volume(&storage.volume.id).is_none());
        scene.clear_requests();
        scene.runtime.hold("ListPodSandbox", runcrust_tests::csi::Moment::Before);
        scene.restart();
        scene.runtime.wait_held();
        scene.runtime.clear_faults();
        scene.crustlet.wait_pod("once", "Succeeded");
        scene.wait_for_relist();
        assert_eq!(scene.relay.steps(), Vec::<&str>::new());
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }

    fn a_container_runtime_being_restarted_is_awaited(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (one, two) = (scene.claim("one"), scene.claim("two"));
        let pod = pod_with_both(&one, &two);
        scene.run(&pod);
        let state_before = RunningState::read(&scene, &pod);
        scene.crustlet.kill();
        scene.containerd.kill_daemon();
        scene.clear_requests();
        scene.start(&[]);
        scene.wait_for_relist();
        scene.assert_nothing_removed();
        scene.containerd.restart();
        scene.wait_for_stats(&[&one, &two]);
        scene.wait_for_relist();
        scene.assert_nothing_removed();
        assert_eq!(scene.runtime.steps(), Vec::<String>::new());
        assert_eq!(RunningState::read(&scene, &pod), state_before);
        scene.end(&pod);
        scene.assert_nothing_left(&[&one, &two]);
    }

    fn a_deferred_volume_waits_for_crust_ops_to_come_back(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = pod_with("web", &storage, Mounting::Deferred);
        scene.run(&pod);
        scene.ops.kill();
        scene.crustlet.kill();
        scene.crustlet.remove("web");
        scene.start(&[]);
        scene.crustlet.wait_volume(&storage.volume.id, "held", |volume| {
            let message = &volume["status"]["mounts"][0]["message"];
            message.as_str().is_some_and(|it| it.contains("UnmountVolume.TearDown"))
        });
        assert!(scene.mount_info(&pod, &storage.pv).is_some());
        scene.restart();
        scene.ops.spawn(scene.ops.command());
        scene.assert_nothing_left(&[&storage]);
        scene.assert_unpublished(Mounting::Deferred);
    }

    fn the_end_of_one_pod_leaves_the_volume_of_another(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for mounting in [Mounting::Deferred, Mounting::Plain] {
            let [stays, goes] = ["stays", "goes"].map(|name| pod_with(&format!("{name}-{mounting}"), &storage, mounting));
            scene.run(&stays);
            scene.run(&goes);
            let state_before = RunningState::read(&scene, &stays);
            scene.crustlet.kill();
            scene.crustlet.remove(goes.name());
            scene.clear_requests();
            scene.start(&[]);
            scene.crustlet.wait_gone(&goes.uid());
            scene.wait_for_stats(&[&storage]);
            let unpublished: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
            let target = scene.target(&goes, &storage.pv);
            assert!(unpublished.iter().all(|it| Path::new(&it.target_path) == target), "{unpublished:?}");
            assert_eq!(scene.relay.requests::<NodeUnstageVolumeRequest>(), []);
            assert_eq!(RunningState::read(&scene, &stays), state_before);
            scene.end(&stays);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(mounting);
        }
    }

    /// KEP-2485. The previous pod is known from the records on the disk.
    fn a_single_pod_volume_passes_on_when_unpublished(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim_with("data", |volume| volume.mode("ReadWriteOncePod"));
        let (first, next) = (pod_with("z-first", &storage, Mounting::Deferred), pod_with("a-next", &storage, Mounting::Deferred));
        scene.run(&first);
        scene.crustlet.kill();
        scene.apply_pod(&next);
        scene.start(&[]);
        scene.crustlet.wait_event_containing("pod/a-next", "FailedMount", "already in use by another pod: default/z-first");
        scene.crustlet.kill();
        scene.crustlet.remove("z-first");
        scene.clear_requests();
        scene.start(&[]);
        scene.wait_running(&next);
        let steps = scene.relay.steps();
        assert_eq!(steps.first(), Some(&"NodeUnpublishVolumeRequest"), "{steps:?}");
        assert_eq!(scene.sh(&next, "cat /data/begun-by-z-first"), "begun");
        scene.end(&next);
        scene.assert_nothing_left(&[&storage]);
    }

    /// A boot removes mounts, loop devices and files in memory, and keeps the records on the disk.
    fn after_a_boot_pods_restart_and_leftovers_are_removed(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let mountings = [Mounting::Deferred, Mounting::Plain];
        let storages = ["one", "two", "three", "four"].map(|name| scene.claim(name));
        let kept = [0, 1].map(|at| pod_with(&format!("kept-{}", mountings[at]), &storages[at], mountings[at]));
        let gone = [0, 1].map(|at| pod_with(&format!("gone-{}", mountings[at]), &storages[at + 2], mountings[at]));
        for pod in kept.iter().chain(&gone) {
            scene.run(pod);
        }
        scene.crustlet.kill();
        for pod in &gone {
            scene.crustlet.remove(pod.name());
        }
        boot(&scene);
        scene.clear_requests();
        scene.start(&[]);
        for (pod, (storage, mounting)) in kept.iter().zip(storages.iter().zip(mountings)) {
            scene.wait_running(pod);
            scene.assert_mounted(pod, storage, mounting);
            assert_eq!(scene.start_count(pod), 2);
        }
        for pod in &gone {
            scene.crustlet.wait_gone(&pod.uid());
        }
        let deferred = scene.relay.requests::<NodeUnpublishVolumeRequest>();
        let mut deferred: Vec<bool> = deferred.iter().map(|it| it.defer_fs_ops).collect();
        deferred.sort_unstable();
        assert_eq!(deferred, [false, true]);
        for pod in &kept {
            scene.end(pod);
        }
        scene.assert_nothing_left(&storages.each_ref());
    }
}
