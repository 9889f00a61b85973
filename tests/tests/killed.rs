//! A create that is killed at any of its steps, in runcrust or in a hook, leaves nothing that the
//! next create of the same bundle minds, and nothing on the host.

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::container::end;
use runcrust_tests::interrupt::create_killed_at;
use runcrust_tests::node::PATIENCE;
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{Bundle, Container, LoopDevice, Node, host, on_each_delegate};

const POD: &str = "99999999-2222-1111-4444-555555555555";

/// What runcrust and its hooks change something with, in no order: records and configs, the file
/// system, the views of it, the namespaces; and the delegate's exec.
const STEPS: [&str; 8] = [
    "renameat",
    "fsopen",
    "fsmount",
    "setns",
    "unshare",
    "open_tree",
    "move_mount",
    "execve",
];

/// A node with a device that creates are killed over.
struct Scene {
    node: Node,
    device: LoopDevice,
}

impl Scene {
    fn new(node: Node) -> Self {
        let device = node.ext4();
        Self { node, device }
    }

    fn stage(&self) -> PathBuf {
        let options = ["--fs-group", "4242"];
        self.node.stage(POD, "pv-1", &self.device, &options)
    }

    /// Kills creates of bundles that `make` gives at each of the steps, until one isn't killed any
    /// more, and creates each again, for `works` to see; how many that were.
    fn kill_everywhere(&self, make: impl Fn() -> Bundle, works: impl Fn(&Container)) -> usize {
        let mut killed = 0;
        for step in STEPS {
            for nth in 1.. {
                let bundle = make();
                let container = self.node.container(&bundle);
                let created = create_killed_at(&container, step, nth);
                let mounts = self.device.host_mounts();
                assert_eq!(mounts, Vec::<String>::new(), "killed at {step} {nth}");
                if created {
                    end([container]);
                    break;
                }
                // What the delegate left of it, killed or not, is its own.
                drop(container);
                let again = self.node.run(&bundle);
                works(&again);
                end([again]);
                killed += 1;
            }
        }
        killed
    }

    /// The device is whole, each container's line is on it, and nobody has a record of anything.
    fn assert_nothing_left(&self, target: &Path, lines: usize) {
        self.device.wait_until_free(PATIENCE);
        let _ = self.node.unstage(target).success();
        fsck_ext4(self.device.path());
        let file = with_mounted(self.device.path(), |root| {
            fs::read_to_string(root.join("file")).unwrap()
        });
        assert_eq!(file.lines().count(), lines);
        assert_eq!(
            fs::read_dir(target).unwrap().count(),
            0,
            "nothing stands on the host"
        );
        let state = self.node.handler().state_dir();
        assert_eq!(host::mounts_below(&state), Vec::<PathBuf>::new());
        // What was being written when its writer was killed has a name that nobody reads.
        let is_record = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default();
            !name.as_encoded_bytes().starts_with(b".")
        };
        let records: Vec<PathBuf> = self.node.records().into_iter().filter(is_record).collect();
        assert_eq!(records, Vec::<PathBuf>::new());
    }
}

fn writes_a_line(container: &Container) {
    let _ = container.sh("echo x >> /data/file");
}

on_each_delegate! {
    fn a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let node = &scene.node;
        let works = |sandbox: &Container| {
            let app = node.app(sandbox, &target, "/data");
            writes_a_line(&app);
            end([app]);
        };
        let killed = scene.kill_everywhere(|| node.sandbox_bundle(POD).write(), works);
        scene.assert_nothing_left(&target, killed);
    }

    fn a_container_in_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "sandbox = \"always\""));
        let sandbox = scene.node.sandbox(POD);
        // Only now, so that each container finds it unmounted until one was created.
        let target = scene.stage();
        let make = || scene.node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let killed = scene.kill_everywhere(make, writes_a_line);
        end([sandbox]);
        scene.assert_nothing_left(&target, killed);
    }

    fn a_container_without_a_sandbox(delegate: Delegate) {
        let scene = Scene::new(Node::new(delegate));
        let target = scene.stage();
        let make = || Bundle::plain(scene.node.dir()).bind(&target, "/data", &[]).write();
        let killed = scene.kill_everywhere(make, writes_a_line);
        scene.assert_nothing_left(&target, killed);
    }

    fn a_container_whose_hook_mounts(delegate: Delegate) {
        let scene = Scene::new(Node::with(delegate, "mount_mode = \"hook\""));
        let target = scene.stage();
        let make = || {
            let bundle = Bundle::plain(scene.node.dir()).bind(&target, "/data", &[]).write();
            fs::create_dir(bundle.rootfs().join("data")).unwrap();
            bundle
        };
        let killed = scene.kill_everywhere(make, writes_a_line);
        scene.assert_nothing_left(&target, killed);
    }
}
