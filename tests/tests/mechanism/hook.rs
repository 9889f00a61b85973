//! `mount_mode = "hook"`: a hook mounts the volume in each container, which then has access to the device.

use std::fs;
use std::path::Path;

use runcrust_tests::fault_injection::create_traced;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, Container, Delegate, MountWatcher, Node, POD, StagedVolume, on_each_delegate,
};
use serde_json::json;

use super::end;

pub(super) fn node(delegate: Delegate) -> Node {
    let node = Node::new(delegate);
    let log = node.dir().join("runcrust.log");
    node.handler()
        .reconfigure(&format!("mount_mode = \"hook\"\nlog = {log:?}"));
    node
}

/// Writes the bundle and creates the volume's mountpoint, because the delegate only creates those of its own mounts.
pub(super) fn with_mountpoint(bundle: Bundle, path: &str) -> Bundle {
    let bundle = bundle.write();
    fs::create_dir_all(bundle.rootfs().join(path.trim_start_matches('/'))).unwrap();
    bundle
}

/// Creates a container, asserts that it fails, and returns runcrust's log: crun does not pass on the standard error of
/// a hook.
pub(super) fn log_of_failed_create(node: &Node, container: &Container) -> String {
    let _ = container.create().failure();
    fs::read_to_string(node.dir().join("runcrust.log")).unwrap_or_default()
}

on_each_delegate! {
    fn the_containers_hook_mounts_a_pods_volume(delegate: Delegate) {
        let node = node(delegate);
        let device = node.ext4();
        let options = ["--fs-group", "4242", "--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let target = node.stage(POD, "pv-1", &device, &options);
        let watcher = MountWatcher::start(device.path());
        let sandbox = node.sandbox(POD);
        let app = |mounts: fn(Bundle, &Path) -> Bundle| {
            let bundle = mounts(node.app_bundle(&sandbox), &target);
            node.run(&with_mountpoint(bundle, "/data"))
        };
        let one = app(|bundle, target| bundle.bind(target, "/data", &[]));
        let _ = one.sh("echo hello > /data/file; chgrp 7 /data/file");
        assert_eq!(one.sh("stat -c '%g %a' /data"), "4242 2775");
        let two = app(|bundle, target| bundle.bind(target.join("sub"), "/data", &["rbind", "ro", "noatime"]));
        let _ = two.exec(&["/bin/touch", "/data/x"]).failure();
        let mounted = two.sh("grep ' /data ' /proc/self/mountinfo");
        assert!(mounted.contains(" /sub /data ro,noatime"), "{mounted}");
        assert_eq!(one.sh("ls /data/sub | wc -l; stat -c %g /data/file"), "0\n7", "fsGroup is applied once for a pod");

        let stats = node.stats(&target).success();
        assert!(stats.stdout.contains("BYTES"), "{stats}");
        watcher.assert_never_mounted();
        end([one, two, sandbox]);
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[&target]);
        let file = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(file, b"hello\n");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    }

    /// A timeout on a lock names the holder's process, which an operator looks for on the host.
    fn locks_name_the_hook_by_the_hosts_pid(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let bundle = volume.plain_bundle();
        let container = volume.container(&with_mountpoint(bundle, "/data"));
        let trace = create_traced(&container, "pwrite64");
        let recorded = trace.lines().filter_map(|line| {
            let (pid, call) = line.split_once(' ')?;
            Some((pid, call.split_once("\"process ")?.1.split_once('"')?.0))
        });
        let recorded: Vec<(&str, &str)> = recorded.collect();
        let mut processes: Vec<&str> = recorded.iter().map(|(pid, _)| *pid).collect();
        processes.dedup();
        assert!(processes.len() > 1, "runcrust and its hooks: {recorded:?}");
        assert!(recorded.iter().all(|(pid, recorded)| pid == recorded), "{recorded:?}");
    }

    fn a_plain_bundle_can_be_created_twice(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let bundle = volume
            .plain_bundle()
            .bind(&volume.target, "/data2", &[])
            .bind("/etc", "/other", &["rbind", "ro"]);
        let bundle = with_mountpoint(with_mountpoint(bundle, "/data"), "/data2");
        let before = bundle.config();
        let container = volume.run(&bundle);
        let _ = container.sh("echo x > /data/file; cat /data2/file");
        let config = bundle.config();
        let destinations = config["mounts"].as_array().unwrap().iter().map(|mount| &mount["destination"]);
        assert!(destinations.into_iter().all(|destination| destination != "/data" && destination != "/data2"));
        container.stop();
        let _ = container.delete().success();
        let second = volume.run(&bundle);
        assert_eq!(second.sh("cat /data/file"), "x");
        assert_eq!(bundle.config(), config, "the second plan has the same result");
        assert_ne!(bundle.config(), before);
    }

    /// The mount table has all of the node's mounts, so it must not be read once for each mount.
    fn the_mount_table_is_read_equally_often_for_many_mounts(delegate: Delegate) {
        let reads = [2, 20].map(|count| {
            let volume = StagedVolume::on(node(delegate), &[]);
            let places: Vec<String> = (0..count).map(|number| format!("/data{number}")).collect();
            let bundle = places.iter().fold(Bundle::plain(volume.dir()), |bundle, place| {
                bundle.bind(&volume.target, place, &[])
            });
            let bundle = places.iter().fold(bundle, |bundle, place| with_mountpoint(bundle, place));
            let container = volume.container(&bundle);
            let trace = create_traced(&container, "open,openat,openat2");
            trace.matches("/proc/thread-self/mountinfo").count()
        });
        assert!(reads[0] > 0 && reads[0] == reads[1], "{reads:?}");
    }

    fn a_subpath_is_mounted_inside_its_own_volume(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let bundle = volume.plain_bundle().bind(volume.target.join("sub"), "/data/sub", &[]);
        let container = volume.run(&with_mountpoint(bundle, "/data"));
        let _ = container.sh("echo x > /data/sub/file; cat /data/sub/file");
        assert_eq!(container.sh("grep -c ' /data' /proc/self/mountinfo"), "2");
    }

    fn a_missing_mountpoint_is_refused(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let bundle = Bundle::plain(volume.dir()).bind(&volume.target, "/not/there", &[]).write();
        let container = volume.container(&bundle);
        let log = log_of_failed_create(&volume, &container);
        assert!(log.contains("volume pv-1: mount /not/there: the container has no such"), "{log}");
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.unstage().success();
    }

    fn a_mountpoint_that_is_a_link_to_a_mount_is_refused(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let bundle = Bundle::plain(volume.dir())
            .mount(json!({"destination": "/real/inner", "type": "tmpfs", "source": "tmpfs"}))
            .bind(&volume.target, "/link", &[]);
        let bundle = with_mountpoint(bundle, "/real/inner");
        std::os::unix::fs::symlink("/real", bundle.rootfs().join("link")).unwrap();
        let log = log_of_failed_create(&volume, &volume.container(&bundle));
        assert!(log.contains("volume pv-1: mount /link: ") && log.contains("/real/inner is mounted already"), "{log}");
    }

    fn mounts_that_a_hook_cannot_make_are_refused_unchanged(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let plain = || volume.plain_bundle();
        let mut hosts_mounts = plain();
        let namespaces = hosts_mounts.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "mount");
        for (bundle, named) in [
            (hosts_mounts, "without a mount namespace of its own"),
            (plain().bind("/etc", "/data/etc", &[]), "/data/etc"),
            (plain().bind("/etc", "/data", &[]), "/data"),
            (plain().user_namespace(300_000, None), "user namespace"),
            (Bundle::plain(volume.dir()).bind(&volume.target, "/data", &["rbind", "rshared"]), "shared with the host"),
            (Bundle::plain(volume.dir()).bind(&volume.target, "/data", &["rbind", "size=1m"]), "size=1m"),
        ] {
            let bundle = bundle.write();
            let before = bundle.config_bytes();
            let container = volume.container(&bundle);
            let error = container.expect_refusal();
            assert!(error.starts_with("volume pv-1: ") && error.contains(named), "{error}");
            assert!(error.contains("hint: "), "{error}");
            assert_eq!(bundle.config_bytes(), before);
        }
        assert!(!volume.entry().join("runcrust.json").exists());
    }

    fn another_pods_volume_is_refused(delegate: Delegate) {
        let volume = StagedVolume::on(node(delegate), &[]);
        let own = volume.ext4();
        let _own = volume.node.stage("another-pod", "pv-2", &own, &[]);
        let sandbox = volume.node.sandbox("another-pod");
        let bundle = with_mountpoint(volume.app_bundle(&sandbox), "/data");
        let container = volume.container(&bundle);
        let error = container.expect_refusal();
        assert!(error.contains("its target path belongs to pod"), "{error}");
    }
}
