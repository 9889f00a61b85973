//! A driver on a node of its own, and the life of its volumes.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::VolumeCapability;
use runcrust_tests::csi::CsiVolume;
use runcrust_tests::{Csi, Delegate, Node, Ops};

/// Fields are dropped in their order: the driver goes before what it stands on.
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

    /// With further arguments for the driver.
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

    /// With somebody to defer to.
    #[track_caller]
    pub(crate) fn deferring() -> Self {
        let (node, ops, csi) = deferral(Delegate::Runc, &[]);
        Self {
            csi,
            _ops: Some(ops),
            node,
        }
    }

    /// Starts a driver and makes a volume, `pv`.
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

    /// A volume that is staged.
    #[track_caller]
    pub(crate) fn staged(&self, name: &str, capability: VolumeCapability) -> CsiVolume {
        let volume = self.volume(name, capability);
        self.call_ok(volume.stage());
        volume
    }

    /// Publishes a staged volume for a pod.
    #[track_caller]
    pub(crate) fn publish(&self, volume: &CsiVolume, pod: &str) -> PathBuf {
        let target = self.target(pod, "pv");
        self.call_ok(volume.publish(&target));
        target
    }

    /// Ends a volume that is published there, and unpublishes and unstages it.
    #[track_caller]
    pub(crate) fn take_back(&self, volume: &CsiVolume, targets: &[&Path]) {
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

    /// The same, and deletes it: nothing is left of it or any other.
    #[track_caller]
    pub(crate) fn put_away(&self, volume: &CsiVolume, targets: &[&Path]) {
        self.take_back(volume, targets);
        self.call_ok(volume.delete());
        assert_eq!(self.leftovers(), Vec::<PathBuf>::new());
    }

    /// The ids of all volumes.
    #[track_caller]
    pub(crate) fn ids(&self) -> Vec<String> {
        let listed = self.call(crust_proto::csi::v1::ListVolumesRequest::default());
        let entries = listed.expect("ListVolumes").entries.into_iter();
        let ids = entries.map(|entry| entry.volume.expect("it is REQUIRED").volume_id);
        ids.collect()
    }
}

/// Writes a file to a published volume.
#[track_caller]
pub(crate) fn write(target: &Path, name: &str, data: &str) {
    fs::write(target.join(name), data).expect("a volume that can be written");
}

/// Reads one from it.
#[track_caller]
pub(crate) fn read(target: &Path, name: &str) -> String {
    let read = fs::read_to_string(target.join(name));
    read.unwrap_or_else(|error| panic!("{}: {name}: {error}", target.display()))
}

/// Files of a name below a directory, however deep.
pub(crate) fn found(directory: &Path, name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let of = |path: PathBuf| {
        if path.is_dir() {
            found(&path, name)
        } else if path.file_name().is_some_and(|it| it == name) {
            vec![path]
        } else {
            Vec::new()
        }
    };
    paths.flat_map(of).collect()
}

/// A driver that can defer, and whom it defers to. They are dropped from the last to the first.
#[track_caller]
pub(crate) fn deferral(delegate: Delegate, arguments: &[&str]) -> (Node, Ops, Csi) {
    let (node, ops) = Ops::with_node(delegate);
    let csi = Csi::with(&node, arguments);
    (node, ops, csi)
}
