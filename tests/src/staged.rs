//! A node with two staged volumes, for tests in which containers reach a volume by several paths.

use std::fs;
use std::path::{Path, PathBuf};

use crate::node::{WAIT_TIMEOUT, utf8};
use crate::refusal::{self, unexpected_entries};
use crate::volume::with_mounted;
use crate::{Bundle, Delegate, LoopDevice, Node, POD, mounts};

/// A node with a CSI volume of [`POD`], and a volume that was staged by hand at an arbitrary path. Each has a file
/// `mark` with the content `volume`, and a file `sub/mark` with the content `sub`. On the host both target paths have
/// an empty directory `sub`, as kubelet creates it for a subPath.
#[derive(Debug)]
pub struct StagedPair {
    pub csi: PathBuf,
    /// The target path of the volume that was staged by hand.
    pub plain: PathBuf,
    /// The devices of `csi` and of `plain`.
    pub devices: [LoopDevice; 2],
    pub node: Node,
}

impl StagedPair {
    /// A script that prints the mark of the directory at `/data`, and whether it is writable: `written` or `refused`.
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

    /// Binds a directory to one with this name in the test's directory, as engines do, and returns its path.
    pub fn bind(&self, name: &str, of: &Path) -> PathBuf {
        let bind = self.node.dir().subdir(name);
        mounts::bind(of, &bind);
        bind
    }

    /// Returns a plain bundle with `source` at `/data`. The bundle is not written yet.
    pub fn bundle(&self, source: &Path, options: &[&str]) -> Bundle {
        Bundle::plain(self.node.dir()).bind(source, "/data", options)
    }

    /// Runs a container with `source` at `/data`. Checks that it has this mark and is writable, and that no files
    /// appear on the host.
    #[track_caller]
    pub fn assert_serves(&self, source: &Path, mark: &str) {
        let app = self.node.run(&self.bundle(source, &[]).write());
        let seen =
            app.sh("cat /data/mark; echo x > /data/written; cat /data/written; rm /data/written");
        assert_eq!(seen, format!("{mark}\nx"), "{}", source.display());
        self.assert_nothing_on_the_host();
    }

    /// Creates a container, which must be refused because of `plain`, and checks that the message contains each of
    /// `wanted` and a hint.
    #[track_caller]
    pub fn assert_refuses(&self, bundle: Bundle, wanted: &[&str]) {
        let volume = utf8(&self.plain);
        let refused = refusal::create_refused(&self.node, &bundle.write()).naming_volume(volume);
        let _ = refused
            .containing(&[wanted, &["hint: "]].concat())
            .message();
        self.assert_nothing_on_the_host();
    }

    /// Checks that the volumes' directories on the host contain only `sub`.
    #[track_caller]
    pub fn assert_nothing_on_the_host(&self) {
        for target in [&self.csi, &self.plain] {
            assert_eq!(
                unexpected_entries(&target.join("sub")),
                <[String; 0]>::default()
            );
            assert_eq!(unexpected_entries(target).len(), 1, "only sub exists");
        }
    }

    /// Unstages both volumes after the last container has ended, and checks that no record and no file on the host is
    /// left.
    #[track_caller]
    pub fn end(&self) {
        self.assert_nothing_on_the_host();
        for device in &self.devices {
            device.wait_until_free(WAIT_TIMEOUT);
        }
        self.node.unstage_all(&[&self.csi, &self.plain]);
    }
}
