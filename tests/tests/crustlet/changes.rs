//! Changes to the manifests of a pod and of its volumes while the pod runs.

use std::path::Path;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::manifests::{Pod, RuntimeClass};
use runcrust_tests::{Setup, on_each_delegate};

use crate::scene::{ALL_POST_MOUNT, Scene, Storage, WITHOUT_DEFERRAL, microvm, pod_with, policy};

/// Reports whether any pod has written to a volume that is not in use now.
#[track_caller]
fn was_written(scene: &Scene, storage: &Storage) -> bool {
    scene.inspect(storage, |root: &Path| root.join("file").exists())
}

on_each_delegate! {
    /// The source of a `PersistentVolume` is immutable, but no API server refuses a manifest that changes it.
    fn a_replaced_volume_is_not_mounted_over_the_first(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, other) = (scene.claim("data", "ext4"), scene.claim("other", "ext4"));
        let (logs, another) = (scene.claim("logs", "ext4"), scene.claim("another", "ext4"));
        let pod = pod_with("web", "data", true).claim("logs").mount("logs", "/logs");
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file; echo kept > /logs/file");
        scene.relay.clear_requests();
        for (storage, replacement) in [(&data, &other), (&logs, &another)] {
            let before = std::fs::read_to_string(scene.crustlet.manifest(&storage.pv)).unwrap();
            let after = before.replace(&storage.volume.id, &replacement.volume.id);
            assert_ne!(before, after);
            scene.crustlet.write(&storage.pv, &after);
        }
        scene.crustlet.wait_event("pod/web", "FailedMount");
        // Neither this agent nor the next one mounts the other volume.
        scene.crustlet.restart(&[]);
        let message = scene.crustlet.wait_event("pod/web", "FailedMount");
        assert!(message.contains("the directory is used by volume "), "{message:?}");
        assert_eq!(scene.sh(&pod, "cat /data/file /logs/file"), "kept\nkept");
        assert_eq!(scene.relay.requests::<NodePublishVolumeRequest>(), []);
        scene.assert_deferred(&pod, &data);
        scene.assert_plain(&pod, &logs);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs, &other, &another]);
        let was_written_to = [&data, &logs, &other, &another].map(|it| was_written(&scene, it));
        assert_eq!(was_written_to, [true, true, false, false]);
    }

    /// The spec that a running pod was started with counts, not the manifest that the agent finds when it starts.
    fn a_running_pod_keeps_the_spec_that_it_started_with(delegate: Delegate) {
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
        // Once nothing is left of the first pod, the same manifest is a new pod.
        scene.run(&changed);
        assert_eq!(scene.sh(&changed, "stat -c %g /data"), "4242");
        scene.assert_plain(&changed, &other);
        scene.end(&changed);
        scene.assert_nothing_left(&[&data, &other]);
    }

    /// The pod's directory still exists, and its volume is still published as deferred. The new runtime class's handler
    /// is the bare delegate, which does not mount deferred volumes.
    fn a_pod_that_starts_anew_follows_its_current_manifest(delegate: Delegate) {
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
        scene.crustlet.wait("the pod to run", || scene.running(&plain).len() == 1);
        assert_eq!(scene.sh(&plain, "cat /data/file"), "kept");
        scene.assert_plain(&plain, &data);
        scene.end(&plain);
        scene.assert_nothing_left(&[&data]);
    }

    /// KEP-2857, story 4, but the policy's rule is added while the driver still cannot defer.
    fn a_later_policy_does_not_apply_to_running_pods(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(None)), driver: &WITHOUT_DEFERRAL, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", false);
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file");
        scene.change_policy(&policy(Some(&ALL_POST_MOUNT)));
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

    /// If the pod were accepted, the container runtime would create a directory for the second volume, on the node's
    /// disk.
    fn refuses_two_claims_of_the_same_storage_in_a_pod(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let before = std::fs::read_to_string(scene.crustlet.manifest(&data.pv)).unwrap();
        let duplicate = before.replace("pv-data", "pv-copy").replace("name: data", "name: copy");
        assert!(duplicate.contains("name: copy"), "{duplicate}");
        scene.crustlet.write("copy", &duplicate);
        let pod = pod_with("web", "data", false).claim("copy").mount("copy", "/copy");
        scene.apply_pod(&pod);
        let message = scene.crustlet.wait_event_containing("pod/web", "FailedMount", "are the same storage");
        assert!(message.contains("pv-data") && message.contains("pv-copy"), "{message}");
        assert_eq!(scene.sandboxes(&pod), Vec::<String>::new());
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// The names of a pod's directories contain nothing but its uid.
    fn two_pods_with_one_uid_do_not_share_directories(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let first = pod_with("web", "data", true);
        scene.run(&first);
        let containers = scene.running(&first);
        let second = microvm("second").script("exec sleep 2147483647").to_string();
        let second = second.replace(&microvm("second").uid(), &first.uid());
        assert!(second.contains(&first.uid()));
        scene.crustlet.write("second", &second);
        let message = scene.crustlet.wait_event("pod/second", "FailedValidation");
        assert!(message.contains("is in use by pod default/web; "), "{message}");
        assert_eq!(scene.running(&first), containers);
        scene.assert_deferred(&first, &data);
        assert_eq!(scene.crustlet.pod("second")["status"]["phase"], "Pending");
        // The second pod can be deleted at once. That does not affect the first pod.
        let _ = scene.crustlet.cli(&["delete", "pod", "second"]).success();
        assert_eq!(scene.running(&first), containers);
        scene.crustlet.write("second", &second);
        // Once the first pod has gone with all its volumes, the second can start.
        scene.crustlet.remove("web");
        scene.crustlet.wait_pod("second", "Running");
        scene.crustlet.wait("the volume to be unstaged", || scene.csi.devices(&data.volume.id).is_empty());
        scene.crustlet.remove("second");
        scene.crustlet.wait_gone(&first.uid());
        scene.assert_nothing_left(&[&data]);
    }
}
