//! What is written of a pod's things while it runs.

use std::path::Path;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::manifests::{Pod, RuntimeClass};
use runcrust_tests::{Setup, on_each_delegate};

use crate::scene::{ALL, OLDER, Scene, Storage, microvm, pod_with, policy};

/// Whether a pod has ever written on a volume that nobody uses now.
#[track_caller]
fn was_written(scene: &Scene, storage: &Storage) -> bool {
    scene.look(storage, |root: &Path| root.join("file").exists())
}

on_each_delegate! {
    /// A `PersistentVolume`'s source doesn't change, and here nobody refuses a manifest in which it does.
    fn another_volume_under_a_pod_is_not_mounted_over_the_first(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, other) = (scene.claim("data", "ext4"), scene.claim("other", "ext4"));
        let (logs, another) = (scene.claim("logs", "ext4"), scene.claim("another", "ext4"));
        let pod = pod_with("web", "data", true).claim("logs").mount("logs", "/logs");
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file; echo kept > /logs/file");
        scene.relay.clear_requests();
        for (storage, by) in [(&data, &other), (&logs, &another)] {
            let before = std::fs::read_to_string(scene.crustlet.manifest(&storage.pv)).unwrap();
            let after = before.replace(&storage.volume.id, &by.volume.id);
            assert_ne!(before, after);
            scene.crustlet.write(&storage.pv, &after);
        }
        scene.crustlet.wait_event("pod/web", "FailedMount");
        // Neither of the agents that come has another mind.
        scene.crustlet.restart(&[]);
        let told = scene.crustlet.wait_event("pod/web", "FailedMount");
        assert!(told.contains("the directory is used by volume "), "{told:?}");
        assert_eq!(scene.sh(&pod, "cat /data/file /logs/file"), "kept\nkept");
        assert_eq!(scene.relay.requests::<NodePublishVolumeRequest>(), []);
        scene.assert_deferred(&pod, &data);
        scene.assert_plain(&pod, &logs);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs, &other, &another]);
        let written = [&data, &logs, &other, &another].map(|it| was_written(&scene, it));
        assert_eq!(written, [true, true, false, false]);
    }

    /// What a pod's processes have is known by what it was when it began.
    fn another_pod_by_its_name_while_nobody_looks_changes_nothing(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, other) = (scene.claim("data", "ext4"), scene.claim("other", "ext4"));
        let pod = pod_with("web", "data", true);
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file; sync");
        scene.crustlet.kill();
        scene.relay.clear_requests();
        let changed = microvm("web").fs_group(4242).claim("other").mount("other", "/data");
        scene.apply_pod(&changed);
        scene.crustlet.spawn(scene.crustlet.command(&[]));
        scene.crustlet.wait_event("pod/web", "FailedUpdate");
        scene.kill_container(&pod);
        assert_eq!(scene.sh(&pod, "cat /data/file; stat -c %g /data"), "kept\n0");
        scene.assert_deferred(&pod, &data);
        let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert!(published.iter().all(|it| it.volume_id == data.volume.id), "{published:?}");
        scene.end(&pod);
        // Written when nothing is left of the other it is another pod.
        scene.run(&changed);
        assert_eq!(scene.sh(&changed, "stat -c %g /data"), "4242");
        scene.assert_plain(&changed, &other);
        scene.end(&changed);
        scene.assert_nothing_left(&[&data, &other]);
    }

    /// Its directory is there still, and its volume is published as it was: by the container runtime, which nobody asks
    /// any more.
    fn a_pod_that_begins_anew_is_what_is_written_by_then(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", true);
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file; sync");
        scene.crustlet.kill();
        for sandbox in scene.sandboxes(&pod) {
            scene.cri().stop_pod(&sandbox).unwrap();
            scene.cri().remove_pod(&sandbox).unwrap();
        }
        let plain = Pod::new("web").class("plain").claim("data").mount("data", "/data");
        scene.apply("plain", &[&RuntimeClass::new("plain", "plain")]);
        scene.apply_pod(&plain);
        scene.crustlet.spawn(scene.crustlet.command(&[]));
        scene.crustlet.wait("it to run", || scene.running(&plain).len() == 1);
        assert_eq!(scene.sh(&plain, "cat /data/file"), "kept");
        scene.assert_plain(&plain, &data);
        scene.end(&plain);
        scene.assert_nothing_left(&[&data]);
    }

    /// KEP-2857, story 4, where the policy comes before the driver can.
    fn a_policy_that_comes_later_is_not_for_pods_that_run(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(None)), driver: &OLDER, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", false);
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file");
        scene.change_policy(&policy(Some(&ALL)));
        scene.kill_container(&pod);
        assert_eq!(scene.sh(&pod, "cat /data/file"), "kept");
        scene.assert_plain(&pod, &data);
        let shown = scene.crustlet.pod("web");
        let claimed = &shown["spec"]["volumes"][0]["persistentVolumeClaim"];
        assert_ne!(claimed["deferFSMount"], true, "{shown}");
        let events = scene.crustlet.events().into_iter();
        let failed: Vec<_> = events.filter(|it| it.reason == "FailedMount").collect();
        assert!(failed.is_empty(), "{failed:?}");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// The container runtime would make a directory for the second, on the node's disk.
    fn two_claims_of_one_storage_are_no_pods_two_volumes(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let before = std::fs::read_to_string(scene.crustlet.manifest(&data.pv)).unwrap();
        let twin = before.replace("pv-data", "pv-twin").replace("name: data", "name: twin");
        assert!(twin.contains("name: twin"), "{twin}");
        scene.crustlet.write("twin", &twin);
        let pod = pod_with("web", "data", false).claim("twin").mount("twin", "/twin");
        scene.apply_pod(&pod);
        let told = scene.crustlet.wait_event_containing("pod/web", "FailedMount", "are the same storage");
        assert!(told.contains("pv-data") && told.contains("pv-twin"), "{told}");
        assert_eq!(scene.sandboxes(&pod), Vec::<String>::new());
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// Directories have the uid alone.
    fn two_pods_by_one_uid_do_not_share_their_places(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let first = pod_with("web", "data", true);
        scene.run(&first);
        let containers = scene.running(&first);
        let second = microvm("second").script("exec sleep 2147483647").to_string();
        let second = second.replace(&microvm("second").uid(), &first.uid());
        assert!(second.contains(&first.uid()));
        scene.crustlet.write("second", &second);
        let told = scene.crustlet.wait_event("pod/second", "FailedValidation");
        assert!(told.contains("is in use by pod default/web; "), "{told}");
        assert_eq!(scene.running(&first), containers);
        scene.assert_deferred(&first, &data);
        assert_eq!(scene.crustlet.pod("second")["status"]["phase"], "Pending");
        // Deleted, it goes at once, and the first doesn't.
        let _ = scene.crustlet.cli(&["delete", "pod", "second"]).success();
        assert_eq!(scene.running(&first), containers);
        scene.crustlet.write("second", &second);
        // The first goes with all that it has, and then it is the other's.
        scene.crustlet.remove("web");
        scene.crustlet.wait_pod("second", "Running");
        scene.crustlet.wait("the volume to be unstaged", || scene.csi.devices(&data.volume.id).is_empty());
        scene.crustlet.remove("second");
        scene.crustlet.wait_gone(&first.uid());
        scene.assert_nothing_left(&[&data]);
    }
}
