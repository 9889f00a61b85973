//! KEP-2857, "Coordination of `FileSystem` Operations between CSI Plugin and Container Runtime": its six stories.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest,
};
use runcrust_tests::csi::Moment;
use runcrust_tests::{MountWatcher, Setup, on_each_delegate};

use crate::scene::{ALL, OLDER, Scene, groups, microvm, pod_with, policy};

/// Of a file that is there: its group, and its mode's last bits.
fn owner(root: &Path, path: &str) -> (u32, u32) {
    let metadata = fs::symlink_metadata(root.join(path)).expect("it is there");
    (metadata.gid(), metadata.mode() & 0o7777)
}

on_each_delegate! {
    fn story_1_all_is_deferred_with_all_that_the_pod_asks_for(delegate: Delegate) {
        const MORE: i64 = 64 << 20;
        let setup = Setup { policy: Some(&policy(Some(&ALL))), ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim_with("data", "ext4", &["nobarrier"]);
        let logs = scene.claim("logs", "xfs");
        let pod = microvm("web").fs_group(100).change_policy("OnRootMismatch");
        let pod = pod.claim("data").mount_as("data", "/data", "subPath: app/data");
        let pod = pod.claim("logs").mount("logs", "/logs").mount_as("logs", "/part", "subPath: part");

        // The devices are there, and nobody has been told to mount them.
        scene.relay.hold::<NodePublishVolumeRequest>(Moment::Before);
        scene.apply_pod(&pod);
        let attached = || [&data, &logs].iter().all(|it| scene.csi.devices(&it.volume.id).len() == 1);
        scene.crustlet.wait("both volumes to be staged", attached);
        let watchers = [&data, &logs].map(|it| MountWatcher::start(&scene.csi.device(&it.volume.id)));
        scene.relay.clear_faults();
        scene.crustlet.wait_pod("web", "Running");

        let script = "echo hello > /data/file; echo line > /part/file; stat -c '%g %a' /data /logs /part";
        assert_eq!(scene.sh(&pod, script), "100 2775\n100 2775\n100 2775");
        assert_eq!(scene.sh(&pod, "cat /logs/part/file"), "line");
        let mounted = scene.sh(&pod, "grep ' /data ' /proc/self/mountinfo");
        assert!(mounted.contains(" - ext4 ") && mounted.contains("nobarrier"), "{mounted}");
        for storage in [&data, &logs] {
            scene.assert_deferred(&pod, storage);
            let info = scene.mount_info(&pod, &storage.pv).unwrap();
            assert_eq!(info["volume-type"], "block", "{info}");
            assert_eq!(info["metadata"]["fsGroup"], "100", "{info}");
            assert_eq!(info["metadata"]["fsGroupChangePolicy"], "OnRootMismatch", "{info}");
        }
        let info = scene.mount_info(&pod, &data.pv).unwrap();
        assert_eq!((&info["fstype"], &info["options"]), (&"ext4".into(), &vec!["nobarrier"].into()));
        let subpaths = scene.crustlet.pod_dir(&pod.uid()).join("volume-subpaths");
        assert!(!subpaths.exists(), "a deferred volume's subPath is bound nowhere");
        let told = scene.crustlet.pod("web");
        assert_eq!(told["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"], true, "{told}");

        let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert_eq!(published.len(), 2, "{published:?}");
        for request in &published {
            assert!(request.defer_fs_ops, "{request:?}");
            assert_eq!(groups(request.volume_capability.as_ref()), ["100", "100", "OnRootMismatch"]);
        }
        assert!((scene.published_deferred() - 2.0).abs() < f64::EPSILON);

        scene.wait_stats(&data, &pod, "/data");
        scene.wait_stats(&logs, &pod, "/logs");
        let asked: Vec<NodeGetVolumeStatsRequest> = scene.relay.requests();
        assert!(!asked.is_empty() && asked.iter().all(|it| it.defer_fs_ops), "{asked:?}");

        // An ext4 grows with CAP_SYS_RESOURCE alone.
        let (before, grown) = (scene.size(&pod, "/logs"), logs.volume.capacity + MORE);
        scene.ask_for(&logs, grown);
        scene.wait_capacity(&logs, grown);
        assert!(scene.size(&pod, "/logs") >= before + MORE / 10 * 9);
        scene.wait_stats(&logs, &pod, "/logs");
        let asked: Vec<NodeExpandVolumeRequest> = scene.relay.requests();
        assert!(!asked.is_empty() && asked.iter().all(|it| it.defer_fs_ops), "{asked:?}");

        // Once it is detached, its number may be another test's.
        watchers.into_iter().for_each(MountWatcher::assert_never_mounted);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
        let asked: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked.iter().all(|it| it.defer_fs_ops), "{asked:?}");
        scene.look(&data, |root| {
            assert_eq!(fs::read_to_string(root.join("app/data/file")).unwrap(), "hello\n");
            assert_eq!(owner(root, "app/data"), (100, 0o2775));
        });
        scene.look(&logs, |root| {
            assert_eq!(fs::read_to_string(root.join("part/file")).unwrap(), "line\n");
            assert_eq!(owner(root, "part/file").0, 100);
        });
    }

    fn story_2_fallback_where_the_runtime_lacks_what_the_pod_asks(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(Some(&["subPath: true"]))), ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let grouped = microvm("grouped").fs_group(100).claim("data");
        let grouped = grouped.mount_as("data", "/data", "subPath: app");
        scene.run(&grouped);
        scene.assert_plain(&grouped, &data);
        assert_eq!(scene.sh(&grouped, "echo hello > /data/file; stat -c %g /data/file"), "100");
        let file = scene.target(&grouped, &data.pv).join("app/file");
        assert_eq!(fs::read_to_string(&file).unwrap(), "hello\n", "it is the host's mount");
        let told = scene.crustlet.pod("grouped");
        assert_ne!(told["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"], true, "{told}");
        assert!(scene.published_deferred().abs() < f64::EPSILON);

        // What it can do it does.
        let parted = microvm("parted").claim("logs").mount_as("logs", "/logs", "subPath: app");
        scene.run(&parted);
        scene.assert_deferred(&parted, &logs);
        let deferred = |request: &NodePublishVolumeRequest| request.defer_fs_ops;
        let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert_eq!(published.iter().map(deferred).collect::<Vec<_>>(), [false, true]);
        scene.end(&grouped);
        scene.end(&parted);
        scene.assert_nothing_left(&[&data, &logs]);
    }

    fn story_3_fallback_where_the_driver_cannot_defer(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(None)), driver: &OLDER, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim("data", "ext4");
        let pod = microvm("web").fs_group(100).claim("data").mount("data", "/data");
        let pod = pod.mount_as("data", "/part", "subPath: part");
        scene.run(&pod);
        scene.assert_plain(&pod, &data);
        let script = "echo hello > /part/file; cat /data/part/file; stat -c %g /part";
        assert_eq!(scene.sh(&pod, script), "hello\n100");
        scene.wait_stats(&data, &pod, "/data");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
        let asked: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
        assert!(!asked.is_empty() && !asked.iter().any(|it| it.defer_fs_ops), "{asked:?}");
    }

    fn story_4_the_driver_is_upgraded_and_the_next_pod_defers(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(None)), driver: &OLDER, is_direct: true, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let before = microvm("before").fs_group(100).claim("data").mount("data", "/data");
        scene.run(&before);
        scene.assert_plain(&before, &data);
        scene.sh(&before, "echo before > /data/file");
        let container = scene.container(&before);

        scene.csi.restart(&[]);
        scene.change_policy(&policy(Some(&ALL)));
        let after = microvm("after").fs_group(100).claim("logs").mount("logs", "/logs");
        scene.run(&after);
        scene.assert_deferred(&after, &logs);
        assert_eq!(scene.sh(&after, "stat -c '%g %a' /logs"), "100 2775");
        // The one that runs has what it had.
        assert_eq!(scene.container(&before), container);
        scene.assert_plain(&before, &data);
        assert_eq!(scene.sh(&before, "cat /data/file"), "before");

        scene.end(&before);
        scene.crustlet.wait("its volume to be unstaged", || scene.csi.devices(&data.volume.id).is_empty());
        let again = microvm("again").fs_group(100).claim("data").mount("data", "/data");
        scene.run(&again);
        scene.assert_deferred(&again, &data);
        assert_eq!(scene.sh(&again, "cat /data/file"), "before");
        scene.end(&again);
        scene.end(&after);
        scene.assert_nothing_left(&[&data, &logs]);
    }

    fn story_5_the_driver_is_downgraded_under_a_pod(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(Some(&ALL))), ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim("data", "xfs");
        let pod = pod_with("web", "data", false);
        scene.run(&pod);
        scene.assert_deferred(&pod, &data);
        scene.sh(&pod, "echo kept > /data/file; sync");
        scene.wait_stats(&data, &pod, "/data");

        scene.csi.restart(&OLDER);
        let logged = |log: &str| log.lines().any(|line| line.contains("DEFER_FS_OPS") && line.contains("stat"));
        scene.crustlet.wait("the log to tell that there are no statistics", || logged(&scene.crustlet.log()));
        scene.relay.clear_requests();
        scene.ask_for(&data, data.volume.capacity + (64 << 20));
        scene.wait_no_growth(&data);
        assert_eq!(scene.relay.requests::<NodeExpandVolumeRequest>(), []);
        assert_eq!(scene.relay.requests::<NodeGetVolumeStatsRequest>(), []);
        assert_eq!(scene.sh(&pod, "cat /data/file"), "kept");

        scene.end(&pod);
        let asked: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
        assert!(!asked.is_empty() && !asked.iter().any(|it| it.defer_fs_ops), "{asked:?}");
        // The driver knows nothing of the metadata: the runtime takes it away, by itself.
        let entry = scene.node.entry(&scene.target(&pod, &data.pv));
        assert!(entry.exists());
        scene.ops.kill();
        scene.ops.reconfigure(&scene.node, "reconcile_interval = 1");
        scene.ops.spawn(scene.ops.command());
        scene.crustlet.wait("the metadata to be taken away", || !entry.exists());
        scene.assert_nothing_left(&[&data]);
        assert_eq!(scene.look(&data, |root| fs::read_to_string(root.join("file")).unwrap()), "kept\n");
    }

    fn story_6_the_driver_is_downgraded_before_the_pod_starts(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(Some(&ALL))), driver: &OLDER, is_direct: true, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let pod = pod_with("web", "data", false);
        let deleted = pod_with("deleted", "logs", false);
        for pod in [&pod, &deleted] {
            scene.apply_pod(pod);
            let object = format!("pod/{}", pod.name());
            let told = scene.crustlet.wait_event_containing(&object, "FailedMount", "DEFER_FS_OPS");
            assert!(told.contains(runcrust_tests::csi::DRIVER), "{told}");
            assert_eq!(scene.crustlet.pod(pod.name())["status"]["phase"], "Pending");
        }
        // It is tried again.
        scene.crustlet.wait("another FailedMount", || {
            let events = scene.crustlet.events().into_iter();
            let failed = events.filter(|it| it.object == "pod/web" && it.reason == "FailedMount");
            let failed: Vec<_> = failed.collect();
            assert!(failed.iter().all(|it| it.kind == "Warning"), "{failed:?}");
            failed.iter().map(|it| it.count).sum::<u64>() > 1
        });
        assert!(!scene.csi.log().contains("NodePublishVolume"), "{}", scene.csi.log());
        assert_eq!((scene.mount_info(&pod, &data.pv), scene.sandboxes(&pod)), (None, Vec::new()));
        scene.end(&deleted);

        scene.csi.restart(&[]);
        scene.crustlet.wait_pod("web", "Running");
        scene.assert_deferred(&pod, &data);
        assert_eq!(scene.sh(&pod, "echo x > /data/file; cat /data/file"), "x");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
    }

    /// KEP-2857, "Goals": clear errors, and no silent fallback.
    fn what_the_runtime_cannot_mount_is_told_by_the_pods_container(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim_with("data", "ext4", &["bogus=1"]);
        let pod = pod_with("web", "data", true);
        scene.apply_pod(&pod);
        let told = scene.crustlet.wait_event_containing("pod/web", "Failed", "'bogus'");
        assert!(told.contains(&format!("volume {}: ", data.pv)), "{told}");
        let status = scene.crustlet.pod("web")["status"].take();
        assert_eq!(status["containerStatuses"][0]["ready"], false, "{status}");
        scene.assert_deferred(&pod, &data);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// The same, of what the runtime sees before any container.
    fn what_the_runtime_cannot_read_is_told_by_the_pods_sandbox(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let pod = pod_with("web", "data", true);
        scene.relay.hold::<NodePublishVolumeRequest>(Moment::After);
        scene.apply_pod(&pod);
        scene.relay.wait_held(Moment::After);
        let info = scene.node.entry(&scene.target(&pod, &data.pv)).join("mountInfo.json");
        let written = fs::read(&info).unwrap();
        fs::write(&info, "{\"version\":2}").unwrap();
        scene.relay.clear_faults();
        let told = scene.crustlet.wait_event_containing("pod/web", "FailedCreatePodSandBox", "version");
        assert!(told.contains(&format!("volume {}: ", data.pv)), "{told}");
        assert_eq!(scene.crustlet.pod("web")["status"]["phase"], "Pending");
        assert_eq!(scene.sandboxes(&pod), Vec::<String>::new());

        fs::write(&info, written).unwrap();
        scene.crustlet.wait_pod("web", "Running");
        assert_eq!(scene.sh(&pod, "echo x > /data/file; cat /data/file"), "x");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }
}
