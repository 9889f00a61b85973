//! kubelet's rules for fsGroup, on ext4.

use std::fs;

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::Policy;
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{Node, POD, StagedVolume, on_each_delegate};

use crate::scene::{ALWAYS, GROUP, ON_ROOT_MISMATCH, OTHER_POD, Scene, set, snapshot};

on_each_delegate! {
    fn always_changes_what_kubelet_would(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        assert!(scene.before.len() > 500, "{} entries", scene.before.len());
        for kind in ['-', 'd', 'l', 'p', 's', 'c', 'b'] {
            assert!(scene.before.entries().any(|(_, entry)| entry.kind == kind), "no {kind}");
        }
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &ALWAYS);
    }

    fn always_is_the_default_policy(delegate: Delegate) {
        // The root matches, so OnRootMismatch would change nothing.
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP, 0o2770);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &["--fs-group", "2000"]);
    }

    fn each_kind_of_entry_gets_the_group_and_its_bits(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let after = scene.after_a_pod(&ALWAYS);
        let is = |path: &str| {
            let entry = after.entry(path);
            (entry.uid, entry.gid, format!("{:o}", entry.mode))
        };
        let expected = |uid, mode: &str| (uid, GROUP, mode.to_owned());
        assert_eq!(is(""), expected(0, "2775"));
        assert_eq!(is("setuid"), expected(1000, "4775"), "a chown clears setuid, so it has to be restored");
        assert_eq!(is("setgid-file"), expected(1000, "2775"));
        assert_eq!(is("right"), expected(1000, "660"));
        assert_eq!(is("passwd"), expected(1000, "777"), "the link itself changes");
        assert_eq!(is("lost+found"), expected(0, "2770"), "kubelet changes it, too");
        // A file with mode 0 and three hard links: the bits are added once, whichever link is walked first.
        assert_eq!(is("hard links/0"), expected(1000, "660"));
        assert_eq!(after.entry("hard links/0").links, 3);
        // For an immutable file kubelet's call fails, and kubelet continues.
        assert_eq!(after.entry("frozen/immutable"), scene.before.entry("frozen/immutable"));
    }

    fn group_0_is_applied_like_any_other(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP, 0o2770);
        scene.assert_walked_as_by_kubelet(0, Policy::Always, &["--fs-group", "0"]);
        // Now the root matches, so a later change below it stays.
        with_mounted(scene.device.path(), |root| set(&root.join("deep/d"), 7, 7, 0o700));
        let before = snapshot(&scene.device);
        let on_root_mismatch = ["--fs-group", "0", "--fs-group-change-policy", "OnRootMismatch"];
        scene.after_a_pod(&on_root_mismatch).assert_is(&before);
    }

    fn on_root_mismatch_changes_nothing_below_a_matching_root(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP, 0o2770);
        let wrong = scene.before.entries().filter(|(_, entry)| entry.gid != GROUP);
        assert!(wrong.count() > 100, "too few files lack the group");
        scene.assert_untouched(&ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_accepts_additional_mode_bits(delegate: Delegate) {
        Scene::new(Node::new(delegate)).with_root(GROUP, 0o3777).assert_untouched(&ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_if_the_roots_group_differs(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP + 1, 0o2770);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_if_the_root_lacks_a_group_bit(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP, 0o2750);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_if_the_root_lacks_an_owner_bit(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP, 0o2670);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_if_the_root_is_not_setgid(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate)).with_root(GROUP, 0o777);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn without_fs_group_nothing_changes(delegate: Delegate) {
        Scene::new(Node::new(delegate)).assert_untouched(&[]);
    }

    fn a_read_only_volume_is_not_written_to(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let bytes = fs::read(scene.device.file()).unwrap();
        let options = ["--fs-group", "2000", "--option", "ro"];
        let target = scene.node.stage(POD, "pv-1", &scene.device, &options);
        let sandbox = scene.node.sandbox(POD);
        let app = scene.node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("touch /data/new 2>/dev/null || stat -c %g /data"), "0");
        end([app, sandbox]);
        scene.device.wait_until_free(WAIT_TIMEOUT);
        // assert_eq would print 32 MiB.
        assert!(fs::read(scene.device.file()).unwrap() == bytes, "the device was written to");
        scene.outside.assert_unchanged();
        snapshot(&scene.device).assert_is(&scene.before);
    }

    fn fsgroup_is_applied_once_for_each_pod(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| fs::write(root.join("file"), "").unwrap());
        let volume = StagedVolume::on_device(node, device, &ALWAYS);
        let sandbox = volume.sandbox();
        let first = volume.app(&sandbox);
        let stat = "stat -c %g:%a /data/file";
        assert_eq!(first.sh(stat), "2000:664");
        let _ = first.sh("chgrp 7 /data/file; chmod 600 /data/file");

        let second = volume.app(&sandbox);
        assert_eq!(second.sh(stat), "7:600", "in another app of the pod");
        end([second, sandbox]);
        assert!(first.is_alive(), "the app did not survive its sandbox");
        let sandbox = volume.sandbox();
        let third = volume.app(&sandbox);
        assert_eq!(third.sh(stat), "7:600", "in another sandbox of the pod, while the data is in use");

        let others_target = volume.node.stage(OTHER_POD, "pv-1", &volume.device, &ALWAYS);
        let others_sandbox = volume.node.sandbox(OTHER_POD);
        assert_eq!(first.sh(stat), "2000:660", "after another pod's walk");
        let other = volume.node.app(&others_sandbox, &others_target, "/data");
        assert_eq!(other.sh(stat), "2000:660");
        end([first, third, other, sandbox, others_sandbox]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        fsck_ext4(volume.device.path());
    }

    fn fsgroup_is_applied_for_each_pod_of_a_shared_target_path(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        with_mounted(device.path(), |root| fs::write(root.join("file"), "").unwrap());
        // The target path is in no pod's directory, so any pod may use it.
        let target = node.dir().subdir("shared");
        let _ = node.try_stage(&target, device.path(), &ALWAYS).success();
        let stat = "stat -c %g:%a /data/file";
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("chgrp 7 /data/file; chmod 600 /data/file");
        let second = node.app(&sandbox, &target, "/data");
        assert_eq!(second.sh(stat), "7:600", "in another app of the pod");
        let others_sandbox = node.sandbox(OTHER_POD);
        let other = node.app(&others_sandbox, &target, "/data");
        assert_eq!(other.sh(stat), "2000:660", "in another pod");
        end([app, second, other, sandbox, others_sandbox]);
        device.wait_until_free(WAIT_TIMEOUT);
    }

    fn each_pod_gets_its_own_group(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &ALWAYS);
        let expected = scene.expected(3000, Policy::Always).without_change_times();
        let after = scene.after_a_pod(&["--fs-group", "3000"]);
        after.without_change_times().assert_is(&expected);
    }
}
