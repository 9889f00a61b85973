//! Ordinary mounts of a volume's device on a host whose mounts are shared: another pod's, or an
//! administrator's. Whenever one appears it stays.

use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use runcrust_tests::steps::{self, Step, TraceOutcome};
use runcrust_tests::{Container, Delegate, LoopDevice, Node, StagedVolume, host, on_each_delegate};

use super::end;

/// A place on the host for mounts.
struct Mounts {
    directory: PathBuf,
    made: usize,
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for nth in 0..self.made {
            let _ = umount2(&self.directory.join(nth.to_string()), MntFlags::MNT_DETACH);
        }
    }
}

impl Mounts {
    fn new(node: &Node, name: &str) -> Self {
        Self {
            directory: node.dir().subdir(name),
            made: 0,
        }
    }

    fn add(&mut self, source: &Path, fstype: &str) {
        let place = self.directory.join(self.made.to_string());
        fs::create_dir(&place).unwrap();
        let nothing: Option<&str> = None;
        let flags = MsFlags::empty();
        mount(Some(source), &place, Some(fstype), flags, nothing).expect("a mount");
        self.made += 1;
    }

    fn add_device(&mut self, device: &LoopDevice) {
        self.add(device.path(), device.fstype());
    }

    #[track_caller]
    fn all_stay(&self) {
        assert_eq!(host::mounts_below(&self.directory).len(), self.made);
    }
}

/// Creates a container; after each step that is `wanted` the device is mounted once more.
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
    fn one_that_appears_at_any_step_of_a_create_stays(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let first = volume.app(&sandbox);
        let mut mounts = Mounts::new(&volume, "ordinary");
        let app = volume.container(&volume.app_bundle(&sandbox).write());
        let ended = create_while_mounting(&app, &volume.device, &mut mounts, |_| true);
        assert!(mounts.made > 50, "{}", mounts.made);
        mounts.all_stay();
        // Whether the container made them can't be told by all delegates' ways.
        assert!(!ended.success);
        if delegate == Delegate::Runc {
            let sentence = app.last_log_error().unwrap();
            let place = format!("its device was mounted at {}", mounts.directory.display());
            assert!(sentence.contains("volume pv-1: ") && sentence.contains(&place), "{sentence}");
        }
        drop(app);
        // Those that are there before a create are no matter.
        let second = volume.app(&sandbox);
        assert_eq!(second.sh("echo on > /data/file; cat /data/file"), "on");
        mounts.all_stay();
        end([second, first, sandbox]);
        mounts.all_stay();
    }

    fn one_that_appears_after_the_check_stays_in_place(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let first = volume.app(&sandbox);
        let mut others = Mounts::new(&volume, "others");
        (0..400).for_each(|_| others.add(Path::new("others"), "tmpfs"));
        let mut mounts = Mounts::new(&volume, "ordinary");
        mounts.add_device(&volume.device);
        let app = volume.container(&volume.app_bundle(&sandbox).write());
        // The record is written when all has been looked at.
        let is_published = |step: &Step| step.program == "crust-mount-hook publish" && step.call.starts_with("rename");
        let ended = create_while_mounting(&app, &volume.device, &mut mounts, is_published);
        assert!(ended.success, "{:?}", app.last_log_error());
        assert!(mounts.made > 1);
        let _ = app.start().success();
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        mounts.all_stay();
        others.all_stay();
        end([app, first, sandbox]);
        mounts.all_stay();
    }
}
