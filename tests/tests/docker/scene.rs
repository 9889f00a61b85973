//! A node with a staged volume, and a docker daemon on it.

use std::path::{Path, PathBuf};

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::refusal::unexpected_entries;
use runcrust_tests::{Delegate, Docker, LoopDevice, Node, POD};
use serde_json::{Value, json};

/// The fields are dropped in this order.
pub(crate) struct Scene {
    pub(crate) docker: Docker,
    pub(crate) target: PathBuf,
    pub(crate) device: LoopDevice,
    pub(crate) node: Node,
}

impl Scene {
    /// Stages an ext4 with an fsGroup, and starts the daemon.
    pub(crate) fn new(delegate: Delegate) -> Self {
        Self::with(delegate, json!({}))
    }

    /// Stages the volume and starts the daemon like [`Self::new`], with more settings of the daemon.
    pub(crate) fn with(delegate: Delegate, settings: Value) -> Self {
        let (node, device) = Node::with_ext4(delegate);
        let target = node.stage(POD, "pv-1", &device, &["--fs-group", "4242"]);
        let runtimes = [("crust", node.handler().path())];
        Self {
            docker: Docker::start(node.dir(), delegate, &runtimes, settings),
            target,
            device,
            node,
        }
    }

    /// Returns a `--volume` flag for the staged directory at `/data`.
    pub(crate) fn volume(&self) -> String {
        volume(&self.target, "")
    }

    #[track_caller]
    pub(crate) fn assert_nothing_on_the_host(&self) {
        assert_eq!(unexpected_entries(&self.target), <[String; 0]>::default());
    }

    /// Removes containers, unstages the volume, and asserts that nothing is left.
    #[track_caller]
    pub(crate) fn end(&self, containers: &[&str]) {
        if !containers.is_empty() {
            self.docker.remove(containers);
        }
        self.device.wait_until_free(WAIT_TIMEOUT);
        self.node.unstage_all(&[&self.target]);
    }
}

/// Returns a `--volume` flag for a directory at `/data`.
pub(crate) fn volume(source: &Path, options: &str) -> String {
    format!("--volume={}:/data{options}", source.display())
}
