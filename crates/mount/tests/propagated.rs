//! Copies of a container's volumes that came out of it. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set their scenes by path"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crust_mount::propagated::{CopiesError, unmount_copies};
use crust_state::Deadline;
use support::{Mounted, Tree, in_own_mount_namespace, run};

/// Number of mounts that are at a path, one over the other.
fn mounts_at(path: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("a mount table");
    let point = path.to_str().expect("a path in UTF-8");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|it| *it == point).count()
}

#[test]
fn copies_are_unmounted_until_the_deadline_unless_something_is_on_them() {
    const TEST: &str = "copies_are_unmounted_until_the_deadline_unless_something_is_on_them";
    in_own_mount_namespace(TEST, || {
        let [lent, host] = [(); 2].map(|()| Tree::new());
        let _lent = Mounted::tmpfs(lent.root());
        let volume = lent.directory("volume", 0o755);
        let _volume = Mounted::tmpfs(&volume);
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
        let theirs = Mounted::tmpfs(&theirs);
        let mounted = || copies.each_ref().map(|copy| mounts_at(copy));
        assert_eq!(mounted(), [1, 2, 1]);

        let error = unmount_copies(lent.root(), Deadline::after(Duration::ZERO));
        let error = error.expect_err("the time is over");
        assert!(
            matches!(error, CopiesError::TooSlow { left: 4, .. }),
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
