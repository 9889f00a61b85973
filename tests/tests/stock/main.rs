//! Released kubelets, which do not know deferral: they bind a subPath of the volume's directory on the host, and pass
//! that bind to the runtime.

mod deferred_subpaths;
mod ordinary_subpaths;
mod refused;

use std::path::{Path, PathBuf};

use runcrust_tests::kubelet::SubPath;
use runcrust_tests::{Container, Delegate, Node, POD, StagedVolume};

/// A pod with a staged volume, `pv-1`, and its sandbox.
struct Pod {
    sandbox: Container,
    volume: StagedVolume,
}

impl Pod {
    /// Creates a pod on a node whose kubelet directory `prepare` sets up.
    fn on(delegate: Delegate, prepare: impl FnOnce(&Node)) -> Self {
        let node = Node::new(delegate);
        prepare(&node);
        Self::with_volume(StagedVolume::on(node, &[]))
    }

    fn with_volume(volume: StagedVolume) -> Self {
        Self {
            sandbox: volume.sandbox(),
            volume,
        }
    }

    fn new(delegate: Delegate) -> Self {
        Self::on(delegate, |_| {})
    }

    /// Binds a subPath of `pv-1` as kubelet does, and returns the bind's path.
    fn bind(&self, path: &str, index: u32) -> PathBuf {
        subpath("pv-1", &self.volume.target, path, index).bind(&self.volume.handler().kubelet_dir())
    }

    /// Starts an app with this source at `/data`.
    fn app(&self, source: &Path) -> Container {
        self.volume.node.app(&self.sandbox, source, "/data")
    }
}

fn subpath<'a>(volume: &'a str, directory: &'a Path, path: &'a str, index: u32) -> SubPath<'a> {
    SubPath {
        pod_uid: POD,
        volume,
        directory,
        path,
        index,
    }
}
