//! What somebody would try who writes a pod's spec and its containers' images and files, who wrote the
//! bytes on its device, or who has an account on the node. docs/testing.md has the list.

mod damage;
mod devices;
mod forged;
mod fsgroup;
mod images;
mod names;
mod places;
mod raw_device;
mod subpath;
mod view;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use runcrust_tests::{Container, LoopDevice, refusal};
use rustix::fs::{CWD, RenameFlags, renameat_with};

const OTHER_POD: &str = "99999999-8888-7777-6666-555555555555";

/// A place in a running container, as a path on the host.
fn inside(container: &Container, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", container.pid()))
}

/// Two names change places.
fn swap(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("a swap");
}

/// Does `work` while two names change places again and again; mostly they are as they were.
fn while_swapped<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    let there_and_back = || {
        swap(one, other);
        swap(one, other);
    };
    while_repeated(there_and_back, work)
}

/// Does `work` while something else is done again and again.
fn while_repeated<T>(act: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                act();
                // A lookup takes as long as so many of them.
                (0..20).for_each(|_| thread::yield_now());
            }
        });
        work()
    })
}

/// The device is mounted nowhere on the host.
#[track_caller]
fn assert_not_on_the_host(device: &LoopDevice) {
    assert_eq!(
        refusal::unexpected_mounts(device, None),
        <[String; 0]>::default()
    );
}
