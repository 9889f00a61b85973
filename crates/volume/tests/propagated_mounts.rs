//! Copies of a container's volumes on the host. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set up files by path"
)]

#[path = "../../blockfs/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use caps::{CapSet, Capability};
use crust_blockfs::Deadline;
use crust_blockfs::device_mounts::is_on;
use crust_volume::propagated_mounts::{
    RemainingCopy, RemainingReason, UnmountCopiesError, unmount_copies,
};
use rustix::io::Errno;
use support::{Image, TestMount, Tree, in_mount_namespace, run};

/// Returns the number of mounts at a path, one over the other.
fn mounts_at(path: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("a mount table");
    let mount_point = path.to_str().expect("a path in UTF-8");
    let mount_points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    mount_points.filter(|it| *it == mount_point).count()
}

#[test]
fn unoccupied_copies_are_unmounted_until_the_deadline() {
    const TEST: &str = "unoccupied_copies_are_unmounted_until_the_deadline";
    in_mount_namespace(TEST, || {
        let [attach, host] = [(); 2].map(|()| Tree::new());
        let _attach = TestMount::tmpfs(attach.root());
        let volume = attach.directory("volume", 0o755);
        let _volume = TestMount::tmpfs(&volume);
        run(Command::new("mount").arg("--make-shared").arg(&volume));
        let copies = ["one", "two", "occupied"].map(|name| host.directory(name, 0o755));
        for copy in &copies {
            run(Command::new("mount").arg("--bind").args([&volume, copy]));
            run(Command::new("mount").arg("--make-slave").arg(copy));
        }
        // A second copy over the first.
        run(Command::new("mount")
            .arg("--bind")
            .args([&volume, &copies[1]]));
        run(Command::new("mount").arg("--make-slave").arg(&copies[1]));
        // The copy is a slave: this mount doesn't propagate to the volume.
        let foreign = copies[2].join("foreign");
        fs::create_dir(&foreign).expect("a directory");
        let foreign = TestMount::tmpfs(&foreign);
        let counts = || copies.each_ref().map(|copy| mounts_at(copy));
        assert_eq!(counts(), [1, 2, 1]);

        let error = unmount_copies(attach.root(), Deadline::after(Duration::ZERO));
        let error = error.expect_err("the deadline has passed");
        assert!(
            matches!(error, UnmountCopiesError::TooSlow { remaining: 4, .. }),
            "{error}"
        );
        assert_eq!(counts(), [1, 2, 1]);
        let _ = unmount_copies(attach.root(), Deadline::never()).expect("copies");
        assert_eq!(counts(), [0, 0, 1]);
        drop(foreign);
        let _ = unmount_copies(attach.root(), Deadline::never()).expect("copies");
        assert_eq!(counts(), [0, 0, 0]);
    });
}

#[test]
fn a_remaining_copy_is_reported_with_its_reason() {
    const TEST: &str = "a_remaining_copy_is_reported_with_its_reason";
    in_mount_namespace(TEST, || {
        let [attach, host] = [(); 2].map(|()| Tree::new());
        let (image, _attach) = (Image::ext4(&[]), TestMount::tmpfs(attach.root()));
        let device = image.attach();
        let volume = attach.directory("volume", 0o755);
        let _volume = TestMount::device(device.path(), &volume, "ext4", "rw").expect("a mount");
        run(Command::new("mount").arg("--make-shared").arg(&volume));
        let above = host.directory("above", 0o755);
        let copy = above.join("copy");
        fs::create_dir(&copy).expect("a directory");
        let remaining = || {
            let copies = unmount_copies(attach.root(), Deadline::never()).expect("copies");
            copies.remaining(&|mount| is_on(mount, device.device().number()))
        };
        let make_copy = || {
            run(Command::new("mount").arg("--bind").args([&volume, &copy]));
            run(Command::new("mount").arg("--make-slave").arg(&copy));
        };
        let assert_remaining = |found: Option<RemainingCopy>, reason| {
            let mount_point = copy.clone();
            assert_eq!(
                found,
                Some(RemainingCopy {
                    mount_point,
                    reason
                })
            );
        };

        make_copy();
        let mount_on_copy = TestMount::tmpfs(&copy.join("lost+found"));
        assert_remaining(remaining(), RemainingReason::Occupied);
        drop(mount_on_copy);
        assert_eq!(remaining(), None);

        make_copy();
        let mount_over_parent = TestMount::tmpfs(&above);
        assert_remaining(remaining(), RemainingReason::Hidden);
        drop(mount_over_parent);
        assert_eq!(remaining(), None);

        make_copy();
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).expect("capset");
        let refused = remaining();
        caps::raise(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).expect("capset");
        let (call, errno) = ("umount2", Errno::PERM);
        assert_remaining(refused, RemainingReason::Call { call, errno });
        assert_eq!(remaining(), None);
    });
}
