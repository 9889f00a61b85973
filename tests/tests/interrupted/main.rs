//! Creates that end at some step of theirs.

mod failing;
mod killed;

use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::container::end;
use runcrust_tests::node::PATIENCE;
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{Bundle, Container, LoopDevice, Node, host};

const POD: &str = "99999999-2222-1111-4444-555555555555";

/// A node with a device.
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

    /// Has `create` end at the first, second, … of its steps, each time with a bundle of `make`'s,
    /// until one doesn't; creates each again, for `works` to see. How many that were.
    fn at_each(
        &self,
        step: &str,
        create: impl Fn(&Container, usize) -> bool,
        make: impl Fn() -> Bundle,
        works: impl Fn(&Container),
    ) -> usize {
        let mut nth = 1;
        loop {
            let bundle = make();
            let container = self.node.container(&bundle);
            let created = create(&container, nth);
            let mounts = self.device.host_mounts();
            assert_eq!(mounts, Vec::<String>::new(), "at {step} {nth}");
            if created {
                end([container]);
                return nth - 1;
            }
            // What the delegate left of it is its own.
            drop(container);
            let again = self.node.run(&bundle);
            works(&again);
            end([again]);
            nth += 1;
        }
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
