//! Where a volume is mounted in the container: an image's author decides what stands there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{
    Bundle, Container, LoopDevice, MountWatcher, Node, POD, Pod, Runtime, StagedVolume, host,
    on_each_delegate,
};

use super::inside;

/// A rootfs whose links lead to a directory of the host's; the container has another of that name.
fn treacherous(bundle: Bundle, outside: &Path) -> Bundle {
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

/// Where a container has the device.
fn places(container: &Container, device: &LoopDevice) -> Vec<String> {
    let mounts = host::mounts_of(container.pid());
    let mounts = mounts
        .into_iter()
        .filter(|mount| mount.device == device.number());
    mounts.map(|mount| utf8(&mount.point).to_owned()).collect()
}

on_each_delegate! {
    fn links_in_the_image_lead_to_nothing_of_the_hosts(delegate: Delegate) {
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
        let app = node.run(&treacherous(bundle, &outside));
        let _ = app.sh("echo x > /up/file; cat /etc/file /climbs/file /data/below/file");
        let below = outside.join("below");
        assert_eq!(places(&app, &device), [utf8(&outside), utf8(&below), "/up", "/etc"]);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "the host's own directory");
        assert_eq!(fs::read_dir("/etc").unwrap().count(), etc);
        watcher.assert_never_mounted();
        pod.end([app]);
    }

    fn an_images_links_lead_a_hook_to_no_file_of_the_host(delegate: Delegate) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let device = node.ext4();
        let outside = node.dir().subdir("outside");
        let target = node.stage(POD, "pv-1", &device, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]);
        let bundle = treacherous(bundle, &outside);
        let watcher = MountWatcher::start(device.path());
        let container = node.run(&bundle);
        assert_eq!(places(&container, &device), [utf8(&outside)]);
        let _ = container.sh("echo x > /data/file");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "the host's own directory");
        watcher.assert_never_mounted();
        end([container]);
    }

    /// In the image of a sandbox it is a directory that anybody may write.
    fn nobody_but_root_may_write_where_volumes_are_mounted(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        for mode in [0o777, 0o400] {
            let bundle = volume.sandbox_bundle(POD).write();
            let there = bundle.rootfs().join(".crust");
            fs::create_dir(&there).unwrap();
            fs::set_permissions(&there, Permissions::from_mode(mode)).unwrap();
            let sandbox = volume.run(&bundle);
            let seen = fs::metadata(inside(&sandbox, "/.crust")).unwrap();
            assert_eq!((seen.uid(), seen.mode() & 0o7777), (0, 0o700), "{mode:o}");
            let app = volume.app(&sandbox);
            assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
            end([app, sandbox]);
        }
    }

    /// The delegate knows what it doesn't let anybody mount over.
    fn a_volume_is_mounted_where_the_delegate_mounts_any_directory(delegate: Delegate) {
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
