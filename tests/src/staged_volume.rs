//! A node with one staged volume, which most tests use.

use std::ops::Deref;
use std::path::PathBuf;

use crate::{Bundle, Container, Delegate, LoopDevice, Node, Run};

/// The uid of a test's pod. All tests use it, because each has its own node.
pub const POD: &str = "11111111-2222-3333-4444-555555555555";

/// A node with the volume `pv-1`, staged for [`POD`].
///
/// A `StagedVolume` dereferences to its node. If a method of [`Node`] takes the pod's uid or the target path, the
/// method of the same name here fills it in. For another pod or volume call the method of [`Self::node`].
///
/// The fields are dropped in their order: the device before the directory with its image. Declare a container after the
/// volume, so that it ends first.
#[derive(Debug)]
pub struct StagedVolume {
    pub target: PathBuf,
    pub device: LoopDevice,
    pub node: Node,
}

impl Deref for StagedVolume {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl StagedVolume {
    /// Stages an empty ext4 on a node with the default configuration.
    #[track_caller]
    pub fn new(delegate: Delegate) -> Self {
        Self::with(delegate, &[])
    }

    /// Stages an empty ext4 with options of `crust stage`, such as `--fs-group`.
    #[track_caller]
    pub fn with(delegate: Delegate, options: &[&str]) -> Self {
        Self::on(Node::new(delegate), options)
    }

    /// Stages an empty ext4 and starts a sandbox of its pod.
    #[track_caller]
    pub fn with_sandbox(delegate: Delegate) -> (Self, Container) {
        let volume = Self::new(delegate);
        let sandbox = volume.sandbox();
        (volume, sandbox)
    }

    /// Stages an empty ext4 on this node.
    #[track_caller]
    pub fn on(node: Node, options: &[&str]) -> Self {
        let device = node.ext4();
        Self::on_device(node, device, options)
    }

    /// Stages the file system on a device of this node.
    #[track_caller]
    pub fn on_device(node: Node, device: LoopDevice, options: &[&str]) -> Self {
        Self {
            target: node.stage(POD, "pv-1", &device, options),
            device,
            node,
        }
    }

    /// Starts the sandbox of the volume's pod.
    #[track_caller]
    pub fn sandbox(&self) -> Container {
        self.node.sandbox(POD)
    }

    /// Starts an app that has the volume at `/data`.
    #[track_caller]
    pub fn app(&self, sandbox: &Container) -> Container {
        self.node.app(sandbox, &self.target, "/data")
    }

    /// Returns the bundle of an app container with the volume at `/data`. The bundle is not written yet.
    pub fn app_bundle(&self, sandbox: &Container) -> Bundle {
        let bundle = self.node.app_bundle(sandbox);
        bundle.bind(&self.target, "/data", &[])
    }

    /// Returns the bundle of a container without a pod, with the volume at `/data`. The bundle is not written yet.
    pub fn plain_bundle(&self) -> Bundle {
        Bundle::plain(self.node.dir()).bind(&self.target, "/data", &[])
    }

    /// Returns the volume's entry in the crust directory.
    pub fn entry(&self) -> PathBuf {
        self.node.entry(&self.target)
    }

    /// Runs `crust unstage` for the volume.
    pub fn unstage(&self) -> Run {
        self.node.unstage(&self.target)
    }

    /// Runs `crust stats` for the volume.
    pub fn stats(&self) -> Run {
        self.node.stats(&self.target)
    }

    /// Runs `crust resize` for the volume; the sizes are bytes, and 0 is no limit.
    pub fn resize(&self, min: u64, max: u64) -> Run {
        self.node.resize(&self.target, min, max)
    }

    /// Unstages the volume after its last container has ended, and checks that nothing is left.
    #[track_caller]
    pub fn unstage_all(&self) {
        self.node.unstage_all(&[&self.target]);
    }
}
