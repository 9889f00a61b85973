//! Ordinary mounts of a volume's device on the host, by another pod or an administrator, while mounts are shared. Such
//! a mount stays, whenever it appears.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use runcrust_tests::steps::{self, Step, TraceOutcome};
use runcrust_tests::{Container, Delegate, LoopDevice, Node, StagedVolume, host, on_each_delegate};

use super::end;

/// A directory on the host with test mounts, unmounted when dropped.
struct Mounts {
    directory: PathBuf,
    count: usize,
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for nth in 0..self.count {
            let _ = umount2(&self.directory.join(nth.to_string()), MntFlags::MNT_DETACH);
        }
    }
}

impl Mounts {
    fn new(node: &Node, name: &str) -> Self {
        Self {
            directory: node.dir().subdir(name),
            count: 0,
        }
    }

    fn add(&mut self, source: &Path, fstype: &str) {
        let mountpoint = self.directory.join(self.count.to_string());
        fs::create_dir(&mountpoint).unwrap();
        let nothing: Option<&str> = None;
        let flags = MsFlags::empty();
        mount(Some(source), &mountpoint, Some(fstype), flags, nothing).expect("a mount");
        self.count += 1;
    }

    fn add_device(&mut self, device: &LoopDevice) {
        self.add(device.path(), device.fstype());
    }

    #[track_caller]
    fn assert_all_mounted(&self) {
        assert_eq!(host::mounts_below(&self.directory).len(), self.count);
    }
}

/// Creates a container, and mounts the device on the host after each step for which `wanted` returns true.
fn create_while_mounting(
    app: &Container,
    device: &LoopDevice,
    mounts: &mut Mounts,
    wanted: impl Fn(&Step) -> bool + Sync,
) -> TraceOutcome {
    let after = |step: &Step| {
        if wanted(step) {
            mounts.add_device(device);
        }
    };
    steps::trace_create(&app.create_command(), after, |it| app.spawn(it))
}

on_each_delegate! {
    fn an_ordinary_mount_made_during_a_create_stays(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let first = volume.app(&sandbox);
        let mut mounts = Mounts::new(&volume, "ordinary");
        let app = volume.container(&volume.app_bundle(&sandbox).write());
        let ended = create_while_mounting(&app, &volume.device, &mut mounts, |_| true);
        assert!(mounts.count > 50, "{}", mounts.count);
        mounts.assert_all_mounted();
        // The create fails, because with some delegates runcrust can't see whether the container made the mounts.
        assert!(!ended.success);
        if delegate == Delegate::Runc {
            let sentence = app.last_log_error().unwrap();
            let place = format!("its device was mounted at {}", mounts.directory.display());
            assert!(sentence.contains("volume pv-1: ") && sentence.contains(&place), "{sentence}");
        }
        drop(app);
        // Mounts that existed before a create do not matter.
        let second = volume.app(&sandbox);
        assert_eq!(second.sh("echo on > /data/file; cat /data/file"), "on");
        mounts.assert_all_mounted();
        end([second, first, sandbox]);
        mounts.assert_all_mounted();
    }

    fn an_ordinary_mount_made_after_the_check_stays(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let first = volume.app(&sandbox);
        let mut others = Mounts::new(&volume, "others");
        (0..400).for_each(|_| others.add(Path::new("others"), "tmpfs"));
        let mut mounts = Mounts::new(&volume, "ordinary");
        mounts.add_device(&volume.device);
        let app = volume.container(&volume.app_bundle(&sandbox).write());
        // The record is written when all mounts have been checked.
        let is_published = |step: &Step| step.program == "crust-mount-hook publish" && step.call.starts_with("rename");
        let ended = create_while_mounting(&app, &volume.device, &mut mounts, is_published);
        assert!(ended.success, "{:?}", app.last_log_error());
        assert!(mounts.count > 1);
        let _ = app.start().success();
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        mounts.assert_all_mounted();
        others.assert_all_mounted();
        end([app, first, sandbox]);
        mounts.assert_all_mounted();
    }
}
