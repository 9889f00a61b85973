//! The six stories of KEP-2857, "Coordination of `FileSystem` Operations between CSI Plugin and Container Runtime".

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest,
};
use runcrust_tests::csi::Moment;
use runcrust_tests::{MountWatcher, Setup, on_each_delegate};

use crate::scene::{ALL_POST_MOUNT, Scene, WITHOUT_DEFERRAL, groups, microvm, pod_with, policy};

/// Returns the group and the permission bits of a file that exists.
fn group_and_mode(root: &Path, path: &str) -> (u32, u32) {
    let metadata = fs::symlink_metadata(root.join(path)).expect("the file's metadata");
    (metadata.gid(), metadata.mode() & 0o7777)
}

on_each_delegate! {
    fn story_1_everything_that_a_pod_asks_for_is_deferred(delegate: Delegate) {
        const MORE: i64 = 64 << 20;
        let setup = Setup { policy: Some(&policy(Some(&ALL_POST_MOUNT))), ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim_with_options("data", "ext4", &["nobarrier"]);
        let logs = scene.claim("logs", "xfs");
        let pod = microvm("web").fs_group(100).change_policy("OnRootMismatch");
        let pod = pod.claim("data").mount_as("data", "/data", "subPath: app/data");
        let pod = pod.claim("logs").mount("logs", "/logs").mount_as("logs", "/part", "subPath: part");

        // The devices are attached, and no component has been asked to mount them yet.
        scene.relay.hold::<NodePublishVolumeRequest>(Moment::Before);
        scene.apply_pod(&pod);
        let published = || scene.relay.requests::<NodePublishVolumeRequest>().len() == 2;
        scene.crustlet.wait("both volumes to be staged", published);
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
        let shown = scene.crustlet.pod("web");
        assert_eq!(shown["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"], true, "{shown}");

        let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert_eq!(published.len(), 2, "{published:?}");
        for request in &published {
            assert!(request.defer_fs_ops, "{request:?}");
            assert_eq!(groups(request.volume_capability.as_ref()), ["100", "100", "OnRootMismatch"]);
        }
        assert!((scene.published_deferred() - 2.0).abs() < f64::EPSILON);

        scene.wait_stats(&data, &pod, "/data");
        scene.wait_stats(&logs, &pod, "/logs");
        let requests: Vec<NodeGetVolumeStatsRequest> = scene.relay.requests();
        assert!(!requests.is_empty() && requests.iter().all(|it| it.defer_fs_ops), "{requests:?}");

        // An xfs, because an ext4 only grows with CAP_SYS_RESOURCE.
        let (before, grown) = (scene.size(&pod, "/logs"), logs.volume.capacity + MORE);
        scene.request_size(&logs, grown);
        scene.wait_capacity(&logs, grown);
        assert!(scene.size(&pod, "/logs") >= before + MORE / 10 * 9);
        scene.wait_stats(&logs, &pod, "/logs");
        let requests: Vec<NodeExpandVolumeRequest> = scene.relay.requests();
        assert!(!requests.is_empty() && requests.iter().all(|it| it.defer_fs_ops), "{requests:?}");

        // Stop watching before the device is detached: another test may get its number afterwards.
        watchers.into_iter().for_each(MountWatcher::assert_never_mounted);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
        let requests: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
        assert_eq!(requests.len(), 2, "{requests:?}");
        assert!(requests.iter().all(|it| it.defer_fs_ops), "{requests:?}");
        scene.inspect(&data, |root| {
            assert_eq!(fs::read_to_string(root.join("app/data/file")).unwrap(), "hello\n");
            assert_eq!(group_and_mode(root, "app/data"), (100, 0o2775));
        });
        scene.inspect(&logs, |root| {
            assert_eq!(fs::read_to_string(root.join("part/file")).unwrap(), "line\n");
            assert_eq!(group_and_mode(root, "part/file").0, 100);
        });
    }

    fn story_2_the_driver_mounts_if_the_runtime_lacks_a_step(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(Some(&["subPath: true"]))), ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let grouped = microvm("grouped").fs_group(100).claim("data");
        let grouped = grouped.mount_as("data", "/data", "subPath: app");
        scene.run(&grouped);
        scene.assert_plain(&grouped, &data);
        assert_eq!(scene.sh(&grouped, "echo hello > /data/file; stat -c %g /data/file"), "100");
        let file = scene.target(&grouped, &data.pv).join("app/file");
        assert_eq!(fs::read_to_string(&file).unwrap(), "hello\n", "the volume is mounted on the host");
        let shown = scene.crustlet.pod("grouped");
        assert_ne!(shown["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"], true, "{shown}");
        assert!(scene.published_deferred().abs() < f64::EPSILON);

        // A pod that asks for no more than the runtime can do is deferred.
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

    fn story_3_the_driver_mounts_if_it_cannot_defer(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(None)), driver: &WITHOUT_DEFERRAL, ..Setup::default() };
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
        let requests: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
        assert!(!requests.is_empty() && !requests.iter().any(|it| it.defer_fs_ops), "{requests:?}");
    }

    fn story_4_the_driver_is_upgraded_and_the_next_pod_defers(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(None)), driver: &WITHOUT_DEFERRAL, is_direct: true, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let before = microvm("before").fs_group(100).claim("data").mount("data", "/data");
        scene.run(&before);
        scene.assert_plain(&before, &data);
        scene.sh(&before, "echo before > /data/file");
        let container = scene.container(&before);

        scene.csi.restart(&[]);
        scene.change_policy(&policy(Some(&ALL_POST_MOUNT)));
        let after = microvm("after").fs_group(100).claim("logs").mount("logs", "/logs");
        scene.run(&after);
        scene.assert_deferred(&after, &logs);
        assert_eq!(scene.sh(&after, "stat -c '%g %a' /logs"), "100 2775");
        // The running pod keeps its mount.
        assert_eq!(scene.container(&before), container);
        scene.assert_plain(&before, &data);
        assert_eq!(scene.sh(&before, "cat /data/file"), "before");

        scene.end(&before);
        scene.crustlet.wait("its volume to be unstaged", || scene.csi.devices(&data.volume.id).is_empty());
        let next = microvm("again").fs_group(100).claim("data").mount("data", "/data");
        scene.run(&next);
        scene.assert_deferred(&next, &data);
        assert_eq!(scene.sh(&next, "cat /data/file"), "before");
        scene.end(&next);
        scene.end(&after);
        scene.assert_nothing_left(&[&data, &logs]);
    }

    fn story_5_a_pod_outlives_a_downgrade_of_its_driver(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(Some(&ALL_POST_MOUNT))), ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let data = scene.claim("data", "xfs");
        let pod = pod_with("web", "data", false);
        scene.run(&pod);
        scene.assert_deferred(&pod, &data);
        scene.sh(&pod, "echo kept > /data/file; sync");
        scene.wait_stats(&data, &pod, "/data");

        scene.csi.restart(&WITHOUT_DEFERRAL);
        let logged = |log: &str| log.lines().any(|line| line.contains("DEFER_FS_OPS") && line.contains("stat"));
        scene.crustlet.wait("the log to say that statistics are missing", || logged(&scene.crustlet.log()));
        scene.relay.clear_requests();
        scene.request_size(&data, data.volume.capacity + (64 << 20));
        scene.wait_no_growth(&data);
        assert_eq!(scene.relay.requests::<NodeExpandVolumeRequest>(), []);
        assert_eq!(scene.relay.requests::<NodeGetVolumeStatsRequest>(), []);
        assert_eq!(scene.sh(&pod, "cat /data/file"), "kept");

        scene.end(&pod);
        let requests: Vec<NodeUnpublishVolumeRequest> = scene.relay.requests();
        assert!(!requests.is_empty() && !requests.iter().any(|it| it.defer_fs_ops), "{requests:?}");
        // This driver does not know the metadata. The runtime removes it by itself.
        let entry = scene.node.entry(&scene.target(&pod, &data.pv));
        assert!(entry.exists());
        scene.ops.kill();
        scene.ops.reconfigure(&scene.node, "reconcile_interval = 1");
        scene.ops.spawn(scene.ops.command());
        scene.crustlet.wait("the metadata to be removed", || !entry.exists());
        scene.assert_nothing_left(&[&data]);
        assert_eq!(scene.inspect(&data, |root| fs::read_to_string(root.join("file")).unwrap()), "kept\n");
    }

    fn story_6_a_pod_waits_for_the_upgrade_of_its_driver(delegate: Delegate) {
        let setup = Setup { policy: Some(&policy(Some(&ALL_POST_MOUNT))), driver: &WITHOUT_DEFERRAL, is_direct: true, ..Setup::default() };
        let scene = Scene::with(delegate, &setup);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let pod = pod_with("web", "data", false);
        let deleted = pod_with("deleted", "logs", false);
        for pod in [&pod, &deleted] {
            scene.apply_pod(pod);
            let object = format!("pod/{}", pod.name());
            let message = scene.crustlet.wait_event_containing(&object, "FailedMount", "DEFER_FS_OPS");
            assert!(message.contains(runcrust_tests::csi::DRIVER), "{message}");
            assert_eq!(scene.crustlet.pod(pod.name())["status"]["phase"], "Pending");
        }
        // The agent retries.
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
    fn an_event_reports_a_volume_that_cannot_be_mounted(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim_with_options("data", "ext4", &["bogus=1"]);
        let pod = pod_with("web", "data", true);
        scene.apply_pod(&pod);
        let message = scene.crustlet.wait_event_containing("pod/web", "Failed", "'bogus'");
        assert!(message.contains(&format!("volume {}: ", data.pv)), "{message}");
        let status = scene.crustlet.pod("web")["status"].take();
        assert_eq!(status["containerStatuses"][0]["ready"], false, "{status}");
        scene.assert_deferred(&pod, &data);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// KEP-2857, "Goals", for an error that the runtime finds before any container is created.
    fn an_event_reports_metadata_that_cannot_be_read(delegate: Delegate) {
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
        let message = scene.crustlet.wait_event_containing("pod/web", "FailedCreatePodSandBox", "version");
        assert!(message.contains(&format!("volume {}: ", data.pv)), "{message}");
        assert_eq!(scene.crustlet.pod("web")["status"]["phase"], "Pending");
        assert_eq!(scene.sandboxes(&pod), Vec::<String>::new());

        fs::write(&info, written).unwrap();
        scene.crustlet.wait_pod("web", "Running");
        assert_eq!(scene.sh(&pod, "echo x > /data/file; cat /data/file"), "x");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }
}
