//! A container with a bind of a staged volume's subPath gets the volume.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{LoopDevice, MountWatcher, POD, Run, StagedVolume, mounts, on_each_delegate};

use super::*;

fn mount_at(source: &Path, at: &Path, fstype: &str, options: &str) {
    mount(
        Some(source),
        at,
        Some(fstype),
        MsFlags::empty(),
        Some(options),
    )
    .expect("a mount");
}

/// Asserts that a container sees the volume at its subPath and can write to it, and that nothing is created on the
/// host.
#[track_caller]
fn assert_shows_the_volume(pod: &Pod, path: &str) {
    let watcher = MountWatcher::start(pod.volume.device.path());
    let whole = pod
        .volume
        .node
        .app(&pod.sandbox, &pod.volume.target, "/data");
    let make = format!("mkdir -p '/data/{path}'; echo volume > '/data/{path}/mark'");
    let _ = whole.sh(&make);
    let source = pod.bind(path, 0);
    let host = pod.volume.target.join(path);
    assert_eq!(
        fs::read_dir(&host).unwrap().count(),
        0,
        "kubelet's directory is empty"
    );

    let app = pod.app(&source);
    assert_eq!(app.sh("cat /data/mark"), "volume");
    let _ = app.sh("echo written > /data/file");
    assert_eq!(whole.sh(&format!("cat '/data/{path}/file'")), "written");
    assert_eq!(app.sh("stat -c %d /data"), whole.sh("stat -c %d /data"));
    assert_eq!(
        fs::read_dir(&host).unwrap().count(),
        0,
        "nothing was written to the host"
    );
    watcher.assert_never_mounted();
}

on_each_delegate! {
    fn a_subpath_in_a_plain_directory_shows_the_volume(delegate: Delegate) {
        assert_shows_the_volume(&Pod::new(delegate), "db/main");
    }

    fn a_subpath_behind_a_link_shows_the_volume(delegate: Delegate) {
        let pod = Pod::on(delegate, |node| {
            let _ = node.dir().subdir("srv/data");
            symlink("srv/data", node.handler().kubelet_dir()).unwrap();
        });
        assert_shows_the_volume(&pod, "db");
        // containerd passes resolved sources.
        let resolved = pod.bind("db", 1).canonicalize().unwrap();
        assert!(resolved.starts_with(pod.volume.dir().join("srv/data")));
        assert_eq!(pod.app(&resolved).sh("cat /data/mark"), "volume");
    }

    fn a_subpath_in_a_mounted_kubelet_directory_shows_the_volume(delegate: Delegate) {
        let pod = Pod::on(delegate, |node| {
            let _ = node.dir().subdir("kubelet");
            mount_at(Path::new("none"), &node.handler().kubelet_dir(), "tmpfs", "size=1m");
        });
        assert_shows_the_volume(&pod, "db");
    }

    fn a_subpath_in_a_bound_kubelet_directory_shows_the_volume(delegate: Delegate) {
        let pod = Pod::on(delegate, |node| {
            let _ = node.dir().subdir("kubelet");
            mounts::bind(&node.dir().subdir("elsewhere/k"), &node.handler().kubelet_dir());
        });
        assert_shows_the_volume(&pod, "db");
    }

    /// Each subvolume has its own `st_dev`.
    fn a_subpath_in_a_btrfs_subvolume_shows_the_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let disk = LoopDevice::new(node.dir(), 128);
        let _ = Run::capture(std::process::Command::new("mkfs.btrfs").arg("-q").arg(disk.path())).success();
        let whole = node.dir().subdir("btrfs");
        mount_at(disk.path(), &whole, "btrfs", "");
        for subvolume in ["@other", "@k", "@k/pods"] {
            let mut create = std::process::Command::new("btrfs");
            let _ = Run::capture(create.args(["subvolume", "create"]).arg(whole.join(subvolume))).success();
        }
        let _ = node.dir().subdir("kubelet");
        mount_at(disk.path(), &node.handler().kubelet_dir(), "btrfs", "subvol=@k");
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let mut create = std::process::Command::new("btrfs");
        let _ = Run::capture(create.args(["subvolume", "create"]).arg(target.join("sv"))).success();
        let pod = Pod::with_volume(StagedVolume { target, device, node });
        assert_shows_the_volume(&pod, "sv/db");
        assert_second_subpath_shows_the_volume(&pod, "db", 1);
    }

    /// Some drivers mount something of the host at the target path, Kata's for example.
    fn a_subpath_on_a_mounted_target_path_shows_the_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let target = node.target(POD, "pv-1");
        mounts::bind(&node.dir().subdir("staging/pv-1"), &target);
        let device = node.ext4();
        let _ = node.try_stage(&target, device.path(), &[]).success();
        let pod = Pod::with_volume(StagedVolume { target, device, node });
        assert_shows_the_volume(&pod, "db");
    }

    fn a_subpath_with_spaces_and_newlines_shows_the_volume(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let target = node.stage(POD, "pv 1\n\\040", &device, &[]);
        let sandbox = node.sandbox(POD);
        let whole = node.app(&sandbox, &target, "/data");
        let path = "my db\n\\040é";
        let _ = whole.sh(&format!("mkdir '/data/{path}'; echo volume > '/data/{path}/mark'"));
        let source = subpath("pv 1\n\\040", &target, path, 0).bind(&node.handler().kubelet_dir());
        let app = node.app(&sandbox, &source, "/data");
        assert_eq!(app.sh("cat /data/mark"), "volume");
    }

    fn a_subpath_that_the_volume_lacks_is_created_in_it(delegate: Delegate) {
        let pod = Pod::with_volume(StagedVolume::with(delegate, &["--fs-group", "4321"]));
        let app = pod.app(&pod.bind("new/and/deep", 0));
        assert_eq!(app.sh("stat -c '%a %g' /data"), "2775 4321", "mode and group of the volume's root");
        let _ = app.sh("echo new > /data/mark");
        assert_eq!(fs::read_dir(pod.volume.target.join("new/and/deep")).unwrap().count(), 0);
        drop(app);
        pod.sandbox.stop();
        let _ = pod.sandbox.delete();
        pod.volume.device.wait_until_free(WAIT_TIMEOUT);
        let mark = with_mounted(pod.volume.device.path(), |root| fs::read(root.join("new/and/deep/mark")).unwrap());
        assert_eq!(mark, b"new\n");
    }

    /// The host's directory does not contain the file, so kubelet creates a directory with its name.
    fn a_file_in_the_volume_is_mounted_as_a_file(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let whole = pod.app(&pod.volume.target);
        let _ = whole.sh("mkdir /data/conf; echo volume > /data/conf/app.ini; echo two > /data/conf/b.ini");
        let directory = pod.bind("conf/app.ini", 0);
        assert!(directory.is_dir());
        // A file on the host can only be a mistake. The container does not get it.
        fs::write(pod.volume.target.join("conf/b.ini"), "host\n").unwrap();
        let file = pod.bind("conf/b.ini", 1);
        assert!(file.is_file());
        let bundle = pod.volume.node.app_bundle(&pod.sandbox);
        let bundle = bundle.bind(&directory, "/etc/app.ini", &[]).bind(&file, "/etc/b.ini", &[]);
        let app = pod.volume.run(&bundle.write());
        assert_eq!(app.sh("cat /etc/app.ini /etc/b.ini"), "volume\ntwo");
        let _ = app.sh("echo changed > /etc/b.ini");
        assert_eq!(whole.sh("cat /data/conf/b.ini"), "changed");
        assert_eq!(fs::read_to_string(pod.volume.target.join("conf/b.ini")).unwrap(), "host\n");
    }

    fn two_containers_and_a_read_only_mount_share_one_volume(delegate: Delegate) {
        let pod = Pod::new(delegate);
        let (one, two) = (pod.bind("a", 0), pod.bind("b", 1));
        let first = pod.app(&one);
        let bundle = pod.volume.node.app_bundle(&pod.sandbox);
        let bundle = bundle.bind(&one, "/a", &["rbind", "rprivate", "ro"]).bind(&two, "/b", &[]);
        let second = pod.volume.run(&bundle.write());
        let _ = first.sh("echo a > /data/file");
        assert_eq!(second.sh("cat /a/file; ls /b"), "a");
        let refused = second.exec(&["/bin/touch", "/a/new"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        let _ = second.sh("echo b > /b/file");
        assert_eq!(first.sh("stat -c %d /data"), second.sh("stat -c %d /b"));
        // kubelet restarts a container by creating a new one.
        first.stop();
        let _ = first.delete().success();
        fs::remove_dir_all(first.bundle()).unwrap();
        assert_eq!(pod.app(&one).sh("cat /data/file"), "a");
    }
}

#[track_caller]
fn assert_second_subpath_shows_the_volume(pod: &Pod, path: &str, index: u32) {
    let app = pod.app(&pod.bind(path, index));
    let _ = app.sh("echo again > /data/mark");
    assert_eq!(
        fs::read_dir(pod.volume.target.join(path)).unwrap().count(),
        0
    );
}
