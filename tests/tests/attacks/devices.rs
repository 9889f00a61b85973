//! One device under several names: it must not get two superblocks, nor be used by two pods if only one may use it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{LoopDevice, Node, POD, Pod, Run, on_each_delegate, process_name, refusal};

use super::OTHER_POD;

const ONE_POD: [&str; 2] = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];

/// Makes other paths to a device.
fn names(node: &Node, device: &LoopDevice) -> Vec<PathBuf> {
    let path = utf8(device.path());
    let by_id = node.dir().subdir("by-id");
    let [link, relative, second] = ["link", "relative", "second"].map(|name| by_id.join(name));
    symlink(path, &link).unwrap();
    symlink("link", &relative).unwrap();
    let (major, minor) = device.number().split_once(':').unwrap();
    let number = makedev(major.parse().unwrap(), minor.parse().unwrap());
    mknod(&second, SFlag::S_IFBLK, Mode::S_IRUSR, number).unwrap();
    let spelt = PathBuf::from(path.replace("/dev/", "/dev//./"));
    vec![link, relative, second, spelt]
}

/// A linear device mapper device over another device.
struct LinearDevice {
    name: String,
    path: PathBuf,
    _cleanup: Cleanup,
}

impl LinearDevice {
    fn create(device: &LoopDevice, name: &str) -> Self {
        let name = format!("{name}-{}", process_name());
        dmsetup(&["create", &name, "--table", &table(device)]);
        Self {
            name: name.clone(),
            path: Path::new("/dev/mapper").join(&name),
            _cleanup: Cleanup::register(move || {
                let removed =
                    Run::capture(Command::new("dmsetup").args(["remove", "--retry", &name]));
                if removed.status.success() {
                    Vec::new()
                } else {
                    vec![removed.to_string()]
                }
            }),
        }
    }

    /// Extends the device to the present size of the device below it, as `lvextend` does.
    fn reload(&self, device: &LoopDevice) {
        dmsetup(&["suspend", &self.name]);
        dmsetup(&["reload", &self.name, "--table", &table(device)]);
        dmsetup(&["resume", &self.name]);
    }
}

fn table(device: &LoopDevice) -> String {
    let size = Run::capture(Command::new("blockdev").arg("--getsz").arg(device.path())).success();
    format!("0 {} linear {} 0", size.stdout.trim(), utf8(device.path()))
}

fn dmsetup(arguments: &[&str]) {
    let _ = Run::capture(Command::new("dmsetup").args(arguments)).success();
}

/// Returns a pod whose volume is staged by this path of its device.
fn pod<'a>(node: &'a Node, uid: &str, device: &Path, options: &[&str]) -> Pod<'a> {
    let target = node.target(uid, "pv-1");
    let _ = node.try_stage(&target, device, options).success();
    Pod::with_staged_volume(node, uid, target)
}

on_each_delegate! {
    fn a_device_is_recognized_under_each_of_its_names(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let holder = Pod::new(&node, POD, &device, &ONE_POD);
        let app = holder.app();
        let _ = app.sh("echo the first > /data/file");
        for name in names(&node, &device) {
            for options in [&[][..], &["--read-only"]] {
                let other = pod(&node, OTHER_POD, &name, options);
                let _ = other.expect_refusal_naming(&holder);
                other.end([]);
                let _ = node.unstage(&other.target).success();
            }
        }
        assert_eq!(app.sh("cat /data/file"), "the first");
    }

    /// The first pod's volume is staged by another name of the device, and the second pod's by the loop device's path.
    fn a_device_staged_by_a_link_is_recognized(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        for name in names(&node, &device) {
            let holder = pod(&node, POD, &name, &ONE_POD);
            let app = holder.app();
            let other = Pod::new(&node, OTHER_POD, &device, &[]);
            let _ = other.expect_refusal_naming(&holder);
            for pod in [&holder, &other] {
                pod.sandbox.end();
            }
            app.end();
            for pod in [&holder, &other] {
                let _ = node.unstage(&pod.target).success();
            }
        }
    }

    #[ignore = "needs a kernel with device mapper; runs in the guest: make vm-test"]
    fn device_mapper_over_a_device_in_use_is_recognized(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let mapped = LinearDevice::create(&device, "mapped");
        let holder = pod(&node, POD, &mapped.path, &[]);
        let app = holder.app();
        let _ = app.sh("echo the first > /data/file");
        let other = pod(&node, OTHER_POD, device.path(), &[]);
        let _ = other.expect_refusal_naming(&holder);
        other.end([]);
        let _ = node.unstage(&other.target).success();
        holder.end([app]);
        let _ = node.unstage(&holder.target).success();
        // The device is not mounted any more, but device mapper still uses it.
        let direct = Pod::new(&node, POD, &device, &[]);
        let sentence = direct.expect_refusal();
        assert!(sentence.contains("in use"), "{sentence}");
        direct.end([]);
        let _ = node.unstage(&direct.target).success();
        let second = pod(&node, POD, &mapped.path, &[]);
        assert_eq!(second.app().sh("cat /data/file"), "the first");
        drop(second);
        drop(mapped);
        device.wait_until_free(WAIT_TIMEOUT);
    }

    #[ignore = "needs a kernel with device mapper; runs in the guest: make vm-test"]
    fn device_mapper_may_grow_but_not_be_replaced(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let mapped = LinearDevice::create(&device, "grown");
        let target = node.target(POD, "pv-1");
        let _ = node.try_stage(&target, &mapped.path, &[]).success();
        device.set_size(48 << 20);
        mapped.reload(&device);
        let grown = Pod::with_staged_volume(&node, POD, target);
        let app = grown.app();
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        grown.end([app]);
        drop(mapped);
        let _replacement = LinearDevice::create(&other, "grown");
        let sandbox = node.sandbox_bundle(POD).write();
        let refusal = refusal::create_refused(&node, &sandbox).naming_volume("pv-1");
        let _ = refusal.containing(&["isn't the disk that was staged"]).message();
    }
}
