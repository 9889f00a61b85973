//! Limits on what a workload can learn about the host from its volumes.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::node::utf8;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, LoopDevice, Node, POD, Pod, on_each_delegate};

/// Returns the fields of mountinfo that are not numbers, for the last mount at a mountpoint.
fn fields(mountinfo: &str, place: &str) -> Vec<String> {
    let lines = mountinfo.lines();
    let of_place = |line: &&str| line.split(' ').nth(4) == Some(place);
    let line = lines
        .rev()
        .find(of_place)
        .unwrap_or_else(|| panic!("no mount at {place}: {mountinfo}"));
    let (left, right) = line.split_once(" - ").expect("proc(5)");
    let optional = left.split(' ').skip(6).map(str::to_owned);
    let root = left.split(' ').nth(3).expect("the root").to_owned();
    let right = right.split(' ').take(2).map(str::to_owned);
    [root].into_iter().chain(optional).chain(right).collect()
}

/// Asserts that a file that shows a container its mounts contains no path of the host.
#[track_caller]
fn assert_no_host_paths(node: &Node, pod: &Pod<'_>, text: &str) {
    let (crust, state) = (node.handler().crust_root(), node.handler().state_dir());
    let entry = node.entry(&pod.target);
    let digest = utf8(entry.file_name().unwrap().as_ref());
    for place in [
        utf8(&crust),
        utf8(&state),
        utf8(&pod.target),
        digest,
        "attach",
        ".crust",
        "by-id",
    ] {
        assert!(!text.contains(place), "{place} is in {text}");
    }
}

on_each_delegate! {
    fn a_containers_mounts_show_no_path_of_the_host(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir_all(root.join("deep/directory")).unwrap();
            fs::write(root.join("deep/file"), "").unwrap();
        });
        // Drivers name devices by symbolic links.
        let name = node.dir().subdir("by-id").join("volume");
        symlink(device.path(), &name).unwrap();
        let target = node.target(POD, "pv-1");
        let _ = node.try_stage(&target, &name, &[]).success();
        let pod = Pod::with_staged_volume(&node, POD, target);
        let bundle = node.app_bundle(&pod.sandbox)
            .bind(&pod.target, "/data", &[])
            .bind(&pod.target, "/slave", &["rbind", "rslave", "rw"])
            .bind(pod.target.join("deep/directory"), "/directory", &["rbind", "rprivate", "ro"])
            .bind(pod.target.join("deep/file"), "/file", &[]);
        let app = node.run(&bundle.all_capabilities().write());
        let mountinfo = app.sh("cat /proc/self/mountinfo");
        let source = utf8(device.path());
        for (place, root) in [
            ("/data", "/"),
            ("/slave", "/"),
            ("/directory", "/deep/directory"),
            ("/file", "/deep/file"),
        ] {
            // The mount has no peer group and no master either.
            assert_eq!(fields(&mountinfo, place), [root, "ext4", source], "{mountinfo}");
        }
        for file in ["mountinfo", "mounts", "mountstats"] {
            assert_no_host_paths(&node, &pod, &app.sh(&format!("cat /proc/self/{file}")));
        }
        // The device's path does not exist in the container.
        assert_eq!(app.sh(&format!("ls -d {source} /dev/crust /.crust 2>/dev/null | wc -l")), "0");
        assert_eq!(app.sh("find / -xdev -type b | wc -l"), "0");
    }

    fn an_unmounted_volume_uncovers_nothing_of_the_host(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let pod = Pod::new(&node, POD, &device, &[]);
        fs::write(pod.target.join("of-the-host"), "").unwrap();
        let bundle = node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]);
        let app = node.run(&bundle.all_capabilities().write());
        let _ = app.sh("echo x > /data/file; umount /data");
        assert_eq!(app.sh("ls -A /data; grep -c ' /data ' /proc/self/mountinfo || true"), "0");
    }

    fn mounts_made_by_a_hook_show_no_path_of_the_host(delegate: Delegate) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let device: LoopDevice = node.ext4();
        let pod = Pod::new(&node, POD, &device, &[]);
        let bundle: Bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join("new"), "/data", &[]).write();
        fs::create_dir(bundle.rootfs().join("data")).unwrap();
        let app = node.run(&bundle);
        let mountinfo = app.sh("cat /proc/self/mountinfo");
        assert_eq!(fields(&mountinfo, "/data"), ["/new", "ext4", utf8(device.path())]);
        assert_no_host_paths(&node, &pod, &mountinfo);
    }
}
