//! A volume's mountpoint in a container, where the author of the image may have put links.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{
    Bundle, Container, LoopDevice, MountWatcher, Node, POD, Pod, Runtime, StagedVolume, host,
    on_each_delegate,
};

use super::path_in_container;

/// Adds links to the rootfs that lead to a directory of the host's, whose name also exists in the rootfs.
fn with_links_out(bundle: Bundle, outside: &Path) -> Bundle {
    let bundle = bundle.write();
    let rootfs = bundle.rootfs();
    for own in [outside, Path::new("/etc")] {
        fs::create_dir_all(rootfs.join(own.strip_prefix("/").unwrap())).unwrap();
    }
    let up = "../".repeat(12);
    let far = format!("{up}{}", utf8(outside).trim_start_matches('/'));
    for (name, target) in [
        ("data", utf8(outside)),
        ("climbs", &far),
        ("config", "/etc"),
    ] {
        symlink(target, rootfs.join(name)).unwrap();
    }
    bundle
}

/// Returns the container's mountpoints of the device.
fn mountpoints(container: &Container, device: &LoopDevice) -> Vec<String> {
    let mounts = host::mounts_of(container.pid());
    let mounts = mounts
        .into_iter()
        .filter(|mount| mount.device == device.number());
    mounts.map(|mount| utf8(&mount.point).to_owned()).collect()
}

on_each_delegate! {
    fn links_in_the_image_lead_to_nothing_on_the_host(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let outside = node.dir().subdir("outside");
        let pod = Pod::new(&node, POD, &device, &[]);
        let watcher = MountWatcher::start(device.path());
        let bundle = node.app_bundle(&pod.sandbox)
            .bind(&pod.target, "/climbs", &[])
            .bind(&pod.target, "/data/below", &[])
            .bind(&pod.target, "/../../../../up", &[])
            .bind(&pod.target, "/tmp/../config", &[]);
        let etc = fs::read_dir("/etc").unwrap().count();
        let app = node.run(&with_links_out(bundle, &outside));
        let _ = app.sh("echo x > /up/file; cat /etc/file /climbs/file /data/below/file");
        let below = outside.join("below");
        assert_eq!(mountpoints(&app, &device), [utf8(&outside), utf8(&below), "/up", "/etc"]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "files in the host's directory");
        assert_eq!(fs::read_dir("/etc").unwrap().count(), etc);
        watcher.assert_never_mounted();
        pod.end([app]);
    }

    fn links_in_the_image_lead_a_hook_to_nothing_on_the_host(delegate: Delegate) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let device = node.ext4();
        let outside = node.dir().subdir("outside");
        let target = node.stage(POD, "pv-1", &device, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]);
        let bundle = with_links_out(bundle, &outside);
        let watcher = MountWatcher::start(device.path());
        let container = node.run(&bundle);
        assert_eq!(mountpoints(&container, &device), [utf8(&outside)]);
        let _ = container.sh("echo x > /data/file");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "files in the host's directory");
        watcher.assert_never_mounted();
        end([container]);
    }

    /// The sandbox's image has a directory of this name with another mode.
    fn only_root_may_enter_the_directory_of_volumes(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        for mode in [0o777, 0o400] {
            let bundle = volume.sandbox_bundle(POD).write();
            let directory = bundle.rootfs().join(".crust");
            fs::create_dir(&directory).unwrap();
            fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            let sandbox = volume.run(&bundle);
            let seen = fs::metadata(path_in_container(&sandbox, "/.crust")).unwrap();
            assert_eq!((seen.uid(), seen.mode() & 0o7777), (0, 0o700), "{mode:o}");
            let app = volume.app(&sandbox);
            assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
            end([app, sandbox]);
        }
    }

    /// The delegate decides which mountpoints it refuses.
    fn a_volume_may_be_mounted_wherever_a_directory_may(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let pod = Pod::new(&node, POD, &device, &[]);
        let ordinary = node.dir().subdir("ordinary");
        let bare = Runtime::bare(delegate);
        for destination in ["/proc", "/proc/self", "/proc/1/attr", "/proc/sys/kernel", "/dev", "/dev/pts", "/sys", "/sys/fs", "/.crust", "/"] {
            let bundle = |source: &Path| {
                node.app_bundle(&pod.sandbox).bind(source, destination, &[]).write()
            };
            let expected = Container::new(&bare, &bundle(&ordinary));
            let worked = expected.create().status.success();
            let _ = expected.delete_force();
            let records = node.records();
            let app = node.container(&bundle(&pod.target));
            let run = app.create();
            assert_eq!(run.status.success(), worked, "{destination}: {run}");
            let _ = app.delete_force();
            let left = node.records().into_iter().filter(|record| !record.starts_with("run/bundles"));
            assert!(left.eq(records.into_iter().filter(|record| !record.starts_with("run/bundles"))), "{destination}");
            assert_eq!(device.host_mounts(), <[String; 0]>::default());
        }
        pod.end([]);
        device.wait_until_free(WAIT_TIMEOUT);
    }
}
