//! Different ways to call the runtime with a deferred volume, and the messages for an operator.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::container::end;
use runcrust_tests::{
    Container, Delegate, Node, POD, Run, Runtime, StagedVolume, binary, mounts, on_each_delegate,
};

/// Runs `create` or `run` in a given directory, with the given arguments for the bundle.
fn call(container: &Container, verb: &[&str], bundle: &[&str], directory: &Path) -> Run {
    let mut command: Command = container.command(verb);
    let pid_file = container.bundle().join("init.pid");
    command.args(bundle).arg("--pid-file").arg(pid_file);
    command.arg(container.id()).current_dir(directory);
    container.create_with(command)
}

/// Hides, in this mount namespace, the programs that runcrust would choose before the delegate.
fn hide_preferred_delegates(delegate: Delegate) {
    let others = ["/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc"];
    for other in others.iter().filter(|_| delegate == Delegate::Crun) {
        if let Ok(program) = fs::canonicalize(other) {
            mounts::bind(Path::new("/dev/null"), &program);
        }
    }
}

on_each_delegate! {
    fn bundles_by_working_directory_or_relative_path_are_found(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let parent = volume.dir().join("bundles");
        for (flags, inside) in [(vec![], true), (vec!["--bundle", "."], true), (vec!["-b", "NAME"], false)] {
            let bundle = volume.app_bundle(&sandbox).write();
            let app = volume.container(&bundle);
            let name = bundle.path().file_name().unwrap().to_str().unwrap();
            let flags: Vec<&str> = flags.iter().map(|flag| if *flag == "NAME" { name } else { flag }).collect();
            let directory = if inside { bundle.path() } else { &parent };
            let _ = call(&app, &["create"], &flags, directory).success();
            let _ = app.start().success();
            assert_eq!(app.sh("grep -c ' /data .* ext4 ' /proc/self/mountinfo"), "1", "{flags:?}");
        }
    }

    fn a_container_that_is_run_has_its_volume(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.container(&bundle);
        let _ = call(&app, &["run", "--detach"], &["--bundle", bundle.path().to_str().unwrap()], bundle.path()).success();
        let _ = app.sh("echo x > /data/file");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0);
    }

    fn a_failed_sandbox_is_reported_despite_a_read_only_stderr(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        fs::write(volume.entry().join("mountInfo.json"), "{").unwrap();
        let sandbox = volume.container(&volume.sandbox_bundle(POD).write());
        // The harness opens a sandbox's three streams read-only, as containerd does.
        let error = sandbox.expect_refusal();
        assert!(error.starts_with("volume pv-1: ") && error.contains("mountInfo.json: isn't JSON"), "{error}");
    }

    fn a_pod_has_its_volume_without_any_configuration(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        mounts::in_private_namespace(|| {
            for directory in ["/run", "/etc/runcrust", "/var/lib"] {
                mounts::tmpfs(Path::new(directory));
            }
            hide_preferred_delegates(delegate);
            let runcrust = node.dir().join("runcrust");
            symlink(binary("runcrust"), &runcrust).unwrap();
            let runtime = Runtime::at(runcrust, delegate);
            let target = format!("/var/lib/kubelet/pods/{POD}/volumes/kubernetes.io~csi/pv-1/mount");
            fs::create_dir_all(&target).unwrap();
            let mut stage = runtime.command();
            stage.args(["crust", "stage", &target, "--fstype", "ext4", "--device"]).arg(device.path());
            let _ = Run::capture(&mut stage).success();
            let sandbox = Container::running(&runtime, &node.sandbox_bundle(POD).write());
            let app = Container::running(&runtime, &node.app_bundle(&sandbox).bind(&target, "/data", &[]).write());
            assert_eq!(app.sh("grep -c ' /data .* ext4 ' /proc/self/mountinfo"), "1");
            let state = match delegate {
                Delegate::Runc => "state.json",
                Delegate::Crun => "status",
            };
            assert!(app.root().join(app.id()).join(state).exists(), "another delegate ran the app");
            for directory in ["crust", "runcrust/sandboxes"] {
                assert_eq!(fs::read_dir(Path::new("/run").join(directory)).unwrap().count(), 1, "{directory}");
            }
            end([app, sandbox]);
        });
        assert_eq!(node.records(), Vec::<PathBuf>::new(), "a configuration file was used");
    }

    fn a_missing_hook_is_reported_before_any_change(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let _target = node.stage(POD, "pv-1", &device, &[]);
        let configuration = fs::read_to_string(node.handler().configuration()).unwrap();
        let without = configuration.lines().map(|line| {
            if line.starts_with("hook = ") { "hook = \"/no/such/hook\"" } else { line }
        });
        let text = without.collect::<Vec<_>>().join("\n");
        fs::write(node.handler().configuration(), text).unwrap();
        let bundle = node.sandbox_bundle(POD).write();
        let before = bundle.config_bytes();
        let sandbox = node.container(&bundle);
        let error = sandbox.expect_refusal();
        assert!(error.contains("/no/such/hook") && error.contains("hint: install crust-mount-hook"), "{error}");
        assert_eq!(bundle.config_bytes(), before);
    }

    fn the_log_lists_mounted_and_failed_volumes(delegate: Delegate) {
        let node = Node::new(delegate);
        let log = node.dir().join("runcrust.log");
        node.handler().reconfigure(&format!("log = {log:?}"));
        let (good, bad) = (node.ext4(), runcrust_tests::LoopDevice::new(node.dir(), 4));
        let target = node.stage(POD, "pv-good", &good, &["--fs-group", "321"]);
        let _empty = node.stage(POD, "pv-bad", &bad, &[]);
        let sandbox = node.sandbox(POD);
        let text = fs::read_to_string(&log).unwrap();
        let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {text}"));
        assert!(line("mounted in the sandbox").contains(target.to_str().unwrap()), "{text}");
        assert!(line("fsGroup was applied").contains("321"), "{text}");
        assert!(line("WARN").contains("volume pv-bad: "), "{text}");
        let record = node.handler().state_dir().join(format!("sandboxes/{}.json", sandbox.id()));
        assert!(fs::read_to_string(record).unwrap().contains("volume pv-bad: "));
    }
}
