//! The e2e node like an operator's: both packages, containerd's service with the handlers `crust` (on runc) and
//! `crust-crun`, `crust_ops` under systemd, and a disk. Tests run one at a time, because they change shared services.

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

/// Returns the pid of the daemon, or 0 if it does not run.
fn daemon() -> i32 {
    property(SERVICE, "MainPID").parse().unwrap()
}

/// Stages a disk with an empty ext4 through the daemon.
#[track_caller]
fn stage_disk(pod: &InstalledPod) -> Disk {
    let disk = Disk::take();
    runcrust_tests::volume::mkfs("ext4", disk.path(), &[]);
    pod.stage(&disk).unwrap();
    disk
}
