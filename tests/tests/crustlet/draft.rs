//! The six stories of KEP-2857's earlier draft, in which kubelet calls the runtime over the CRUST interface and passes
//! it the volumes to mount.

use std::fs;

use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
};
use runcrust_tests::manifests::{Pod, RuntimeClass, StorageClass};
use runcrust_tests::{Delegate, Setup, Testbed, on_each_delegate};

use crate::scene::{CLASS, MICROVM, Scene, Storage, WITHOUT_DEFERRAL, microvm};

/// Lets every sandbox accept a volume after its start.
const SANDBOX_ALWAYS: &str = "sandbox = \"always\"\n";

fn class_that_allows_deferral() -> StorageClass {
    StorageClass::new(CLASS).allow_runtime_assisted_mount(true)
}

fn with_socket(testbed: &Testbed) -> RuntimeClass {
    RuntimeClass::new(MICROVM, "crust").fs_mgmt_socket(testbed.ops.crust_socket())
}

/// Sets up everything that the draft needs. `runcrust` is appended to runcrust's configuration, `driver` are further
/// arguments of the driver.
fn scene(delegate: Delegate, runcrust: &str, driver: &[&str]) -> Scene {
    let runcrust = format!("{SANDBOX_ALWAYS}{runcrust}");
    let setup = Setup {
        runcrust: &runcrust,
        driver,
        ..Setup::default()
    };
    Scene::with_classes(delegate, &setup, &class_that_allows_deferral(), with_socket)
}

/// Runs a pod with a fsGroup and a subPath, whose volume the driver mounts. Returns the publish request.
#[track_caller]
fn assert_falls_back(scene: &Scene) -> NodePublishVolumeRequest {
    let data = scene.claim("data", "ext4");
    let pod = microvm("web").fs_group(100).claim("data");
    let pod = pod.mount_as("data", "/data", "subPath: app");
    scene.run(&pod);
    scene.assert_plain(&pod, &data);
    let script = "echo hello > /data/file; stat -c '%g' /data /data/file";
    assert_eq!(scene.sh(&pod, script), "100\n100");
    let file = scene.target(&pod, &data.pv).join("app/file");
    assert_eq!(fs::read_to_string(file).unwrap(), "hello\n");
    scene.wait_stats(&data, &pod, "/data");
    scene.end(&pod);
    scene.assert_nothing_left(&[&data]);
    only_publication(scene)
}

#[track_caller]
fn only_publication(scene: &Scene) -> NodePublishVolumeRequest {
    let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
    let [request] = &published[..] else {
        panic!("{published:?}");
    };
    assert!(
        !request.defer_fs_ops,
        "defer_fs_ops belongs to the later KEP"
    );
    request.clone()
}

/// Asserts that a volume is not mounted on the host, and that the pod has it with its group.
#[track_caller]
fn assert_in_the_sandbox(scene: &Scene, pod: &Pod, storage: &Storage) {
    scene.assert_not_on_the_host(pod, storage);
    let mounted = scene.sh(
        pod,
        "grep -c ' /data ' /proc/self/mountinfo; stat -c %g /data",
    );
    assert_eq!(mounted, "1\n100");
}

on_each_delegate! {
    fn story_1_a_runtime_with_all_capabilities_mounts_the_volume(delegate: Delegate) {
        const MORE: i64 = 64 << 20;
        let scene = scene(delegate, "", &[]);
        let data = scene.claim("data", "xfs");
        let pod = microvm("web").fs_group(100).claim("data").mount("data", "/data");
        let pod = pod.mount_as("data", "/part", "subPath: part");
        scene.run(&pod);
        assert_in_the_sandbox(&scene, &pod, &data);
        assert_eq!(scene.sh(&pod, "echo hello > /part/file; cat /data/part/file"), "hello");
        let request = only_publication(&scene);
        assert!(request.runtime_supported_filesystems.iter().any(|it| it == "xfs"), "{request:?}");

        scene.wait_stats(&data, &pod, "/data");
        let requests: Vec<NodeGetVolumeStatsRequest> = scene.relay.requests();
        assert!(requests.iter().any(|it| it.runtime_supported_stats), "{requests:?}");
        let (before, grown) = (scene.size(&pod, "/data"), data.volume.capacity + MORE);
        scene.request_size(&data, grown);
        scene.wait_capacity(&data, grown);
        assert!(scene.size(&pod, "/data") >= before + MORE / 10 * 9);
        let requests: Vec<NodeExpandVolumeRequest> = scene.relay.requests();
        assert!(requests.iter().any(|it| it.runtime_supports_expand), "{requests:?}");

        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
        assert_eq!(scene.inspect(&data, |root| fs::read_to_string(root.join("part/file")).unwrap()), "hello\n");
    }

    fn story_2_the_driver_mounts_if_the_runtime_lacks_a_step(delegate: Delegate) {
        let off = ["FS_GROUP_CHANGE_POLICY_ALWAYS", "FS_GROUP_CHANGE_POLICY_ROOT_MISMATCH", "SUBPATH"];
        let request = assert_falls_back(&scene(delegate, &format!("capabilities_off = {off:?}"), &[]));
        assert_eq!(request.runtime_supported_filesystems, Vec::<String>::new());
    }

    fn story_3_the_driver_mounts_if_the_class_has_no_socket(delegate: Delegate) {
        let setup = Setup { runcrust: SANDBOX_ALWAYS, ..Setup::default() };
        let no_socket = |_: &Testbed| RuntimeClass::new(MICROVM, "crust");
        let request = assert_falls_back(&Scene::with_classes(delegate, &setup, &class_that_allows_deferral(), no_socket));
        assert_eq!(request.runtime_supported_filesystems, Vec::<String>::new());
    }

    fn story_4_the_driver_mounts_if_the_class_forbids_deferral(delegate: Delegate) {
        let setup = Setup { runcrust: SANDBOX_ALWAYS, ..Setup::default() };
        let request = assert_falls_back(&Scene::with_classes(delegate, &setup, &StorageClass::new(CLASS), with_socket));
        assert_eq!(request.runtime_supported_filesystems, Vec::<String>::new());
    }

    /// The title of story 4 in the draft is about this case, its text about the case above.
    fn story_4_the_driver_mounts_if_it_cannot_defer(delegate: Delegate) {
        assert_falls_back(&scene(delegate, "", &WITHOUT_DEFERRAL));
    }

    fn story_5_the_driver_mounts_unsupported_file_systems(delegate: Delegate) {
        let scene = scene(delegate, "fstypes = [\"ext4\"]", &[]);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "xfs"));
        let pod = microvm("web").fs_group(100).claim("data").mount("data", "/data");
        let pod = pod.claim("logs").mount("logs", "/logs");
        scene.run(&pod);
        assert_in_the_sandbox(&scene, &pod, &data);
        scene.assert_plain(&pod, &logs);
        assert_eq!(scene.sh(&pod, "echo x > /logs/file; stat -c %g /logs/file"), "100");
        let published: Vec<NodePublishVolumeRequest> = scene.relay.requests();
        assert_eq!(published.len(), 2, "{published:?}");
        assert!(published.iter().all(|it| it.runtime_supported_filesystems == ["ext4"]), "{published:?}");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
    }

    fn story_6_a_runtime_that_cannot_resize_grows_nothing(delegate: Delegate) {
        let scene = scene(delegate, &format!("capabilities_off = {:?}", ["VOLUME_RESIZE"]), &[]);
        let data = scene.claim("data", "xfs");
        let pod = microvm("web").fs_group(100).claim("data").mount("data", "/data");
        scene.run(&pod);
        assert_in_the_sandbox(&scene, &pod, &data);
        let before = scene.size(&pod, "/data");
        scene.request_size(&data, data.volume.capacity + (64 << 20));
        scene.wait_no_growth(&data);
        let requests: Vec<NodeExpandVolumeRequest> = scene.relay.requests();
        assert_eq!(requests.iter().map(|it| it.runtime_supports_expand).collect::<Vec<_>>(), [false]);
        // "Kubelet will note the failed precondition … and not retry it."
        let stats_calls = || scene.relay.requests::<NodeGetVolumeStatsRequest>().len();
        let so_far = stats_calls();
        scene.crustlet.wait("further statistics calls", || stats_calls() > so_far + 3);
        assert_eq!(scene.relay.requests::<NodeExpandVolumeRequest>().len(), 1);
        assert_eq!(scene.size(&pod, "/data"), before);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// A volume that the driver has mounted is not deferred to the runtime by a later change of the classes.
    fn a_restart_keeps_calling_the_driver(delegate: Delegate) {
        let setup = Setup { runcrust: SANDBOX_ALWAYS, ..Setup::default() };
        let scene = Scene::with_classes(delegate, &setup, &StorageClass::new(CLASS), with_socket);
        let data = scene.claim("data", "ext4");
        let pod = microvm("web").claim("data").mount("data", "/data");
        scene.run(&pod);
        scene.assert_plain(&pod, &data);
        scene.crustlet.kill();
        scene.relay.clear_requests();
        scene.apply("classes", &[&class_that_allows_deferral(), &with_socket(&scene)]);
        scene.crustlet.spawn(scene.crustlet.command(&[]));
        scene.wait_stats(&data, &pod, "/data");
        assert_eq!(only_publication(&scene).runtime_supported_filesystems, Vec::<String>::new());
        scene.assert_plain(&pod, &data);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// A deferred volume stays with the runtime even if the class no longer allows it.
    fn a_restart_keeps_calling_the_runtime(delegate: Delegate) {
        const MORE: i64 = 64 << 20;
        let scene = scene(delegate, "", &[]);
        let data = scene.claim("data", "xfs");
        let pod = microvm("web").fs_group(100).claim("data").mount("data", "/data");
        scene.run(&pod);
        assert_in_the_sandbox(&scene, &pod, &data);
        let recorded = || scene.crustlet.vol_data(&pod.uid(), &data.pv)["runtimeAssistedMount"].take();
        assert_eq!(recorded(), "true");
        scene.sh(&pod, "echo kept > /data/file");
        let container = scene.container(&pod);
        scene.crustlet.kill();
        scene.relay.clear_requests();
        scene.apply("classes", &[&StorageClass::new(CLASS), &with_socket(&scene)]);
        scene.crustlet.spawn(scene.crustlet.command(&[]));

        scene.wait_stats(&data, &pod, "/data");
        assert!(!only_publication(&scene).runtime_supported_filesystems.is_empty());
        let requests: Vec<NodeGetVolumeStatsRequest> = scene.relay.requests();
        assert!(requests.iter().all(|it| it.runtime_supported_stats), "{requests:?}");
        let (before, grown) = (scene.size(&pod, "/data"), data.volume.capacity + MORE);
        scene.request_size(&data, grown);
        scene.wait_capacity(&data, grown);
        assert!(scene.size(&pod, "/data") >= before + MORE / 10 * 9);
        let requests: Vec<NodeExpandVolumeRequest> = scene.relay.requests();
        assert!(requests.iter().all(|it| it.runtime_supports_expand), "{requests:?}");
        assert_in_the_sandbox(&scene, &pod, &data);
        assert_eq!(recorded(), "true");
        assert_eq!((scene.container(&pod), scene.sh(&pod, "cat /data/file")), (container, "kept".to_owned()));
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }
}
