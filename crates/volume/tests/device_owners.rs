//! Ownership of volumes on devices with the same data. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set up files by path"
)]

#[path = "../../blockfs/tests/support/mod.rs"]
mod support;

use std::fs;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::{Config, CrustDirectory, MountInfo, StateDirectory, TargetPath};
use crust_volume::{Context, NewContainer, VolumeError};
use support::{Image, TestLoopDevice, run};

/// A node's state in a temporary directory.
struct TestNode {
    config: Config,
    crust: CrustDirectory,
    state: StateDirectory,
    directory: tempfile::TempDir,
}

impl TestNode {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let root = directory.path().canonicalize().expect("its path");
        let config = Config {
            crust_root: root.join("crust"),
            state_dir: root.join("run"),
            kubelet_dirs: vec![root.join("kubelet")],
            ..Config::default()
        };
        Self {
            crust: CrustDirectory::new(&config),
            state: StateDirectory::open_lazily(&config.state_dir).expect("a state directory"),
            config,
            directory,
        }
    }

    fn context<'a>(&'a self, loop_devices: &'a LoopDeviceCache) -> Context<'a> {
        Context {
            config: &self.config,
            crust: &self.crust,
            state: &self.state,
            deadline: Deadline::after(Duration::from_secs(30)),
            loop_devices,
        }
    }

    fn target(&self, pod: &str) -> TargetPath {
        let root = self.directory.path().canonicalize().expect("its path");
        let target = format!("kubelet/pods/{pod}/volumes/kubernetes.io~csi/pv/mount");
        let target = root.join(target);
        fs::create_dir_all(&target).expect("a target path");
        TargetPath::new(target).expect("a target path")
    }

    fn release(&self, pod: &str) {
        let loop_devices = LoopDeviceCache::default();
        let released = crust_volume::release(&self.context(&loop_devices), &self.target(pod), pod);
        released.expect("it is a user");
    }

    /// Stages a volume and reserves it for a container, as a create does whose hook mounts the volume. `loop_devices`
    /// is the cache of one process.
    fn reserve(
        &self,
        pod: &str,
        device: &Path,
        loop_devices: &LoopDeviceCache,
    ) -> Result<(), VolumeError> {
        let target = self.target(pod);
        let device = device.display();
        let text = format!(r#"{{"volume-type":"block","device":"{device}","fstype":"ext4"}}"#);
        let info = MountInfo {
            target_path: Some(target.clone()),
            ..MountInfo::parse(text.as_bytes()).expect("mount info")
        };
        self.crust.stage(&target, &info).expect("it is staged");
        let context = self.context(loop_devices);
        let locked = crust_volume::lock(&context, &target).expect("it is staged");
        let container = NewContainer {
            id: pod,
            sandbox: pod,
            pod_uid: pod,
            label: None,
            mounts_before: None,
        };
        crust_volume::reserve(&context, &locked, container, Vec::new())
    }
}

/// Attaches another image to a loop device; `None` if another process took the device's number meanwhile.
fn reattach(device: TestLoopDevice, from: &Image, to: &Image) -> Option<TestLoopDevice> {
    run(Command::new("losetup").arg("--detach").arg(device.path()));
    // The device isn't detached on drop, because from here on it may belong to another process.
    let device = ManuallyDrop::new(device);
    let file = Path::new("/sys/block").join(device.path().file_name().expect("a name"));
    let file = file.join("loop/backing_file");
    let backing_file = || fs::read_to_string(&file).unwrap_or_default();
    // A process that has the device open delays the detach.
    let is_detached = || backing_file().trim_end() != from.path().display().to_string();
    let detached =
        Deadline::after(Duration::from_secs(60)).poll(|| Ok::<_, ()>(is_detached().then_some(())));
    assert_eq!(detached, Ok(Some(())), "{}", device.path().display());
    let mut attach = Command::new("losetup");
    let attach = attach.arg(device.path()).arg(to.path()).status();
    let is_attached = attach.expect("losetup").success();
    is_attached.then(|| ManuallyDrop::into_inner(device))
}

#[test]
fn an_owned_device_that_is_reattached_to_the_file_is_found() {
    for _ in 0..10 {
        let node = TestNode::new();
        let [elsewhere, shared, first] = [(); 3].map(|()| Image::ext4(&[]));
        let (moving, own, other) = (elsewhere.attach(), shared.attach(), first.attach());
        let cache = LoopDeviceCache::with_max_age(Duration::MAX);
        node.reserve("pod-a", other.path(), &cache)
            .expect("the device is free");

        let Some(moved) = reattach(moving, &elsewhere, &shared) else {
            continue;
        };
        node.reserve("pod-b", moved.path(), &LoopDeviceCache::default())
            .expect("the device is free");

        let refused = node.reserve("pod-c", own.path(), &cache).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("pod-b"), "{message}");
        return;
    }
    panic!("another process took the number each time");
}

/// The cache still has the file that the device had earlier: the device was probed for the second pod while the first
/// pod was in the device's list of owners.
#[test]
fn a_released_device_owned_by_another_pod_is_found() {
    for _ in 0..10 {
        let node = TestNode::new();
        let [elsewhere, shared, first] = [(); 3].map(|()| Image::ext4(&[]));
        let (moving, own, other) = (elsewhere.attach(), shared.attach(), first.attach());
        let cache = LoopDeviceCache::with_max_age(Duration::MAX);
        for (pod, device) in [("pod-a", &moving), ("pod-b", &other)] {
            let reserved = node.reserve(pod, device.path(), &cache);
            reserved.expect("the device is free");
        }

        node.release("pod-a");
        let Some(moved) = reattach(moving, &elsewhere, &shared) else {
            continue;
        };
        node.reserve("pod-c", moved.path(), &LoopDeviceCache::default())
            .expect("the device is free");

        let refused = node.reserve("pod-d", own.path(), &cache).unwrap_err();
        assert!(refused.to_string().contains("pod-c"), "{refused}");
        return;
    }
    panic!("another process took the number each time");
}

#[test]
fn volumes_of_the_same_process_are_found() {
    let node = TestNode::new();
    let shared = Image::ext4(&[]);
    let devices = [shared.attach(), shared.attach()];
    let cache = LoopDeviceCache::with_max_age(Duration::MAX);
    node.reserve("pod-a", devices[0].path(), &cache)
        .expect("the device is free");
    let refused = node
        .reserve("pod-b", devices[1].path(), &cache)
        .unwrap_err();
    assert!(refused.to_string().contains("pod-a"), "{refused}");
}
