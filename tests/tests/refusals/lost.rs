//! Volumes whose entry was lost, and sources that only look like such a volume.

use std::fs;
use std::path::Path;

use runcrust_tests::{Bundle, Container, Node, POD, StagedVolume, mounts, on_each_delegate};

use crate::refusal::{self, unexpected_entries, unexpected_mounts};

fn app(node: &Node, sandbox: &Container, source: &Path) -> Bundle {
    node.app_bundle(sandbox).bind(source, "/data", &[]).write()
}

on_each_delegate! {
    fn a_volume_whose_entry_was_lost_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let running = volume.app(&sandbox);
        fs::remove_dir_all(volume.entry()).unwrap();

        let sub = volume.target.join("db/main");
        for source in [&volume.target, &sub] {
            let refused = refusal::create_refused(&volume, &app(&volume, &sandbox, source));
            let _ = refused
                .naming_volume("pv-1")
                .containing(&["nothing is staged", volume.target.to_str().unwrap(), "unstaged"])
                .message();
        }
        // containerd creates the missing source of a bind mount, as an empty directory.
        fs::create_dir_all(&sub).unwrap();
        let refused = refusal::create_refused(&volume, &app(&volume, &sandbox, &sub));
        let _ = refused.naming_volume("pv-1").containing(&["nothing is staged"]).message();
        assert_eq!(unexpected_mounts(&volume.device, None), <[String; 0]>::default());
        assert_eq!(running.sh("echo still > /data/file; cat /data/file"), "still");
    }

    fn a_wiped_crust_directory_lets_no_app_write_to_the_host(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        fs::remove_dir_all(volume.handler().crust_root()).unwrap();
        let refused = refusal::create_refused(&volume, &app(&volume, &sandbox, &volume.target));
        let _ = refused.naming_volume("pv-1").containing(&["nothing is staged"]).message();
        assert_eq!(unexpected_entries(&volume.target), <[String; 0]>::default());
    }

    /// The sandbox still has the volume mounted, but the record of this mount was lost with the crust directory.
    fn a_lost_entry_can_be_staged_again_if_it_is_the_same(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let running = volume.app(&sandbox);
        for (options, words) in [
            (&["--read-only"][..], "staged as ext4"),
            (&["--option", "data=journal"], "data=journal"),
        ] {
            fs::remove_dir_all(volume.handler().crust_root()).unwrap();
            let _ = volume.node.stage(POD, "pv-1", &volume.device, options);
            let refused = refusal::create_refused(&volume, &app(&volume, &sandbox, &volume.target)).naming_volume("pv-1");
            let _ = refused.containing(&["has no record", words, "hint: "]).message();
        }
        fs::remove_dir_all(volume.handler().crust_root()).unwrap();
        let _ = volume.try_stage_as("ext3", &volume.target, volume.device.path(), &[]).success();
        let refused = refusal::create_refused(&volume, &app(&volume, &sandbox, &volume.target)).naming_volume("pv-1");
        let _ = refused.containing(&["sandbox as ext4 (rw", "staged as ext3 (rw)"]).message();
        fs::remove_dir_all(volume.handler().crust_root()).unwrap();
        let _ = volume.node.stage(POD, "pv-1", &volume.device, &[]);
        let second = volume.app(&sandbox);
        assert_eq!(running.sh("echo still > /data/file; cat /data/file"), "still");
        assert_eq!(second.sh("cat /data/file"), "still");
    }

    fn unstaged_pass_passes_lost_entries_through(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "unstaged = \"pass\""), &[]);
        let sandbox = volume.sandbox();
        fs::remove_dir_all(volume.entry()).unwrap();
        let app = volume.app(&sandbox);
        let _ = app.sh("echo to the host > /data/file");
        assert_eq!(fs::read_to_string(volume.target.join("file")).unwrap(), "to the host\n");
    }

    fn a_csi_volume_mounted_by_its_driver_is_passed_through(delegate: Delegate) {
        let node = Node::new(delegate);
        let sandbox = node.sandbox("pod-a");
        let target = node.target("pod-a", "pv-1");
        mounts::tmpfs(&target);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("echo hello > /data/file");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "hello\n");
        fs::create_dir(target.join("sub")).unwrap();
        let below = node.app(&sandbox, &target.join("sub"), "/data");
        let _ = below.sh("echo below > /data/file");
        assert_eq!(fs::read_to_string(target.join("sub/file")).unwrap(), "below\n");
    }

    fn a_csi_volume_that_contains_files_is_passed_through(delegate: Delegate) {
        let node = Node::new(delegate);
        let sandbox = node.sandbox("pod-a");
        // Drivers such as secrets-store write files into the directory, and mount nothing.
        let target = node.target("pod-a", "secrets");
        fs::create_dir(target.join("deep")).unwrap();
        fs::write(target.join("deep/token"), "s\n").unwrap();
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("cat /data/deep/token"), "s");
    }

    fn other_volumes_and_directories_are_passed_through(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let _ = node.stage("pod-a", "pv-1", &device, &[]);
        let sandbox = node.sandbox("pod-a");
        let pod = node.handler().kubelet_dir().join("pods/pod-a");
        for source in [
            pod.join("volumes/kubernetes.io~empty-dir/cache"),
            pod.join("volumes/kubernetes.io~csi"),
            node.dir().join("plain"),
        ] {
            fs::create_dir_all(&source).unwrap();
            let app = node.app(&sandbox, &source, "/data");
            let _ = app.sh("ls /data");
        }
    }
}

mod behind_a_link {
    //! kubelet's directory is a symbolic link, and containerd gives the runtime the resolved path.

    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use runcrust_tests::{Delegate, LoopDevice};

    use super::*;

    struct LinkedKubeletDirectory {
        node: Node,
        device: LoopDevice,
        given: PathBuf,
        resolved: PathBuf,
    }

    impl LinkedKubeletDirectory {
        fn new(delegate: Delegate) -> Self {
            let node = Node::with(delegate, "sandbox = \"always\"");
            let real = node.dir().subdir("srv/kubelet");
            symlink("srv/kubelet", node.handler().kubelet_dir()).unwrap();
            let device = node.ext4();
            let given = node.stage("pod-a", "pv-1", &device, &[]);
            let below = given.strip_prefix(node.handler().kubelet_dir()).unwrap();
            Self {
                resolved: real.join(below),
                node,
                device,
                given,
            }
        }
    }

    on_each_delegate! {
        fn the_volume_is_found_by_either_path(delegate: Delegate) {
            let linked = LinkedKubeletDirectory::new(delegate);
            let node = &linked.node;
            let info = |path: &Path| fs::read(node.entry(path).join("mountInfo.json")).unwrap();
            assert_eq!(info(&linked.given), info(&linked.resolved));
            let sandbox = node.sandbox("pod-a");
            let one = node.app(&sandbox, &linked.given, "/data");
            let two = node.app(&sandbox, &linked.resolved.join("sub"), "/data");
            let _ = one.sh("echo hello > /data/sub/file");
            assert_eq!(two.sh("cat /data/file"), "hello");
            assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
            assert_eq!(unexpected_mounts(&linked.device, None), <[String; 0]>::default());
            assert_eq!(unexpected_entries(&linked.given), <[String; 0]>::default());
            for path in [&linked.given, &linked.resolved] {
                let stats = node.stats(path).success();
                assert_eq!(stats.stdout, node.stats(&linked.given).stdout);
            }
        }

        fn a_half_staged_volume_is_refused(delegate: Delegate) {
            let linked = LinkedKubeletDirectory::new(delegate);
            let node = &linked.node;
            let sandbox = node.sandbox("pod-a");
            let missing = node.entry(&linked.given);
            fs::remove_dir_all(&missing).unwrap();
            for source in [&linked.given, &linked.resolved] {
                let refused = refusal::create_refused(node, &app(node, &sandbox, source));
                let _ = refused
                    .naming_volume("pv-1")
                    .containing(&["half staged", missing.to_str().unwrap()])
                    .message();
            }
            let staged = node.try_stage(&linked.given, linked.device.path(), &[]).success();
            assert_eq!(staged.stdout, "{}\n");
            let app = node.app(&sandbox, &linked.resolved, "/data");
            let _ = app.sh("echo hello > /data/file");
            assert_eq!(unexpected_entries(&linked.given), <[String; 0]>::default());
        }

        fn a_resolved_path_with_a_lost_entry_is_refused(delegate: Delegate) {
            let linked = LinkedKubeletDirectory::new(delegate);
            let node = &linked.node;
            let sandbox = node.sandbox("pod-a");
            fs::remove_dir_all(node.entry(&linked.resolved)).unwrap();
            let refused = refusal::create_refused(node, &app(node, &sandbox, &linked.resolved));
            let _ = refused.naming_volume("pv-1").containing(&["staged"]).message();
            let _ = node.try_stage(&linked.given, linked.device.path(), &["nosuid"]).failure();
            let _ = node.try_stage(&linked.given, linked.device.path(), &[]).success();
            let app = node.app(&sandbox, &linked.resolved, "/data");
            let _ = app.sh("echo hello > /data/file");
            assert_eq!(unexpected_entries(&linked.given), <[String; 0]>::default());
        }
    }
}
