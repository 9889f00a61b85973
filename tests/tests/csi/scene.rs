//! The fixture of this suite: a driver with a node of its own, and helpers for its volumes.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::CsiVolume;
use runcrust_tests::{Csi, Delegate, Node, Ops};

/// A driver with its node. Fields are dropped in their order, so the driver ends before the node is removed.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) csi: Csi,
    _ops: Option<Ops>,
    pub(crate) node: Node,
}

impl Deref for Scene {
    type Target = Csi;

    fn deref(&self) -> &Csi {
        &self.csi
    }
}

impl Scene {
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// Starts a driver with further arguments.
    #[track_caller]
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let node = Node::trusted(Delegate::Runc, "");
        let csi = Csi::with(&node, arguments);
        Self {
            csi,
            _ops: None,
            node,
        }
    }

    /// Starts a driver and a `crust_ops` that it can defer to.
    #[track_caller]
    pub(crate) fn with_crust_ops() -> Self {
        let (node, ops, csi) = deferring_driver(Delegate::Runc, &[]);
        Self {
            csi,
            _ops: Some(ops),
            node,
        }
    }

    /// Starts a driver and creates a volume, `pv`.
    #[track_caller]
    pub(crate) fn with_volume(capability: VolumeCapability) -> (Self, CsiVolume) {
        let scene = Self::new();
        let volume = scene.volume("pv", capability);
        (scene, volume)
    }

    /// Starts a driver and stages a volume, `pv`.
    #[track_caller]
    pub(crate) fn with_staged(capability: VolumeCapability) -> (Self, CsiVolume) {
        let scene = Self::new();
        let volume = scene.staged("pv", capability);
        (scene, volume)
    }

    /// Creates and stages a volume.
    #[track_caller]
    pub(crate) fn staged(&self, name: &str, capability: VolumeCapability) -> CsiVolume {
        let volume = self.volume(name, capability);
        self.call_ok(volume.stage());
        volume
    }

    /// Publishes a staged volume for a pod, and returns the target path.
    #[track_caller]
    pub(crate) fn publish(&self, volume: &CsiVolume, pod: &str) -> PathBuf {
        let target = self.target(pod, "pv");
        self.call_ok(volume.publish(&target));
        target
    }

    /// Unpublishes a volume from all targets and unstages it. Asserts that no loop device is left.
    #[track_caller]
    pub(crate) fn unpublish_and_unstage(&self, volume: &CsiVolume, targets: &[&Path]) {
        for target in targets {
            self.call_ok(volume.unpublish(target));
        }
        self.call_ok(volume.unstage());
        assert_eq!(
            self.devices(&volume.id),
            Vec::<PathBuf>::new(),
            "loop devices"
        );
    }

    /// Unpublishes, unstages and deletes a volume. Asserts that the data directory is empty afterwards.
    #[track_caller]
    pub(crate) fn remove_volume(&self, volume: &CsiVolume, targets: &[&Path]) {
        self.unpublish_and_unstage(volume, targets);
        self.call_ok(volume.delete());
        assert_eq!(self.leftovers(), Vec::<PathBuf>::new());
    }

    /// Returns the ids of all volumes.
    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<String> {
        let listed = self.call(crust_proto::csi::v1::ListVolumesRequest::default());
        let entries = listed.expect("ListVolumes").entries.into_iter();
        let ids = entries.map(|entry| entry.volume.expect("a REQUIRED field").volume_id);
        ids.collect()
    }
}

/// Writes a file to a published volume.
#[track_caller]
pub(crate) fn write(target: &Path, name: &str, data: &str) {
    fs::write(target.join(name), data).expect("a writable volume");
}

/// Reads a file from a published volume.
#[track_caller]
pub(crate) fn read(target: &Path, name: &str) -> String {
    let read = fs::read_to_string(target.join(name));
    read.unwrap_or_else(|error| panic!("{}: {name}: {error}", target.display()))
}

/// Returns the files with this name anywhere below a directory.
pub(crate) fn find_files(directory: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let of = |path: PathBuf| {
        if path.is_dir() {
            find_files(&path, name)
        } else if path.file_name().is_some_and(|it| it == name) {
            vec![path]
        } else {
            Vec::new()
        }
    };
    paths.flat_map(of).collect()
}

/// Starts a driver and the `crust_ops` that it defers to. The caller has to drop them in reverse order.
#[track_caller]
pub(crate) fn deferring_driver(delegate: Delegate, arguments: &[&str]) -> (Node, Ops, Csi) {
    let (node, ops) = Ops::with_node(delegate);
    let csi = Csi::with(&node, arguments);
    (node, ops, csi)
}
