//! A volume with generated files, before and after it was used by a pod.

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
/// Any seed makes a tree. With this one each kind of file exists with and without the right group and mode.
const SEED: u64 = 2857;

/// A volume with generated files, and the files outside of it that its links lead to.
pub(crate) struct Scene {
    pub(crate) device: LoopDevice,
    pub(crate) before: Snapshot,
    pub(crate) outside: OutsideFiles,
    pub(crate) node: Node,
}

impl Scene {
    /// Returns a scene with an ext4.
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

    /// Adds data to the volume.
    pub(crate) fn with_data(mut self, work: impl FnOnce(&Path) + Send) -> Self {
        with_mounted(self.device.path(), work);
        self.before = snapshot(&self.device);
        self
    }

    /// Sets group and mode of the volume's root.
    pub(crate) fn with_root(self, gid: u32, mode: u32) -> Self {
        self.with_data(|root| set(root, 0, gid, mode))
    }

    /// Returns what the simple implementation makes of a copy of the volume.
    pub(crate) fn expected(&self, group: u32, policy: Policy) -> Snapshot {
        let copy = self.node.dir().join("copy.img");
        fs::copy(self.device.file(), &copy).expect("a copy of the device");
        let copy = LoopDevice::on(&copy);
        with_mounted(copy.path(), |root| {
            set_volume_ownership(root, group, policy);
            Snapshot::take(root)
        })
    }

    /// Stages the volume, runs a pod with it, unstages it, and returns the files.
    #[track_caller]
    pub(crate) fn after_a_pod(&self, options: &[&str]) -> Snapshot {
        let target = self.node.stage(POD, "pv-1", &self.device, options);
        let bundle = self.node.sandbox_bundle(POD).write();
        // A link that is followed in the sandbox would change files of its rootfs.
        let inside = rootfs(&bundle);
        let sandbox = self.node.run(&bundle);
        let app = self.node.app(&sandbox, &target, "/data");
        assert_eq!(
            app.sh("test -p /data/special/fifo; echo $?"),
            "0",
            "a file of the volume is missing"
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

    /// Asserts that a pod changes the same files in the same way as the simple implementation, and writes to no other.
    #[track_caller]
    pub(crate) fn assert_walked_as_by_kubelet(&self, group: u32, policy: Policy, options: &[&str]) {
        let expected = self.expected(group, policy).without_change_times();
        let after = self.after_a_pod(options);
        after.clone().without_change_times().assert_is(&expected);
        assert_ne!(
            expected,
            self.before.clone().without_change_times(),
            "the simple implementation changed nothing"
        );
        let unchanged = after.entries().filter(|(path, entry)| {
            let before = self.before.entry(path);
            (before.mode, before.gid) == (entry.mode, entry.gid)
        });
        for (path, entry) in unchanged {
            let before = self.before.entry(path);
            assert_eq!(
                entry.changed, before.changed,
                "{path:?} was written to, although it was right"
            );
        }
    }

    /// Asserts that a pod changes nothing, including the change times of all inodes.
    #[track_caller]
    pub(crate) fn assert_untouched(&self, options: &[&str]) {
        self.after_a_pod(options).assert_is(&self.before);
    }
}

pub(crate) fn snapshot(device: &LoopDevice) -> Snapshot {
    with_mounted(device.path(), Snapshot::take)
}

/// Returns the parts of a rootfs in which no runtime creates mountpoints.
fn rootfs(bundle: &Bundle) -> [Snapshot; 3] {
    ["bin", "etc/passwd", "etc/group"].map(|part| Snapshot::take(&bundle.rootfs().join(part)))
}

pub(crate) fn set(path: &Path, uid: u32, gid: u32, mode: u32) {
    let changed: io::Result<()> = lchown(path, Some(uid), Some(gid))
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    changed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
