//! A node with two staged volumes that containers reach by several paths.

use std::fs;
use std::path::{Path, PathBuf};

use crate::node::{WAIT_TIMEOUT, utf8};
use crate::refusal::{self, unexpected_entries};
use crate::volume::with_mounted;
use crate::{Bundle, Delegate, LoopDevice, Node, POD, mounts};

/// A node with a CSI volume of [`POD`], and one that was staged by hand at a path of no particular form. Each has a
/// file `mark` that says `volume` and a file `sub/mark` that says `sub`; of these the host has an empty
/// directory `sub`, as kubelet makes it for a subPath.
#[derive(Debug)]
pub struct StagedPair {
    /// The CSI volume's target path.
    pub csi: PathBuf,
    /// The other volume's target path.
    pub plain: PathBuf,
    /// The devices of `csi` and of `plain`.
    pub devices: [LoopDevice; 2],
    /// The node.
    pub node: Node,
}

impl StagedPair {
    /// A script that tells which directory a container has at `/data`, by its mark, and whether it can write
    /// there: `written` or `refused`.
    pub const PROBE_SCRIPT: &str = "cat /data/mark; if (echo x > /data/file) 2>/dev/null; \
        then rm /data/file; echo written; else echo refused; fi";

    /// Makes the file systems and stages both volumes.
    pub fn new(delegate: Delegate) -> Self {
        let node = Node::new(delegate);
        let devices = [node.ext4(), node.ext4()];
        for device in &devices {
            with_mounted(device.path(), |root| {
                fs::create_dir(root.join("sub")).unwrap();
                fs::write(root.join("mark"), "volume\n").unwrap();
                fs::write(root.join("sub/mark"), "sub\n").unwrap();
            });
        }
        let csi = node.stage(POD, "pv-1", &devices[0], &[]);
        let plain = node.dir().subdir("staged");
        let _ = node.try_stage(&plain, devices[1].path(), &[]).success();
        for target in [&csi, &plain] {
            fs::create_dir(target.join("sub")).unwrap();
        }
        Self {
            csi,
            plain,
            devices,
            node,
        }
    }

    /// Binds a directory on one of that name in the test's directory, as engines do, and returns that.
    pub fn bind(&self, name: &str, of: &Path) -> PathBuf {
        let bind = self.node.dir().subdir(name);
        mounts::bind(of, &bind);
        bind
    }

    /// A plain bundle with `source` at `/data`.
    pub fn bundle(&self, source: &Path, options: &[&str]) -> Bundle {
        Bundle::plain(self.node.dir()).bind(source, "/data", options)
    }

    /// Runs a container with `source` at `/data`, which must have this mark and be writable.
    #[track_caller]
    pub fn assert_serves(&self, source: &Path, mark: &str) {
        let app = self.node.run(&self.bundle(source, &[]).write());
        let seen =
            app.sh("cat /data/mark; echo x > /data/written; cat /data/written; rm /data/written");
        assert_eq!(seen, format!("{mark}\nx"), "{}", source.display());
        self.assert_nothing_on_the_host();
    }

    /// Creates a container that must be refused because of `plain`, by a sentence that has each of `wanted`.
    #[track_caller]
    pub fn assert_refuses(&self, bundle: Bundle, wanted: &[&str]) {
        let volume = utf8(&self.plain);
        let refused = refusal::create_refused(&self.node, &bundle.write()).naming_volume(volume);
        let _ = refused
            .containing(&[wanted, &["hint: "]].concat())
            .message();
        self.assert_nothing_on_the_host();
    }

    /// Checks that nothing but `sub` stands in the volumes' directories on the host.
    #[track_caller]
    pub fn assert_nothing_on_the_host(&self) {
        for target in [&self.csi, &self.plain] {
            assert_eq!(
                unexpected_entries(&target.join("sub")),
                <[String; 0]>::default()
            );
            assert_eq!(unexpected_entries(target).len(), 1, "sub alone");
        }
    }
    /// Unstages both volumes after the last container.
    #[track_caller]
    pub fn end(&self) {
        self.assert_nothing_on_the_host();
        for device in &self.devices {
            device.wait_until_free(WAIT_TIMEOUT);
        }
        self.node.unstage_all(&[&self.csi, &self.plain]);
    }
}
