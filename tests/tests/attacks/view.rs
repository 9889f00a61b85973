//! What a workload can learn of the host by its volumes.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::node::utf8;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, LoopDevice, Node, POD, Pod, on_each_delegate};

/// The fields of mountinfo that aren't numbers, of the mount at a place.
fn fields(mountinfo: &str, place: &str) -> Vec<String> {
    let lines = mountinfo.lines();
    let of_place = |line: &&str| line.split(' ').nth(4) == Some(place);
    let line = lines
        .rev()
        .find(of_place)
        .unwrap_or_else(|| panic!("nothing is at {place}: {mountinfo}"));
    let (left, right) = line.split_once(" - ").expect("proc(5)");
    let optional = left.split(' ').skip(6).map(str::to_owned);
    let root = left.split(' ').nth(3).expect("the root").to_owned();
    let right = right.split(' ').take(2).map(str::to_owned);
    [root].into_iter().chain(optional).chain(right).collect()
}

/// What only the host's side needs, in none of the files that show a container its mounts.
#[track_caller]
fn assert_tells_nothing(node: &Node, pod: &Pod<'_>, text: &str) {
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
    fn its_mounts_show_no_place_of_the_hosts(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir_all(root.join("deep/directory")).unwrap();
            fs::write(root.join("deep/file"), "").unwrap();
        });
        // As drivers name devices.
        let name = node.dir().subdir("by-id").join("volume");
        symlink(device.path(), &name).unwrap();
        let target = node.target(POD, "pv-1");
        let _ = node.try_stage(&target, &name, &[]).success();
        let pod = Pod::of(&node, POD, target);
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
            // No peer and no master either.
            assert_eq!(fields(&mountinfo, place), [root, "ext4", source], "{mountinfo}");
        }
        for file in ["mountinfo", "mounts", "mountstats"] {
            assert_tells_nothing(&node, &pod, &app.sh(&format!("cat /proc/self/{file}")));
        }
        // The device's name is that of nothing here.
        assert_eq!(app.sh(&format!("ls -d {source} /dev/crust /.crust 2>/dev/null | wc -l")), "0");
        assert_eq!(app.sh("find / -xdev -type b | wc -l"), "0");
    }

    fn below_its_mounts_there_is_nothing_of_the_hosts(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let pod = Pod::new(&node, POD, &device, &[]);
        fs::write(pod.target.join("of-the-host"), "").unwrap();
        let bundle = node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]);
        let app = node.run(&bundle.all_capabilities().write());
        let _ = app.sh("echo x > /data/file; umount /data");
        assert_eq!(app.sh("ls -A /data; grep -c ' /data ' /proc/self/mountinfo || true"), "0");
    }

    fn a_containers_own_hook_shows_no_place_of_the_hosts_either(delegate: Delegate) {
        let node = Node::with(delegate, "mount_mode = \"hook\"");
        let device: LoopDevice = node.ext4();
        let pod = Pod::new(&node, POD, &device, &[]);
        let bundle: Bundle = node.app_bundle(&pod.sandbox).bind(pod.target.join("new"), "/data", &[]).write();
        fs::create_dir(bundle.rootfs().join("data")).unwrap();
        let app = node.run(&bundle);
        let mountinfo = app.sh("cat /proc/self/mountinfo");
        assert_eq!(fields(&mountinfo, "/data"), ["/new", "ext4", utf8(device.path())]);
        assert_tells_nothing(&node, &pod, &mountinfo);
    }
}
