//! Pods whose volume is on a shared device.

use std::path::{Path, PathBuf};

use runcrust_tests::{Container, LoopDevice, Node, host};

/// A pod's sandbox, its volume's target path and its one app, if it got one.
pub(crate) struct Pod<'a> {
    node: &'a Node,
    pub(crate) target: PathBuf,
    pub(crate) sandbox: Container,
    pub(crate) uid: String,
}

impl<'a> Pod<'a> {
    /// A pod with a volume on the device, staged with these options, and a running sandbox.
    #[track_caller]
    pub(crate) fn new(node: &'a Node, uid: &str, device: &LoopDevice, options: &[&str]) -> Self {
        Self {
            target: node.stage(uid, "pv-1", device, options),
            sandbox: node.sandbox(uid),
            uid: uid.to_owned(),
            node,
        }
    }

    /// An app with the volume at `/data`.
    #[track_caller]
    pub(crate) fn app(&self) -> Container {
        self.node.app(&self.sandbox, &self.target, "/data")
    }

    /// The app isn't created, and leaves no trace; the sentence that says why.
    #[track_caller]
    pub(crate) fn refused(&self) -> String {
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

    /// The sentence names the pod that has the device.
    #[track_caller]
    pub(crate) fn refused_for(&self, holder: &Pod<'_>) -> String {
        let sentence = self.refused();
        for name in [holder.sandbox.id(), &holder.uid] {
            assert!(sentence.contains(name), "{name} isn't in: {sentence}");
        }
        sentence
    }

    /// Whether the device is mounted in the sandbox.
    pub(crate) fn has(&self, device: &LoopDevice) -> bool {
        let mounts = host::mounts_of(self.sandbox.pid());
        mounts.iter().any(|mount| mount.device == device.number())
    }

    /// The attributes of the device's mount in the sandbox.
    #[track_caller]
    pub(crate) fn attributes(&self, device: &LoopDevice) -> String {
        let mounts = host::mounts_of(self.sandbox.pid());
        let mount = mounts.iter().find(|mount| mount.device == device.number());
        let mount = mount.expect("it is mounted in the sandbox");
        let attributes = mount.line.split(' ').nth(5);
        attributes.expect("six fields").to_owned()
    }

    /// Ends the sandbox, after the apps.
    #[track_caller]
    pub(crate) fn end(&self, apps: impl IntoIterator<Item = Container>) {
        for app in apps {
            end(&app);
        }
        end(&self.sandbox);
    }

    /// Nothing stands in the target path on the host.
    #[track_caller]
    pub(crate) fn assert_target_empty(&self) {
        assert_empty(&self.target);
    }
}

#[track_caller]
fn end(container: &Container) {
    container.stop();
    let _ = container.delete().success();
}

#[track_caller]
fn assert_empty(directory: &Path) {
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
}
