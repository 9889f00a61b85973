//! Fixtures of several rows: a node, a device, and a bundle of an ordinary size.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use runcrust_tests::{Bundle, Delegate, LoopDevice, Node, mounts, volume};

use crate::starts::CommandLine;

/// The size of the config in bytes.
const SIZE: usize = 60_000;
const MOUNTS: usize = 30;
/// The number of path components of the mounts' sources.
const DEPTH: usize = 10;

/// Makes a node that `doctor` accepts, with bundles on a tmpfs as in containerd.
pub(crate) fn node(delegate: Delegate) -> Node {
    let node = Node::well_configured(delegate, "");
    mounts::tmpfs(&node.dir().subdir("bundles"));
    node
}

/// Makes a device with an empty ext4 of 32 MiB on a tmpfs, so that a mount does not wait for a disk that others use.
pub(crate) fn device(node: &Node) -> LoopDevice {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let disks = node.dir().join("disks");
    if !disks.exists() {
        mounts::tmpfs(&node.dir().subdir("disks"));
    }
    let image = disks.join(format!("{}.img", NEXT.fetch_add(1, Ordering::Relaxed)));
    let file = File::create_new(&image).expect("an image");
    file.set_len(32 << 20).expect("an image's size");
    let device = LoopDevice::on(&image);
    volume::mkfs("ext4", device.path(), &[]);
    device
}

/// Removes what a stage creates for a volume: its entry and its lock file.
pub(crate) fn remove_staged(places: &[PathBuf; 2]) {
    let [entry, lock] = places;
    if entry.exists() {
        fs::remove_dir_all(entry).expect("remove an entry");
        fs::remove_file(lock).expect("remove the lock file");
    }
}

/// Returns a plain bundle that is not written yet. Its mounts have sources as kubelet creates them, and its environment
/// fills the config, as in a pod among many services.
pub(crate) fn bundle(node: &Node) -> Bundle {
    let volumes = node.handler().kubelet_dir().join("pods/a-pod/volumes");
    let mut bundle = Bundle::plain(node.dir());
    for index in 0..MOUNTS {
        let kind = ["configmap", "projected", "empty-dir"][index % 3];
        let source = volumes.join(format!("kubernetes.io~{kind}/volume-{index}/data"));
        assert_eq!(
            source.components().count() - 1,
            DEPTH,
            "{}",
            source.display()
        );
        fs::create_dir_all(&source).expect("a mount's source");
        bundle = bundle.bind(&source, &format!("/mnt/volume-{index}"), &[]);
    }
    let mut length = bundle.spec().to_string().len();
    let environment = bundle.spec_mut()["process"]["env"].as_array_mut();
    let environment = environment.expect("an array");
    for service in 0.. {
        if length >= SIZE {
            break;
        }
        let host = service % 256;
        let variable = format!("SERVICE_{service}_PORT_8080_TCP=tcp://10.96.0.{host}:8080");
        // Two quotes and a comma.
        length += variable.len() + 3;
        environment.push(variable.into());
    }
    bundle
}

/// Returns the command that creates the container of a written bundle.
pub(crate) fn create(program: &Path, bundle: &Bundle) -> CommandLine {
    let (root, pid_file) = (bundle.runtime_root(), bundle.path().join("init.pid"));
    let arguments = [
        "--root".as_ref(),
        root.as_os_str(),
        "create".as_ref(),
        "--bundle".as_ref(),
        bundle.path().as_os_str(),
        "--pid-file".as_ref(),
        pid_file.as_os_str(),
        bundle.id().as_ref(),
    ];
    CommandLine::new(program, arguments)
}
