//! One device by another name: two superblocks on the same blocks, or two pods where there may be one.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{LoopDevice, Node, POD, Pod, Run, on_each_delegate, process_name, refusal};

use super::OTHER_POD;

const ONE_POD: [&str; 2] = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];

/// Other paths to a device.
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

/// A device mapper device over another device, as it is there.
struct Linear {
    name: String,
    path: PathBuf,
    _cleanup: Cleanup,
}

impl Linear {
    fn over(device: &LoopDevice, name: &str) -> Self {
        let name = format!("{name}-{}", process_name());
        dmsetup(&["create", &name, "--table", &table(device)]);
        Self {
            name: name.clone(),
            path: Path::new("/dev/mapper").join(&name),
            _cleanup: Cleanup::register(move || {
                let removed = Run::of(Command::new("dmsetup").args(["remove", "--retry", &name]));
                if removed.status.success() {
                    Vec::new()
                } else {
                    vec![removed.to_string()]
                }
            }),
        }
    }

    /// Has it show what the device has by now, as an `lvextend` does.
    fn reload(&self, device: &LoopDevice) {
        dmsetup(&["suspend", &self.name]);
        dmsetup(&["reload", &self.name, "--table", &table(device)]);
        dmsetup(&["resume", &self.name]);
    }
}

fn table(device: &LoopDevice) -> String {
    let size = Run::of(Command::new("blockdev").arg("--getsz").arg(device.path())).success();
    format!("0 {} linear {} 0", size.stdout.trim(), utf8(device.path()))
}

fn dmsetup(arguments: &[&str]) {
    let _ = Run::of(Command::new("dmsetup").args(arguments)).success();
}

/// A pod whose volume is staged by a path of the device.
fn pod<'a>(node: &'a Node, uid: &str, device: &Path, options: &[&str]) -> Pod<'a> {
    let target = node.target(uid, "pv-1");
    let _ = node.try_stage(&target, device, options).success();
    Pod::of(node, uid, target)
}

on_each_delegate! {
    fn a_device_under_each_of_its_names_is_one_device(delegate: Delegate) {
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

    /// And the other way round: who came by another name is known by the first one.
    fn a_device_that_was_staged_by_a_link_is_known_by_its_own_name(delegate: Delegate) {
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
    fn device_mapper_over_the_device_is_the_device(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let mapped = Linear::over(&device, "mapped");
        let holder = pod(&node, POD, &mapped.path, &[]);
        let app = holder.app();
        let _ = app.sh("echo the first > /data/file");
        let other = pod(&node, OTHER_POD, device.path(), &[]);
        let _ = other.expect_refusal_naming(&holder);
        other.end([]);
        let _ = node.unstage(&other.target).success();
        holder.end([app]);
        let _ = node.unstage(&holder.target).success();
        // Now nobody has it mounted, but device mapper has it.
        let direct = Pod::new(&node, POD, &device, &[]);
        let sentence = direct.expect_refusal();
        assert!(sentence.contains("in use"), "{sentence}");
        direct.end([]);
        let _ = node.unstage(&direct.target).success();
        let again = pod(&node, POD, &mapped.path, &[]);
        assert_eq!(again.app().sh("cat /data/file"), "the first");
        drop(again);
        drop(mapped);
        device.wait_until_free(WAIT_TIMEOUT);
    }

    #[ignore = "needs a kernel with device mapper; runs in the guest: make vm-test"]
    fn device_mapper_may_grow_but_not_be_made_anew(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let mapped = Linear::over(&device, "grown");
        let target = node.target(POD, "pv-1");
        let _ = node.try_stage(&target, &mapped.path, &[]).success();
        device.set_size(48 << 20);
        mapped.reload(&device);
        let grown = Pod::of(&node, POD, target);
        let app = grown.app();
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        grown.end([app]);
        drop(mapped);
        let _anew = Linear::over(&other, "grown");
        let sandbox = node.sandbox_bundle(POD).write();
        let refusal = refusal::create_refused(&node, &sandbox).naming_volume("pv-1");
        let _ = refusal.containing(&["isn't the disk that was staged"]).message();
    }
}
