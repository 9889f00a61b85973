//! Staged mount options, as the kernel applies them.

use runcrust_tests::{LoopDevice, Node, Pod, on_each_delegate, on_each_file_system};

/// Returns the attributes of the mount, and the options of the superblock, from mountinfo.
#[track_caller]
fn mounted(pod: &Pod<'_>, device: &LoopDevice) -> (String, String) {
    let mounts = device.mounts_of(pod.sandbox.pid());
    let line = mounts.first().expect("a mount in the sandbox");
    let superblock = line.rsplit(' ').next().expect("a last field");
    (pod.attributes(device), superblock.to_owned())
}

on_each_file_system! {
    fn generic_options_are_applied_and_those_of_fstab_dropped(delegate: Delegate, fstype: &'static str) {
        let (node, device) = Node::with_formatted(delegate, fstype);
        let options = [
            "--option", "defaults,_netdev,nofail,x-systemd.automount",
            "--option", "noatime,nosuid,suid",
            "--option", "nodev",
            "--option", "sync,dirsync,lazytime,iversion",
        ];
        let pod = Pod::new(&node, "pod-a", &device, &options);
        let (attributes, superblock) = mounted(&pod, &device);
        assert_eq!(attributes, "rw,nodev,noatime");
        assert!(superblock.starts_with("rw,sync,dirsync,lazytime"), "{superblock}");
        let _ = pod.app().sh("echo x > /data/file");
    }
}

on_each_delegate! {
    fn options_of_each_file_system_are_applied(delegate: Delegate) {
        let node = Node::new(delegate);
        for (fstype, options, expected) in [
            ("ext3", "commit=77", "commit=77"),
            ("ext4", "commit=77,data=writeback", "commit=77,data=writeback"),
            ("xfs", "logbufs=4,wsync", "wsync"),
            ("btrfs", "commit=77,compress=zstd:3", "compress=zstd:3"),
        ] {
            let device = node.formatted(fstype);
            let pod = Pod::new(&node, "pod-a", &device, &["--option", options]);
            let (_, superblock) = mounted(&pod, &device);
            assert!(superblock.contains(expected), "{superblock}");
            pod.end([]);
            let _ = node.unstage(&pod.target).success();
        }
    }

    fn a_btrfs_subvolume_can_be_the_volume(delegate: Delegate) {
        let (node, device) = Node::with_formatted(delegate, "btrfs");
        runcrust_tests::volume::with_mounted(device.path(), |root| {
            let mut command = std::process::Command::new("btrfs");
            command.args(["subvolume", "create"]).arg(root.join("data"));
            let _ = runcrust_tests::Run::capture(&mut command).success();
            std::fs::write(root.join("outside"), "").unwrap();
            std::fs::write(root.join("data/inside"), "").unwrap();
        });
        let pod = Pod::new(&node, "pod-a", &device, &["--option", "subvol=/data", "--fs-group", "700"]);
        let app = pod.app();
        assert_eq!(app.sh("ls /data; stat -c %g /data/inside"), "inside\n700");
    }

    fn a_volumes_options_override_default_options(delegate: Delegate) {
        let node = Node::with(delegate, "default_options = [\"nosuid\", \"nodev\"]");
        let device = node.formatted("xfs");
        let pod = Pod::new(&node, "pod-a", &device, &["--option", "suid"]);
        assert_eq!(mounted(&pod, &device).0, "rw,nodev,relatime");
    }
}
