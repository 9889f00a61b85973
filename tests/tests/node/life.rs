//! A pod's volume on a real disk, from stage to unstage.

use std::fs;
use std::process::Command;

use runcrust_tests::installed::systemctl;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::volume::fsck_ext4;
use runcrust_tests::{
    Disk, InstalledPod, MountWatcher, Run, on_each_delegate, process, wait_until,
};
use tonic::Code;

use crate::{MIB, stage_disk};

on_each_delegate! {
    #[ignore = "needs the e2e node; runs in the guest: make vm-test"]
    fn a_pod_uses_a_disk_staged_through_the_daemon(delegate: Delegate) {
        let pod = InstalledPod::new(delegate);
        let disk = stage_disk(&pod);
        let watcher = MountWatcher::start(disk.path());
        let sandbox = pod.run();
        let app = pod.app(&sandbox, "one");
        let _ = pod.cri().sh(&app, "echo kept > /data/file");
        let mounted = pod.cri().sh(&app, "grep ' /data ' /proc/self/mountinfo");
        assert!(mounted.contains(&format!(" - ext4 {} ", utf8(disk.path()))), "{mounted}");
        for (id, pid) in [(&sandbox, pod.cri().pod_pid(&sandbox)), (&app, pod.cri().pid(&app))] {
            let group = fs::read_to_string(format!("/proc/{}/cgroup", pid.unwrap())).unwrap();
            assert_eq!(group, format!("0::{}\n", pod.scope(id)), "not the cgroup made by systemd");
        }
        let usage = pod.ops().stats(pod.target()).unwrap().usage;
        assert!(usage.iter().any(|one| one.total > 400 * MIB && one.used > 0), "{usage:?}");
        assert_eq!(pod.ops().unstage(pod.target()).unwrap_err().code(), Code::FailedPrecondition);

        pod.end(&sandbox);
        pod.ops().unstage(pod.target()).unwrap();
        watcher.assert_never_mounted();
        assert!(disk.is_free());
        fsck_ext4(disk.path());
        assert_eq!(pod.ops().stats(pod.target()).unwrap_err().code(), Code::NotFound);
    }

    /// Growing ext4 needs `CAP_SYS_RESOURCE`, which the unit leaves to the programs that the daemon runs.
    #[ignore = "needs the e2e node; runs in the guest: make vm-test"]
    fn a_volume_grows_while_it_is_written(delegate: Delegate) {
        let pod = InstalledPod::new(delegate);
        let disk = Disk::take();
        let mut mkfs = Command::new("mkfs.ext4");
        let _ = Run::capture(mkfs.args(["-q", "-F"]).arg(disk.path()).arg("64M")).success();
        pod.stage(&disk).unwrap();
        let sandbox = pod.run();
        let app = pod.app(&sandbox, "one");
        let blocks = || -> i64 {
            let words = pod.cri().sh(&app, "stat -f -c '%S %b' /data");
            words.split_whitespace().map(|word| word.parse::<i64>().unwrap()).product()
        };
        assert!(blocks() < 64 * MIB);
        // The loop does not inherit the call's streams, because the call would otherwise wait for it.
        let script = "(while date >> /data/log; do :; done) > /dev/null 2>&1 &";
        let _ = pod.cri().sh(&app, script);
        assert_eq!(pod.ops().expand(pod.target(), 256 * MIB, 0).unwrap(), 512 * MIB);
        assert!(blocks() > 400 * MIB);
        let size = || pod.cri().sh(&app, "stat -c %s /data/log");
        let before = size();
        wait_until("the writer to continue", WAIT_TIMEOUT, || size() != before);
        pod.end(&sandbox);
        pod.ops().unstage(pod.target()).unwrap();
        fsck_ext4(disk.path());
    }

    #[ignore = "needs the e2e node; runs in the guest: make vm-test"]
    fn a_pod_outlives_a_restart_of_containerd(delegate: Delegate) {
        let pod = InstalledPod::new(delegate);
        let _disk = stage_disk(&pod);
        let sandbox = pod.run();
        let app = pod.app(&sandbox, "one");
        let _ = pod.cri().sh(&app, "echo kept > /data/file");
        let pid = pod.cri().pid(&app).unwrap();
        let _ = systemctl(&["restart", "containerd.service"]);
        wait_until("containerd's CRI", WAIT_TIMEOUT, || pod.cri().is_ready());
        assert!(process::is_alive(pid));
        assert_eq!(pod.cri().sh(&app, "cat /data/file").trim(), "kept");
        let another = pod.app(&sandbox, "two");
        assert_eq!(pod.cri().sh(&another, "cat /data/file").trim(), "kept");
        pod.end(&sandbox);
        pod.ops().unstage(pod.target()).unwrap();
    }
}
