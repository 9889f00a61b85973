//! Copies of a container's volumes that came out of it. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set their scenes by path"
)]

#[path = "../../blockfs/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use caps::{CapSet, Capability};
use crust_blockfs::Deadline;
use crust_volume::propagated_mounts::{
    RemainingCopy, RemainingReason, UnmountCopiesError, unmount_copies,
};
use rustix::io::Errno;
use support::{Image, TestMount, Tree, in_mount_namespace, run};

/// Number of mounts that are at a path, one over the other.
fn mounts_at(path: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("a mount table");
    let point = path.to_str().expect("a path in UTF-8");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|it| *it == point).count()
}

#[test]
fn unoccupied_copies_are_unmounted_until_the_deadline() {
    const TEST: &str = "unoccupied_copies_are_unmounted_until_the_deadline";
    in_mount_namespace(TEST, || {
        let [lent, host] = [(); 2].map(|()| Tree::new());
        let _lent = TestMount::tmpfs(lent.root());
        let volume = lent.directory("volume", 0o755);
        let _volume = TestMount::tmpfs(&volume);
        run(Command::new("mount").arg("--make-shared").arg(&volume));
        let copies = ["one", "two", "occupied"].map(|name| host.directory(name, 0o755));
        for copy in &copies {
            run(Command::new("mount").arg("--bind").args([&volume, copy]));
            run(Command::new("mount").arg("--make-slave").arg(copy));
        }
        // A second one over the first.
        run(Command::new("mount")
            .arg("--bind")
            .args([&volume, &copies[1]]));
        run(Command::new("mount").arg("--make-slave").arg(&copies[1]));
        // In the copy alone, since it is a slave.
        let theirs = copies[2].join("theirs");
        fs::create_dir(&theirs).expect("a directory");
        let theirs = TestMount::tmpfs(&theirs);
        let mounted = || copies.each_ref().map(|copy| mounts_at(copy));
        assert_eq!(mounted(), [1, 2, 1]);

        let error = unmount_copies(lent.root(), Deadline::after(Duration::ZERO));
        let error = error.expect_err("the time is over");
        assert!(
            matches!(error, UnmountCopiesError::TooSlow { left: 4, .. }),
            "{error}"
        );
        assert_eq!(mounted(), [1, 2, 1]);
        let _ = unmount_copies(lent.root(), Deadline::never()).expect("copies");
        assert_eq!(mounted(), [0, 0, 1]);
        drop(theirs);
        let _ = unmount_copies(lent.root(), Deadline::never()).expect("copies");
        assert_eq!(mounted(), [0, 0, 0]);
    });
}

#[test]
fn a_copy_that_is_left_has_its_reason() {
    const TEST: &str = "a_copy_that_is_left_has_its_reason";
    in_mount_namespace(TEST, || {
        let [lent, host] = [(); 2].map(|()| Tree::new());
        let (image, _lent) = (Image::ext4(&[]), TestMount::tmpfs(lent.root()));
        let device = image.attach();
        let volume = lent.directory("volume", 0o755);
        let _volume = TestMount::device(device.path(), &volume, "ext4", "rw").expect("a mount");
        run(Command::new("mount").arg("--make-shared").arg(&volume));
        let above = host.directory("above", 0o755);
        let copy = above.join("copy");
        fs::create_dir(&copy).expect("a directory");
        let remaining = || {
            let copies = unmount_copies(lent.root(), Deadline::never()).expect("copies");
            copies.remaining(device.device().number())
        };
        let copied = || {
            run(Command::new("mount").arg("--bind").args([&volume, &copy]));
            run(Command::new("mount").arg("--make-slave").arg(&copy));
        };
        let assert_left = |found: Option<RemainingCopy>, reason| {
            let mount_point = copy.clone();
            assert_eq!(
                found,
                Some(RemainingCopy {
                    mount_point,
                    reason
                })
            );
        };

        copied();
        let on_it = TestMount::tmpfs(&copy.join("lost+found"));
        assert_left(remaining(), RemainingReason::Occupied);
        drop(on_it);
        assert_eq!(remaining(), None);

        copied();
        let over_it = TestMount::tmpfs(&above);
        assert_left(remaining(), RemainingReason::Hidden);
        drop(over_it);
        assert_eq!(remaining(), None);

        copied();
        caps::drop(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).expect("capset");
        let refused = remaining();
        caps::raise(None, CapSet::Effective, Capability::CAP_SYS_ADMIN).expect("capset");
        let (call, errno) = ("umount2", Errno::PERM);
        assert_left(refused, RemainingReason::Call { call, errno });
        assert_eq!(remaining(), None);
    });
}
