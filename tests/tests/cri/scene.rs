//! What most of these tests begin with.

use std::path::PathBuf;

use runcrust_tests::{Containerd, Cri, CriPod, Delegate, LoopDevice, Node, POD};

use crate::containerd;

/// A node with a volume of the pod [`POD`], and a containerd; in the order in which they go.
pub(crate) struct Scene {
    pub(crate) containerd: Containerd,
    pub(crate) target: PathBuf,
    pub(crate) device: LoopDevice,
    pub(crate) node: Node,
}

impl Scene {
    /// With an ext4, staged with these options, and runcrust's defaults.
    pub(crate) fn new(delegate: Delegate, options: &[&str]) -> Self {
        Self::of(Node::new(delegate), Node::ext4, options)
    }

    /// With another file system.
    pub(crate) fn on(delegate: Delegate, fstype: &'static str, options: &[&str]) -> Self {
        Self::of(Node::new(delegate), |node| node.formatted(fstype), options)
    }

    /// On a node of the test's own.
    pub(crate) fn of(
        node: Node,
        device: impl FnOnce(&Node) -> LoopDevice,
        options: &[&str],
    ) -> Self {
        Self::in_containerd(containerd(&node), node, device, options)
    }

    /// In a containerd of the test's own.
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

    /// The pod, whose sandbox runs.
    #[track_caller]
    pub(crate) fn pod(&self) -> CriPod<'_> {
        CriPod::run(&self.containerd, POD)
    }

    /// The calls.
    pub(crate) fn cri(&self) -> &Cri {
        self.containerd.cri()
    }

    /// Ends the pod and unstages its volume: nothing is left.
    #[track_caller]
    pub(crate) fn end(&self, pod: &CriPod<'_>) {
        pod.end_and_unstage(&self.node, &[&self.target]);
        assert!(self.device.is_free());
    }
}
