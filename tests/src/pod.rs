//! A pod with one volume.

use std::path::{Path, PathBuf};

use crate::{Container, LoopDevice, Node};

/// The running sandbox of a pod, and the target path of its volume.
#[derive(Debug)]
pub struct Pod<'a> {
    node: &'a Node,
    pub target: PathBuf,
    pub sandbox: Container,
    pub uid: String,
}

impl<'a> Pod<'a> {
    /// Stages a volume on the device with these options, and starts the pod's sandbox.
    #[track_caller]
    pub fn new(node: &'a Node, uid: &str, device: &LoopDevice, options: &[&str]) -> Self {
        Self::with_staged_volume(node, uid, node.stage(uid, "pv-1", device, options))
    }

    /// Starts the sandbox of a pod whose volume is already staged as `pv-1`.
    #[track_caller]
    pub fn with_staged_volume(node: &'a Node, uid: &str, target: PathBuf) -> Self {
        Self {
            sandbox: node.sandbox(uid),
            uid: uid.to_owned(),
            target,
            node,
        }
    }

    /// Starts an app that has the volume at `/data`.
    #[track_caller]
    pub fn app(&self) -> Container {
        self.node.app(&self.sandbox, &self.target, "/data")
    }

    /// Tries to create an app, which must fail without leaving anything, and returns the error.
    #[track_caller]
    pub fn expect_refusal(&self) -> String {
        let bundle = self.node.app_bundle(&self.sandbox);
        let app = self
            .node
            .container(&bundle.bind(&self.target, "/data", &[]).write());
        let before = self.node.records();
        let _ = app.create().failure();
        let lines = app.log_lines();
        let [line] = lines.as_slice() else {
            panic!("not one line in the log: {lines:?}");
        };
        assert_eq!(line.level, "error");
        assert!(line.msg.contains("volume pv-1: "), "{}", line.msg);
        assert_eq!(self.node.records(), before, "{}", line.msg);
        assert_eq!(app.state(), None);
        let entry = self.node.entry(&self.target);
        for file in ["runcrust.json", "runtime-cli"] {
            assert!(
                !entry.join(file).exists(),
                "{file}, though the volume isn't in use"
            );
        }
        line.msg.clone()
    }

    /// Tries to create an app, and checks that the error names the pod that holds the device.
    #[track_caller]
    pub fn expect_refusal_naming(&self, holder: &Pod<'_>) -> String {
        let sentence = self.expect_refusal();
        for name in [holder.sandbox.id(), &holder.uid] {
            assert!(sentence.contains(name), "{name} is missing in: {sentence}");
        }
        sentence
    }

    /// Returns whether the device is mounted in the sandbox.
    pub fn has(&self, device: &LoopDevice) -> bool {
        !device.mounts_of(self.sandbox.pid()).is_empty()
    }

    /// Returns the attributes of the device's mount in the sandbox.
    #[track_caller]
    pub fn attributes(&self, device: &LoopDevice) -> String {
        let mounts = device.mounts_of(self.sandbox.pid());
        let attributes = mounts.first().and_then(|line| line.split(' ').nth(5));
        attributes
            .expect("the device is mounted in the sandbox")
            .to_owned()
    }

    /// Stops and deletes the apps and then the sandbox.
    #[track_caller]
    pub fn end(&self, apps: impl IntoIterator<Item = Container>) {
        for app in apps {
            app.end();
        }
        self.sandbox.end();
    }

    /// Checks that the target path is empty on the host.
    #[track_caller]
    pub fn assert_target_empty(&self) {
        assert_empty(&self.target);
    }
}

#[track_caller]
fn assert_empty(directory: &Path) {
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
}
