//! podman with runcrust as its runtime: containers without a sandbox, and somebody else's ways of
//! calling.

use std::fs;
use std::path::Path;

use runcrust_tests::node::{PATIENCE, utf8};
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{MountWatcher, Node, Podman, cgroup, on_each_delegate};

const POD: &str = "bbbbbbbb-2222-1111-4444-555555555555";

fn podman(node: &Node) -> Podman {
    Podman::new(node.dir(), &node.handler().runtime())
}

fn volume(source: &Path, options: &str) -> String {
    format!("--volume={}:/data{options}", source.display())
}

on_each_delegate! {
    fn a_container_with_a_staged_volume_runs_pauses_restarts_and_goes(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &["--fs-group", "4242"]);
        let watcher = MountWatcher::start(device.path());
        let podman = podman(&node);
        let _ = podman.start("one", &[&volume(&target, "")], 0).success();
        assert_eq!(podman.sh("one", "echo hello > /data/file; stat -c %g /data"), "4242");
        let group = podman.inspect("one", "{{.State.CgroupPath}}");
        let _ = podman.run(&["pause", "one"]).success();
        assert!(cgroup::is_frozen(&group), "{group}");
        let _ = node.stats(&target).success();
        let _ = podman.run(&["unpause", "one"]).success();
        assert!(!cgroup::is_frozen(&group), "{group}");
        let _ = podman.run(&["restart", "--time", "0", "one"]).success();
        assert_eq!(podman.sh("one", "cat /data/file"), "hello");
        let _ = podman.run(&["stop", "--time", "0", "one"]).success();
        let _ = podman.run(&["start", "one"]).success();
        assert_eq!(podman.sh("one", "cat /data/file"), "hello");
        watcher.assert_never_mounted();
        let _ = podman.run(&["rm", "--force", "--time", "0", "one"]).success();
        device.wait_until_free(PATIENCE);
        let _ = node.unstage(&target).success();
        let file = with_mounted(device.path(), |root| fs::read(root.join("file")).unwrap());
        assert_eq!(file, b"hello\n");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "nothing stands on the host");
    }

    fn subpaths_and_read_only_volumes_are_podmans_ordinary_mounts(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            fs::create_dir(root.join("sub")).unwrap();
            fs::write(root.join("sub/mark"), "sub").unwrap();
        });
        let target = node.stage(POD, "pv-1", &device, &[]);
        // podman wants a source to exist, as kubelet makes it.
        fs::create_dir(target.join("sub")).unwrap();
        let podman = podman(&node);
        let _ = podman.start("one", &[&volume(&target.join("sub"), ":ro")], 0).success();
        assert_eq!(podman.sh("one", "cat /data/mark"), "sub");
        let _ = podman.run(&["exec", "one", "touch", "/data/x"]).failure();
        let _ = podman.start("two", &[&volume(&target, "")], 0).success();
        assert_eq!(podman.sh("two", "cat /data/sub/mark"), "sub");
        assert_eq!(fs::read_dir(target.join("sub")).unwrap().count(), 0);
    }

    fn a_named_volume_can_be_staged(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let podman = podman(&node);
        let _ = podman.run(&["volume", "create", "named"]).success();
        let format = "{{.Mountpoint}}";
        let target = podman.run(&["volume", "inspect", "--format", format, "named"]).success().stdout;
        let target = Path::new(target.trim());
        let _ = node.try_stage(target, device.path(), &[]).success();
        let _ = podman.start("one", &["--volume=named:/data"], 0).success();
        let _ = podman.sh("one", "echo x > /data/file");
        assert_eq!(fs::read_dir(target).unwrap().count(), 0, "nothing stands on the host");
        let _ = podman.run(&["rm", "--force", "--time", "0", "one"]).success();
        device.wait_until_free(PATIENCE);
        let _ = node.unstage(target).success();
    }

    fn a_container_in_a_user_namespace_sees_its_own_ids(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let podman = podman(&node);
        let first = 600_000;
        let map = format!("0:{first}:65536");
        let flags = ["--uidmap", &map, "--gidmap", &map, &volume(&target, "")];
        let _ = podman.start("one", &flags, first).success();
        let owners = podman.sh("one", "echo x > /data/file; chown 5:6 /data/file; stat -c %u:%g /data /data/file");
        assert_eq!(owners, "0:0\n5:6");
        // A namespace that is there already.
        let _ = podman.start("two", &["--userns=container:one", &volume(&target, "")], first).success();
        assert_eq!(podman.sh("two", "stat -c %u:%g /data /data/file"), owners);
        assert_eq!(podman.sh("two", "readlink /proc/self/ns/user"), podman.sh("one", "readlink /proc/self/ns/user"));
        // Before the one whose namespace it is in.
        let _ = podman.run(&["rm", "--force", "--time", "0", "two"]).success();
    }

    fn a_failed_start_is_told_in_runcrusts_words(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        fs::write(node.entry(&target).join("mountInfo.json"), "{").unwrap();
        let podman = podman(&node);
        let failed = podman.start("one", &[&volume(&target, "")], 0).failure();
        assert!(failed.stderr.contains("volume pv-1: ") && failed.stderr.contains("isn't JSON"), "{failed}");
        assert!(failed.stderr.contains(utf8(&node.entry(&target))), "{failed}");
    }

    fn a_container_without_staged_volumes_is_podmans_own(delegate: Delegate) {
        let node = Node::new(delegate);
        let podman = podman(&node);
        let ordinary = node.dir().subdir("ordinary");
        let _ = podman.start("one", &[&volume(&ordinary, "")], 0).success();
        let _ = podman.sh("one", "echo x > /data/file");
        assert_eq!(fs::read(ordinary.join("file")).unwrap(), b"x\n");
        let runtime = podman.inspect("one", "{{.OCIRuntime}}");
        assert_eq!(Path::new(&runtime), node.handler().path());
        assert_eq!(node.records(), Vec::<std::path::PathBuf>::new());
    }
}
