//! A pod that runs, whoever is restarted beside it.

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::manifests::Pod;
use runcrust_tests::on_each_delegate;

use crate::scene::{Scene, Storage, pod_with};

/// Which processes it is.
#[derive(Debug, PartialEq)]
struct Seen {
    sandboxes: Vec<String>,
    container: String,
    begun: usize,
}

impl Seen {
    #[track_caller]
    fn of(scene: &Scene, pod: &Pod) -> Self {
        Self {
            sandboxes: scene.sandboxes(pod),
            container: scene.container(pod),
            begun: scene.begun(pod),
        }
    }
}

/// A pod with one volume of each kind, each whole and in part.
fn pod_with_both(deferred: &Storage, plain: &Storage) -> Pod {
    let plain = &plain.claim;
    pod_with("web", deferred, true)
        .mount_as(&deferred.claim, "/data-part", "subPath: part")
        .claim(plain)
        .mount(plain, "/plain")
        .mount_as(plain, "/plain-part", "subPath: part")
}

fn published(scene: &Scene) -> Vec<NodePublishVolumeRequest> {
    let mut requests = scene.relay.heard::<NodePublishVolumeRequest>();
    requests.sort_by(|one, other| one.volume_id.cmp(&other.volume_id));
    requests
}

const WRITE: &str =
    "for place in data data-part plain plain-part; do echo $place >> /$place/kept; done; sync";
const READ: &str = "cat /data/kept /data/part/kept /plain/kept /plain/part/kept";

on_each_delegate! {
    fn a_pod_that_runs_is_left_alone(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (one, two) = (scene.claim("one"), scene.claim("two"));
        let pod = pod_with_both(&one, &two);
        scene.run(&pod);
        scene.sh(&pod, WRITE);
        let (seen, asked) = (Seen::of(&scene, &pod), published(&scene));
        let read = scene.sh(&pod, READ);
        assert_eq!(read, "data\ndata-part\nplain\nplain-part");
        for _ in 0..3 {
            scene.forget();
            scene.restart();
            scene.wait_measured(&[&one, &two]);
            scene.wait_looks();
            let mut steps = scene.relay.steps();
            steps.sort_unstable();
            let [stage, publish] = ["NodeStageVolumeRequest", "NodePublishVolumeRequest"];
            assert_eq!(steps, [publish, publish, stage, stage], "each is asked for once more");
            assert_eq!(published(&scene), asked, "in the same words");
            assert_eq!(scene.runtime.steps(), Vec::<String>::new());
            assert_eq!(Seen::of(&scene, &pod), seen);
            assert_eq!(scene.sh(&pod, READ), read);
            scene.assert_there(&pod, &one, true);
        }
        scene.end(&pod);
        scene.assert_nothing_left(&[&one, &two]);
    }

    /// Its volumes are uncertain as long as nobody can be asked.
    fn a_container_that_ends_meanwhile_begins_again_when_its_volumes_are_certain(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (name, is_deferred) in [("deferred", true), ("plain", false)] {
            let storage = scene.claim(name);
            let pod = pod_with(name, &storage, is_deferred);
            scene.run(&pod);
            let seen = Seen::of(&scene, &pod);
            scene.csi.kill();
            scene.crustlet.kill();
            scene.cri().stop(&seen.container).expect("StopContainer");
            scene.forget();
            scene.start(&[]);
            scene.wait_looks();
            assert_eq!(scene.runtime.steps(), Vec::<String>::new());
            scene.csi.spawn(scene.csi.command(&[]));
            scene.wait_runs(&pod);
            assert_eq!(scene.sandboxes(&pod), seen.sandboxes);
            assert_eq!(scene.begun(&pod), 2);
            scene.assert_nothing_taken_back();
            scene.end(&pod);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(is_deferred);
        }
    }

    /// All that a volume's end needs stands beside it.
    fn what_a_volume_is_may_be_forgotten_while_its_pod_runs(delegate: Delegate) {
        let scene = Scene::new(delegate);
        for (name, is_deferred) in [("deferred", true), ("plain", false)] {
            let storage = scene.claim(name);
            let pod = pod_with(name, &storage, is_deferred);
            scene.run(&pod);
            let seen = Seen::of(&scene, &pod);
            scene.forget();
            scene.crustlet.remove(&storage.pv);
            scene.wait_looks();
            scene.restart();
            scene.wait_looks();
            assert_eq!(scene.relay.steps(), Vec::<&str>::new());
            assert_eq!(scene.runtime.steps(), Vec::<String>::new());
            assert_eq!(Seen::of(&scene, &pod), seen);
            scene.end(&pod);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(is_deferred);
        }
    }

    fn a_pod_that_has_ended_gets_no_volume_again(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = Pod::new("once").script("true").restart_policy("Never");
        let pod = pod.deferred("data").mount("data", "/data");
        scene.begin(&pod);
        scene.crustlet.wait_pod("once", "Succeeded");
        scene.crustlet.wait("its volume to go", || scene.crustlet.volume(&storage.volume.id).is_none());
        scene.forget();
        scene.runtime.hold("ListPodSandbox", runcrust_tests::csi::Moment::Before);
        scene.restart();
        scene.runtime.wait_held();
        scene.runtime.heal();
        scene.crustlet.wait_pod("once", "Succeeded");
        scene.wait_looks();
        assert_eq!(scene.relay.steps(), Vec::<&str>::new());
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
    }

    fn a_container_runtime_that_is_restarted_meanwhile_is_waited_for(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (one, two) = (scene.claim("one"), scene.claim("two"));
        let pod = pod_with_both(&one, &two);
        scene.run(&pod);
        let seen = Seen::of(&scene, &pod);
        scene.crustlet.kill();
        scene.containerd.kill_daemon();
        scene.forget();
        scene.start(&[]);
        scene.wait_looks();
        scene.assert_nothing_taken_back();
        scene.containerd.restart();
        scene.wait_measured(&[&one, &two]);
        scene.wait_looks();
        scene.assert_nothing_taken_back();
        assert_eq!(scene.runtime.steps(), Vec::<String>::new());
        assert_eq!(Seen::of(&scene, &pod), seen);
        scene.end(&pod);
        scene.assert_nothing_left(&[&one, &two]);
    }

    fn a_crust_ops_that_is_gone_holds_a_deferred_volume_until_it_is_back(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = pod_with("web", &storage, true);
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
        scene.assert_unpublished(true);
    }
}
