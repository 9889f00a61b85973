//! fsGroup, entry by entry: what a pod makes of a generated tree is what a naive walker with
//! kubelet's rules makes of a copy of it, and nothing outside of the volume changes.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use runcrust_tests::node::PATIENCE;
use runcrust_tests::tree::{Outside, Policy, Snapshot, generate, set_volume_ownership};
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{Bundle, Container, LoopDevice, Node, on_each_delegate};

const POD: &str = "11111111-2222-3333-4444-555555555555";
const OTHER_POD: &str = "99999999-8888-7777-6666-555555555555";
const GROUP: u32 = 2000;
const ALWAYS: [&str; 4] = ["--fs-group", "2000", "--fs-group-change-policy", "Always"];
const ON_ROOT_MISMATCH: [&str; 4] = [
    "--fs-group",
    "2000",
    "--fs-group-change-policy",
    "OnRootMismatch",
];
/// Any number makes a tree; with this one every kind of entry is wrong and right somewhere.
const SEED: u64 = 2857;

/// A generated volume and what its links lead to.
struct Scene {
    device: LoopDevice,
    before: Snapshot,
    outside: Outside,
    node: Node,
}

impl Scene {
    fn new(node: Node) -> Self {
        let outside = Outside::new(node.dir());
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            generate(root, &outside, GROUP, SEED);
            set(root, 0, 0, 0o755);
        });
        Self {
            before: snapshot(&device),
            device,
            outside,
            node,
        }
    }

    /// With another root.
    fn with_root(node: Node, gid: u32, mode: u32) -> Self {
        let mut scene = Self::new(node);
        with_mounted(scene.device.path(), |root| set(root, 0, gid, mode));
        scene.before = snapshot(&scene.device);
        scene
    }

    /// What the naive walker makes of a copy of the volume, as it is now.
    fn expected(&self, group: u32, policy: Policy) -> Snapshot {
        let copy = self.node.dir().join("copy.img");
        fs::copy(self.device.file(), &copy).expect("a copy of the device");
        let copy = LoopDevice::on(&copy);
        with_mounted(copy.path(), |root| {
            set_volume_ownership(root, group, policy);
            Snapshot::take(root)
        })
    }

    /// A pod has the volume, from its staging to its unstaging. Returns what is there then.
    #[track_caller]
    fn after_a_pod(&self, options: &[&str]) -> Snapshot {
        let target = self.node.stage(POD, "pv-1", &self.device, options);
        let bundle = self.node.sandbox_bundle(POD).write();
        // A link that was followed in the sandbox would end in its rootfs.
        let inside = rootfs(&bundle);
        let sandbox = self.node.run(&bundle);
        let app = self.node.app(&sandbox, &target, "/data");
        assert_eq!(
            app.sh("test -p /data/special/fifo; echo $?"),
            "0",
            "it is there"
        );
        end([app, sandbox]);
        self.device.wait_until_free(PATIENCE);
        let _ = self.node.unstage(&target).success();
        for (found, expected) in rootfs(&bundle).iter().zip(&inside) {
            found.assert_is(expected);
        }
        self.outside.assert_unchanged();
        fsck_ext4(self.device.path());
        snapshot(&self.device)
    }

    /// A pod makes of the volume what the naive walker makes of it.
    #[track_caller]
    fn assert_walked_as_by_kubelet(&self, group: u32, policy: Policy, options: &[&str]) {
        let expected = self.expected(group, policy).without_change_times();
        let after = self.after_a_pod(options);
        after.clone().without_change_times().assert_is(&expected);
        assert_ne!(
            expected,
            self.before.clone().without_change_times(),
            "there was something to do"
        );
        let right = after.entries().filter(|(path, entry)| {
            let before = self.before.entry(path);
            (before.mode, before.gid) == (entry.mode, entry.gid)
        });
        for (path, entry) in right {
            let before = self.before.entry(path);
            assert_eq!(
                entry.changed, before.changed,
                "{path:?} was right, and is written to"
            );
        }
    }

    /// A pod leaves the volume as it is, to the change times of all inodes.
    #[track_caller]
    fn assert_untouched(&self, options: &[&str]) {
        self.after_a_pod(options).assert_is(&self.before);
    }
}

fn snapshot(device: &LoopDevice) -> Snapshot {
    with_mounted(device.path(), Snapshot::take)
}

/// The parts of a rootfs where no runtime makes a mountpoint.
fn rootfs(bundle: &Bundle) -> [Snapshot; 3] {
    ["bin", "etc/passwd", "etc/group"].map(|part| Snapshot::take(&bundle.rootfs().join(part)))
}

fn set(path: &Path, uid: u32, gid: u32, mode: u32) {
    let changed: io::Result<()> = lchown(path, Some(uid), Some(gid))
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    changed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn end(containers: impl IntoIterator<Item = Container>) {
    for container in containers {
        container.stop();
        let _ = container.delete().success();
    }
}

on_each_delegate! {
    fn always_makes_of_a_tree_what_kubelet_makes_of_it(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        assert!(scene.before.len() > 500, "{} entries", scene.before.len());
        for kind in ['-', 'd', 'l', 'p', 's', 'c', 'b'] {
            assert!(scene.before.entries().any(|(_, entry)| entry.kind == kind), "no {kind}");
        }
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &ALWAYS);
    }

    fn always_is_the_policy_where_none_is_named(delegate: Delegate) {
        // The root is right: OnRootMismatch would leave everything.
        let scene = Scene::with_root(Node::new(delegate), GROUP, 0o2770);
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
        assert_eq!(is("setuid"), expected(1000, "4775"), "a chown takes setuid, and it is restored");
        assert_eq!(is("setgid-file"), expected(1000, "2775"));
        assert_eq!(is("right"), expected(1000, "660"));
        assert_eq!(is("passwd"), expected(1000, "777"), "the link itself");
        // Mode 0, three names: the bits are added once, whichever name comes first.
        assert_eq!(is("hard links/0"), expected(1000, "660"));
        assert_eq!(after.entry("hard links/0").links, 3);
        // Immutable: kubelet fails there and goes on.
        assert_eq!(after.entry("frozen/immutable"), scene.before.entry("frozen/immutable"));
    }

    fn group_0_is_a_group_like_any_other(delegate: Delegate) {
        let scene = Scene::with_root(Node::new(delegate), GROUP, 0o2770);
        scene.assert_walked_as_by_kubelet(0, Policy::Always, &["--fs-group", "0"]);
        // Now the root matches: what is made wrong below it stays wrong.
        with_mounted(scene.device.path(), |root| set(&root.join("deep/d"), 7, 7, 0o700));
        let before = snapshot(&scene.device);
        let on_root_mismatch = ["--fs-group", "0", "--fs-group-change-policy", "OnRootMismatch"];
        scene.after_a_pod(&on_root_mismatch).assert_is(&before);
    }

    fn on_root_mismatch_leaves_all_as_it_is_below_a_root_that_matches(delegate: Delegate) {
        let scene = Scene::with_root(Node::new(delegate), GROUP, 0o2770);
        let wrong = scene.before.entries().filter(|(_, entry)| entry.gid != GROUP);
        assert!(wrong.count() > 100, "there would be something to do");
        scene.assert_untouched(&ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_does_not_mind_more_bits_than_needed(delegate: Delegate) {
        Scene::with_root(Node::new(delegate), GROUP, 0o3777).assert_untouched(&ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_where_the_roots_group_is_wrong(delegate: Delegate) {
        let scene = Scene::with_root(Node::new(delegate), GROUP + 1, 0o2770);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_where_the_root_lacks_a_bit_for_the_group(delegate: Delegate) {
        let scene = Scene::with_root(Node::new(delegate), GROUP, 0o2750);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_where_the_root_lacks_a_bit_for_the_owner(delegate: Delegate) {
        let scene = Scene::with_root(Node::new(delegate), GROUP, 0o2670);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn on_root_mismatch_walks_where_the_root_is_not_setgid(delegate: Delegate) {
        let scene = Scene::with_root(Node::new(delegate), GROUP, 0o777);
        scene.assert_walked_as_by_kubelet(GROUP, Policy::OnRootMismatch, &ON_ROOT_MISMATCH);
    }

    fn without_fs_group_nothing_changes(delegate: Delegate) {
        Scene::new(Node::new(delegate)).assert_untouched(&[]);
    }

    fn a_read_only_volume_keeps_every_byte(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let bytes = fs::read(scene.device.file()).unwrap();
        let target = scene.node.stage(POD, "pv-1", &scene.device, &["--fs-group", "2000", "--read-only"]);
        let sandbox = scene.node.sandbox(POD);
        let app = scene.node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("touch /data/new 2>/dev/null || stat -c %g /data"), "0");
        end([app, sandbox]);
        scene.device.wait_until_free(PATIENCE);
        // Not assert_eq: nobody wants to read 32 MiB.
        assert!(fs::read(scene.device.file()).unwrap() == bytes, "the device was written to");
        scene.outside.assert_unchanged();
        snapshot(&scene.device).assert_is(&scene.before);
    }

    fn what_a_pod_changes_later_stays_until_another_pod_comes(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        with_mounted(device.path(), |root| fs::write(root.join("file"), "").unwrap());
        let target = node.stage(POD, "pv-1", &device, &ALWAYS);
        let sandbox = node.sandbox(POD);
        let first = node.app(&sandbox, &target, "/data");
        let look = "stat -c %g:%a /data/file";
        assert_eq!(first.sh(look), "2000:664");
        let _ = first.sh("chgrp 7 /data/file; chmod 600 /data/file");

        let second = node.app(&sandbox, &target, "/data");
        assert_eq!(second.sh(look), "7:600", "another app of the pod");
        end([second, sandbox]);
        assert!(first.is_alive(), "an app outlives its sandbox");
        let sandbox = node.sandbox(POD);
        let third = node.app(&sandbox, &target, "/data");
        assert_eq!(third.sh(look), "7:600", "another sandbox of the pod, whose data is live");

        let others_target = node.stage(OTHER_POD, "pv-1", &device, &ALWAYS);
        let others_sandbox = node.sandbox(OTHER_POD);
        assert_eq!(first.sh(look), "2000:660", "another pod gets its own walk");
        let other = node.app(&others_sandbox, &others_target, "/data");
        assert_eq!(other.sh(look), "2000:660");
        end([first, third, other, sandbox, others_sandbox]);
        device.wait_until_free(PATIENCE);
        fsck_ext4(device.path());
    }

    fn pods_with_one_target_path_get_a_walk_each(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        with_mounted(device.path(), |root| fs::write(root.join("file"), "").unwrap());
        // In no pod's directory: it may be anybody's.
        let target = node.dir().subdir("shared");
        let _ = node.try_stage(&target, device.path(), &ALWAYS).success();
        let look = "stat -c %g:%a /data/file";
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("chgrp 7 /data/file; chmod 600 /data/file");
        let again = node.app(&sandbox, &target, "/data");
        assert_eq!(again.sh(look), "7:600", "another app of the pod");
        let others_sandbox = node.sandbox(OTHER_POD);
        let other = node.app(&others_sandbox, &target, "/data");
        assert_eq!(other.sh(look), "2000:660", "another pod");
        end([app, again, other, sandbox, others_sandbox]);
        device.wait_until_free(PATIENCE);
    }

    fn each_pod_gets_its_own_group(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        scene.assert_walked_as_by_kubelet(GROUP, Policy::Always, &ALWAYS);
        let expected = scene.expected(3000, Policy::Always).without_change_times();
        let after = scene.after_a_pod(&["--fs-group", "3000"]);
        after.without_change_times().assert_is(&expected);
    }
}
