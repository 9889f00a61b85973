//! The node, volume and containerd of most tests.

use std::path::PathBuf;

use runcrust_tests::{Containerd, Cri, CriPod, Delegate, LoopDevice, Node, POD};

use crate::containerd;

/// A node with a staged volume of the pod [`POD`], and containerd. Dropped in this order.
pub(crate) struct Scene {
    pub(crate) containerd: Containerd,
    pub(crate) target: PathBuf,
    pub(crate) device: LoopDevice,
    pub(crate) node: Node,
}

impl Scene {
    /// Stages an ext4 with these options, on a node with the default configuration.
    pub(crate) fn new(delegate: Delegate, options: &[&str]) -> Self {
        Self::on_node(Node::new(delegate), Node::ext4, options)
    }

    /// Stages another file system.
    pub(crate) fn on(delegate: Delegate, fstype: &'static str, options: &[&str]) -> Self {
        Self::on_node(Node::new(delegate), |node| node.formatted(fstype), options)
    }

    /// Stages a device that `device` makes, on this node.
    pub(crate) fn on_node(
        node: Node,
        device: impl FnOnce(&Node) -> LoopDevice,
        options: &[&str],
    ) -> Self {
        Self::in_containerd(containerd(&node), node, device, options)
    }

    /// Stages a device that `device` makes, on this node with this containerd.
    pub(crate) fn in_containerd(
        containerd: Containerd,
        node: Node,
        device: impl FnOnce(&Node) -> LoopDevice,
        options: &[&str],
    ) -> Self {
        let device = device(&node);
        let target = node.stage(POD, "pv-1", &device, options);
        Self {
            containerd,
            target,
            device,
            node,
        }
    }

    /// Starts the pod's sandbox.
    #[track_caller]
    pub(crate) fn pod(&self) -> CriPod<'_> {
        CriPod::run(&self.containerd, POD)
    }

    pub(crate) fn cri(&self) -> &Cri {
        self.containerd.cri()
    }

    /// Ends the pod, unstages its volume, and asserts that nothing is left.
    #[track_caller]
    pub(crate) fn end(&self, pod: &CriPod<'_>) {
        pod.end_and_unstage(&self.node, &[&self.target]);
        assert!(self.device.is_free());
    }
}
