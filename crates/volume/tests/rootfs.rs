//! Mounts of volumes in a container's root file system. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set up files by path"
)]

#[path = "../../blockfs/tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::view::View;
use crust_volume::rootfs::{Rootfs, RootfsError, ScratchDirectory};
use rustix::fs::CWD;
use rustix::mount::{MountAttrFlags, OpenTreeFlags, open_tree};
use support::{TestMount, Tree, in_mount_namespace};

/// A tenant may give a container any number of mounts.
#[test]
fn mounts_past_the_deadline_are_refused_with_their_number() {
    const TEST: &str = "mounts_past_the_deadline_are_refused_with_their_number";
    in_mount_namespace(TEST, || {
        let [volume, container, scratch] = [(); 3].map(|()| Tree::new());
        let mounted = [&volume, &container, &scratch].map(|tree| TestMount::tmpfs(tree.root()));
        let destinations = ["a", "a-b", "b"].map(|name| {
            container.directory(name, 0o755);
            Path::new("/").join(name)
        });
        let detached = open_tree(
            CWD,
            volume.root(),
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC,
        );
        let view = || View {
            subpath: Path::new(""),
            read_only: false,
            ids: None,
        };
        let scratch = ScratchDirectory::open(scratch.root()).expect("a private directory");
        let views = [view(), view(), view()].into_iter();
        let views = scratch.take_views(&detached.expect("a clone"), views, Deadline::never());
        let views = views.expect("views");

        let mut rootfs = Rootfs::open(container.root()).expect("it is mounted");
        let mut mount = |number: usize, deadline| {
            let none = MountAttrFlags::empty();
            rootfs.mount(&views[number], &destinations[number], none, deadline)
        };
        mount(0, Deadline::never()).expect("it is mounted");
        mount(1, Deadline::never()).expect("it is mounted");
        let error = mount(2, Deadline::after(Duration::ZERO)).expect_err("the deadline has passed");
        assert!(
            matches!(&error, RootfsError::TooSlow { destination, done: 2 } if *destination == destinations[2]),
            "{error}"
        );
        drop((views, mounted));
    });
}
