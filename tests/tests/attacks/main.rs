//! Attacks by the author of a pod's spec, of images or of a volume's files, by whoever wrote the bytes on a device, and
//! by an unprivileged user on the node. docs/testing.md lists them.

mod damage;
mod devices;
mod forged;
mod fsgroup;
mod images;
mod mountpoints;
mod names;
mod raw_device;
mod subpath;
mod view;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use runcrust_tests::{Container, LoopDevice, refusal};
use rustix::fs::{CWD, RenameFlags, renameat_with};

const OTHER_POD: &str = "99999999-8888-7777-6666-555555555555";

/// Returns the path on the host of a path in a running container.
fn path_in_container(container: &Container, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", container.pid()))
}

/// Exchanges two names.
fn swap(one: &Path, other: &Path) {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).expect("a swap");
}

/// Runs `work` while two names are exchanged there and back repeatedly. Most of the time both are in their original
/// place.
fn while_swapped<T>(one: &Path, other: &Path, work: impl FnOnce() -> T) -> T {
    let there_and_back = || {
        swap(one, other);
        swap(one, other);
    };
    while_repeated(there_and_back, work)
}

/// Runs `work` while another thread calls `act` repeatedly.
fn while_repeated<T>(act: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    struct SetOnDrop<'a>(&'a AtomicBool);
    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetOnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                act();
                // This pause is long enough for a lookup to complete between two calls.
                (0..20).for_each(|_| thread::yield_now());
            }
        });
        work()
    })
}

/// Asserts that the device is not mounted on the host.
#[track_caller]
fn assert_not_on_the_host(device: &LoopDevice) {
    assert_eq!(
        refusal::unexpected_mounts(device, None),
        <[String; 0]>::default()
    );
}
