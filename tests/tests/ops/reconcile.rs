//! The reconciliation removes what killed processes and missing calls leave behind.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::SystemTime;

use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::container::{end, kill_everything};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::{Node, Ops, POD, on_each_delegate, wait_until};

/// Reconciles each second.
const EACH_SECOND: &str = "reconcile_interval = 1";

/// Reports whether a volume's entry records a user.
fn is_in_use(node: &Node, target: &Path) -> bool {
    let entry = node.entry(target);
    let [record, cli] = ["runcrust.json", "runtime-cli"].map(|file| entry.join(file).exists());
    record || cli
}

/// Returns a temporary name in the form that writers use, with a pid that no process has.
pub(crate) fn temporary(name: &str) -> String {
    let at = SystemTime::UNIX_EPOCH.elapsed().expect("a clock");
    format!(".{name}.{}.{:x}.0", u32::MAX, at.as_nanos())
}

on_each_delegate! {
    fn killed_users_are_removed(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let ops = Ops::stopped(&node, EACH_SECOND);
        ops.spawn(ops.command());
        let devices = [node.ext4(), node.ext4(), node.ext4()];
        let targets = ["pv-1", "pv-2", "pv-3"].map(|name| node.target(POD, name));
        for (target, device) in targets.iter().zip(&devices) {
            ops.stage(stage_request(target, device)).unwrap();
        }
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &targets[0], "/data");
        let [held, free, damaged] = &targets;
        assert!(targets.iter().all(|target| is_in_use(&node, target)));
        // A locked volume and one with an unreadable record do not keep the others from being cleaned.
        let name = node.entry(held).file_name().unwrap().to_owned();
        let lock = format!("{}.lock", name.to_str().unwrap());
        let lock = File::open(node.handler().state_dir().join("locks").join(lock)).unwrap();
        let lock = Flock::lock(lock, FlockArg::LockExclusive).expect("the volume's lock");
        fs::write(node.entry(damaged).join("runcrust.json"), "{").unwrap();
        kill_everything(&[&app, &sandbox]);
        wait_until("the users to be removed", WAIT_TIMEOUT, || !is_in_use(&node, free));
        assert!(is_in_use(&node, held) && is_in_use(&node, damaged));
        drop(lock);
        wait_until("the user of the unlocked volume to be removed", WAIT_TIMEOUT, || !is_in_use(&node, held));
        assert!(node.entry(held).join("mountInfo.json").exists(), "the volume stays staged");
        wait_until("the removal to be logged", WAIT_TIMEOUT, || {
            ops.log().lines().any(|line| line.contains("process") && line.contains("has ended") && line.contains(sandbox.id()))
        });
        for target in &targets {
            ops.unstage(target).unwrap();
        }
    }

    fn living_users_are_kept(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let ops = Ops::with(&node, EACH_SECOND);
        let (device, other) = (node.ext4(), node.ext4());
        let [target, another] = [POD, "pod-b"].map(|pod| node.target(pod, "pv-1"));
        ops.stage(stage_request(&target, &device)).unwrap();
        ops.stage(stage_request(&another, &other)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let killed = node.sandbox("pod-b");
        let before = fs::read(node.entry(&target).join("runcrust.json")).unwrap();
        kill_everything(&[&killed]);
        wait_until("a reconciliation", WAIT_TIMEOUT, || !is_in_use(&node, &another));
        assert_eq!(fs::read(node.entry(&target).join("runcrust.json")).unwrap(), before);
        ops.stats(&target).unwrap();
        end([app, sandbox]);
    }
}

#[test]
fn incomplete_files_and_entries_are_removed() {
    let node = Node::trusted(runcrust_tests::Delegate::Runc, "");
    let ops = Ops::stopped(&node, EACH_SECOND);
    let real = node.dir().subdir("real");
    symlink(real, node.handler().kubelet_dir()).unwrap();
    let device = node.ext4();
    let [target, halved] = ["pv-1", "pv-2"].map(|name| node.target(POD, name));
    ops.spawn(ops.command());
    for target in [&target, &halved] {
        ops.stage(stage_request(target, &device)).unwrap();
    }
    ops.kill();
    // The remains of a killed stage, a killed unstage and a killed write.
    let root = node.handler().crust_root();
    let entry = root.join(temporary("entry"));
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("mountInfo.json"), "{").unwrap();
    let file = node.entry(&target).join(temporary("mountInfo.json"));
    fs::write(&file, "{").unwrap();
    let owners = node.handler().state_dir().join("owners");
    fs::create_dir_all(&owners).unwrap();
    let record = owners.join(temporary("7:0.json"));
    fs::write(&record, "{").unwrap();
    let held = root.join(temporary("entry"));
    fs::create_dir(&held).unwrap();
    let lock = File::open(&held).unwrap();
    let _at_it = Flock::lock(lock, FlockArg::LockExclusive).expect("a lock like a writer's");
    fs::remove_dir_all(node.entry(&halved)).unwrap();
    let half = node.entry(&halved.canonicalize().unwrap());
    assert!(half.exists());

    ops.spawn(ops.command());
    for path in [&entry, &file, &record, &half] {
        wait_until("the remains to be removed", WAIT_TIMEOUT, || !path.exists());
        let name = path.file_name().unwrap().to_str().unwrap();
        if path != &half {
            wait_until("the removal to be logged", WAIT_TIMEOUT, || {
                ops.log().contains(name)
            });
        }
    }
    assert!(held.exists(), "a locked entry is kept");
    for path in [&target, &target.canonicalize().unwrap()] {
        assert!(node.entry(path).join("mountInfo.json").exists());
    }
    ops.stage(stage_request(&halved, &device)).unwrap();
}
