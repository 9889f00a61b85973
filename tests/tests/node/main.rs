//! The e2e node as an operator has it: both packages, containerd's own service with the handlers
//! `crust` (on runc) and `crust-crun`, `crust_ops` under systemd, a disk. What one test does to the
//! services the others would notice: they are run one at a time.

mod daemon;
mod daemonset;
mod doctor;
mod life;
mod packages;

use runcrust_tests::installed::property;
use runcrust_tests::{Disk, InstalledPod};

const SERVICE: &str = "crust_ops.service";
const SOCKET: &str = "crust_ops.socket";

const MIB: i64 = 1 << 20;

/// The daemon's process; 0, there is none.
fn daemon() -> i32 {
    property(SERVICE, "MainPID").parse().unwrap()
}

/// A disk with an empty ext4, staged through the daemon.
#[track_caller]
fn staged(pod: &InstalledPod) -> Disk {
    let disk = Disk::take();
    runcrust_tests::volume::mkfs("ext4", disk.path(), &[]);
    pod.stage(&disk).unwrap();
    disk
}
