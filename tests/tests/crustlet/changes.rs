//! What is written of a pod's things while it runs.

use std::path::Path;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::on_each_delegate;

use crate::scene::{Scene, Storage, microvm, pod_with};

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
        scene.relay.forget();
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
        assert!(told.contains("is there; hint:"), "{told:?}");
        assert_eq!(scene.sh(&pod, "cat /data/file /logs/file"), "kept\nkept");
        assert_eq!(scene.relay.heard::<NodePublishVolumeRequest>(), []);
        scene.assert_deferred(&pod, &data);
        scene.assert_plain(&pod, &logs);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs, &other, &another]);
        let written = [&data, &logs, &other, &another].map(|it| was_written(&scene, it));
        assert_eq!(written, [true, true, false, false]);
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
        assert!(told.starts_with("pod default/web has its metadata.uid"), "{told}");
        assert_eq!(scene.running(&first), containers);
        scene.assert_deferred(&first, &data);
        // The first goes with all that it has, and then it is the other's.
        scene.crustlet.remove("web");
        scene.crustlet.wait_pod("second", "Running");
        scene.crustlet.wait("the volume to be unstaged", || scene.csi.devices(&data.volume.id).is_empty());
        scene.crustlet.remove("second");
        scene.crustlet.wait_gone(&first.uid());
        scene.assert_nothing_left(&[&data]);
    }
}
