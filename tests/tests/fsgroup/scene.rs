//! A generated volume, before and after a pod.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::Path;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::tree::{OutsideFiles, Policy, Snapshot, generate, set_volume_ownership};
use runcrust_tests::volume::{fsck, with_mounted};
use runcrust_tests::{Bundle, LoopDevice, Node, POD};

pub(crate) const OTHER_POD: &str = "99999999-8888-7777-6666-555555555555";
pub(crate) const GROUP: u32 = 2000;
pub(crate) const ALWAYS: [&str; 4] = ["--fs-group", "2000", "--fs-group-change-policy", "Always"];
pub(crate) const ON_ROOT_MISMATCH: [&str; 4] = [
    "--fs-group",
    "2000",
    "--fs-group-change-policy",
    "OnRootMismatch",
];
/// Any number makes a tree; with this one every kind of entry is wrong and right somewhere.
const SEED: u64 = 2857;

/// A generated volume and what its links lead to.
pub(crate) struct Scene {
    pub(crate) device: LoopDevice,
    pub(crate) before: Snapshot,
    pub(crate) outside: OutsideFiles,
    pub(crate) node: Node,
}

impl Scene {
    /// On an ext4.
    pub(crate) fn new(node: Node) -> Self {
        Self::on("ext4", node)
    }

    pub(crate) fn on(fstype: &'static str, node: Node) -> Self {
        let outside = OutsideFiles::new(node.dir());
        let device = node.formatted(fstype);
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

    /// With more in it.
    pub(crate) fn and(mut self, work: impl FnOnce(&Path) + Send) -> Self {
        with_mounted(self.device.path(), work);
        self.before = snapshot(&self.device);
        self
    }

    /// With another root.
    pub(crate) fn with_root(self, gid: u32, mode: u32) -> Self {
        self.and(|root| set(root, 0, gid, mode))
    }

    /// What the naive walker makes of a copy of the volume, as it is now.
    pub(crate) fn expected(&self, group: u32, policy: Policy) -> Snapshot {
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
    pub(crate) fn after_a_pod(&self, options: &[&str]) -> Snapshot {
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
        app.end();
        sandbox.end();
        self.device.wait_until_free(WAIT_TIMEOUT);
        let _ = self.node.unstage(&target).success();
        for (found, expected) in rootfs(&bundle).iter().zip(&inside) {
            found.assert_is(expected);
        }
        self.outside.assert_unchanged();
        fsck(self.device.fstype(), self.device.path());
        snapshot(&self.device)
    }

    /// A pod makes of the volume what the naive walker makes of it.
    #[track_caller]
    pub(crate) fn assert_walked_as_by_kubelet(&self, group: u32, policy: Policy, options: &[&str]) {
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
    pub(crate) fn assert_untouched(&self, options: &[&str]) {
        self.after_a_pod(options).assert_is(&self.before);
    }
}

pub(crate) fn snapshot(device: &LoopDevice) -> Snapshot {
    with_mounted(device.path(), Snapshot::take)
}

/// The parts of a rootfs where no runtime makes a mountpoint.
fn rootfs(bundle: &Bundle) -> [Snapshot; 3] {
    ["bin", "etc/passwd", "etc/group"].map(|part| Snapshot::take(&bundle.rootfs().join(part)))
}

pub(crate) fn set(path: &Path, uid: u32, gid: u32, mode: u32) {
    let changed: io::Result<()> = lchown(path, Some(uid), Some(gid))
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    changed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
