//! The caller's environment has no effect: programs that it names are not run, and files that it names are neither read
//! nor written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::{Container, Node, POD, Run, on_each_delegate};

/// Programs that a mount tool might call by name.
const PROGRAMS: [&str; 16] = [
    "runcrust",
    "crust-mount-hook",
    "runc",
    "crun",
    "mount",
    "umount",
    "fsck",
    "fsck.ext4",
    "e2fsck",
    "mkfs.ext4",
    "resize2fs",
    "xfs_growfs",
    "blkid",
    "modprobe",
    "systemctl",
    "sh",
];

/// An environment whose variables all lead to traps.
struct TrapEnvironment {
    bin: PathBuf,
    /// The file that each trap writes to.
    log: PathBuf,
    empty: PathBuf,
    elsewhere: PathBuf,
}

impl TrapEnvironment {
    fn new(node: &Node) -> Self {
        let bin = node.dir().subdir("bin");
        let log = node.dir().join("trap.log");
        let trap = format!("#!/bin/sh\necho \"$0 $*\" >>{}\nexit 1\n", utf8(&log));
        for program in PROGRAMS {
            fs::write(bin.join(program), &trap).unwrap();
            fs::set_permissions(bin.join(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let elsewhere = node.dir().join("elsewhere.toml");
        fs::write(&elsewhere, "no_such_key = 1").unwrap();
        Self {
            bin,
            log,
            empty: node.dir().subdir("empty"),
            elsewhere,
        }
    }

    /// Sets the environment of a command.
    fn with_environment(&self, mut command: Command) -> Command {
        command.env("PATH", &self.bin);
        for name in [
            "TMPDIR",
            "HOME",
            "XDG_RUNTIME_DIR",
            "XDG_CONFIG_HOME",
            "RUNCRUST_ROOT",
            "CRUST_ROOT",
        ] {
            command.env(name, &self.empty);
        }
        for name in ["RUNCRUST_CONFIG", "RUNCRUST_CONFIG_FILE", "CRUST_CONFIG"] {
            command.env(name, &self.elsewhere);
        }
        for name in ["DELEGATE", "RUNCRUST_DELEGATE", "RUNCRUST_HOOK"] {
            command.env(name, self.bin.join("runc"));
        }
        command.env("RUST_LOG", "trace");
        command
    }

    #[track_caller]
    fn run(&self, command: Command) -> Run {
        Run::capture(&mut self.with_environment(command)).success()
    }

    #[track_caller]
    fn create(&self, container: &Container) {
        let created = container
            .create_with(self.with_environment(container.create_command()))
            .success();
        assert_eq!((&*created.stdout, &*created.stderr), ("", ""));
        let _ = self.run(container.command(&["start", container.id()]));
    }

    #[track_caller]
    fn assert_unused(&self) {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        assert_eq!(log, "", "programs were run by their names");
        assert_eq!(
            fs::read_dir(&self.empty).unwrap().count(),
            0,
            "files were created in the caller's directory"
        );
    }
}

on_each_delegate! {
    fn the_callers_environment_is_ignored(delegate: Delegate) {
        let node = Node::new(delegate);
        let trap = TrapEnvironment::new(&node);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let path = utf8(&target);
        let crust = |arguments: &[&str]| {
            let mut command = node.handler().command();
            command.arg("crust").args(arguments);
            trap.run(command)
        };
        let _ = crust(&["stage", path, "--device", utf8(device.path()), "--fstype", "ext4", "--fs-group", "2000"]);
        let sandbox = node.container(&node.sandbox_bundle(POD).write());
        trap.create(&sandbox);
        let bundle = node.app_bundle(&sandbox).bind(target.join("sub"), "/data", &[]).write();
        let app = node.container(&bundle);
        trap.create(&app);
        assert_eq!(app.sh("stat -c %g /data"), "2000");
        let _ = crust(&["stats", path]);
        let _ = crust(&["list"]);
        let _ = crust(&["explain", utf8(bundle.path())]);
        for container in [app, sandbox] {
            let _ = trap.run(container.command(&["delete", "--force", container.id()]));
        }
        let _ = crust(&["unstage", path]);
        trap.assert_unused();
    }
}
