//! Regression tests: crashes, repeated calls, and unusual hosts.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use nix::libc;
use runcrust_tests::fault_injection::traced;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, Container, Node, POD, Run, StagedVolume, on_each_delegate, process, wait_until,
};

/// Returns the command in a new mount namespace whose mounts have this propagation.
fn in_namespace(propagation: &str, command: &Command) -> Command {
    let mut outer = Command::new("/usr/bin/unshare");
    outer.args(["--mount", "--propagation", propagation]);
    outer.arg(command.get_program()).args(command.get_args());
    outer.current_dir(command.get_current_dir().unwrap());
    outer
}

/// Returns a container of the same bundle with another id.
fn under_id(node: &Node, bundle: &Bundle, id: &str) -> Container {
    let other = bundle.clone().with_id(id);
    std::os::unix::fs::symlink(bundle.path(), other.path()).unwrap();
    node.container(&other)
}

/// Returns whether a create succeeds if `change` happens while it waits for a lock.
fn created_while_locked(node: &Node, app: &Container, lock: File, change: impl Fn()) -> bool {
    let held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let calls = node.dir().join("calls");
    let mut create = app.spawn(traced(&app.create_command(), "flock", &calls));
    wait_until("the create to wait for the lock", WAIT_TIMEOUT, || {
        fs::read_to_string(&calls).is_ok_and(|calls| calls.contains("EAGAIN"))
    });
    change();
    drop(held);
    let succeeded = create.wait().unwrap().success();
    fs::remove_file(calls).unwrap();
    succeeded
}

on_each_delegate! {
    fn any_propagation_of_the_hosts_mounts_works(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for propagation in ["private", "slave", "shared"] {
            let bundle = volume.app_bundle(&sandbox).write();
            let app = volume.container(&bundle);
            let _ = app.create_with(in_namespace(propagation, &app.create_command())).success();
            let _ = app.start().success();
            let _ = app.sh("echo x > /data/file");
            assert_eq!(volume.device.host_mounts(), Vec::<String>::new(), "{propagation}");
        }
    }

    fn a_failed_second_create_keeps_the_running_apps_volume(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&bundle);
        let pid = app.pid();
        let _ = app.create().failure();
        kill(sandbox.pid());
        assert!(process::is_alive(pid));
        let refused = volume.unstage().failure();
        assert!(refused.stderr.contains(app.id()), "the app must still use the volume: {refused}");
        let _ = volume.stats().success();
    }

    fn a_failed_create_with_another_bundle_keeps_the_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        let second = node.stage(POD, "pv-2", &other, &[]);
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]).write();
        let app = node.run(&bundle);
        let name = bundle.id();
        let refused = node.app_bundle(&sandbox).bind(&second, "/data", &[]).write();
        let mut create = app.command(&["create", "--bundle"]);
        create.arg(refused.path()).arg("--pid-file").arg(refused.path().join("pid")).arg(name);
        let _ = app.create_with(create).failure();
        let _ = app.sh("echo x > /data/file");
        app.stop();
        let _ = app.delete().success();
        let _ = app.create().success();
        let _ = app.start().success();
        assert_eq!(app.sh("cat /data/file"), "x", "the bundle must be usable a second time");
    }

    fn only_one_of_two_concurrent_creates_succeeds(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        for _ in 0..3 {
            let bundle = volume.app_bundle(&sandbox).write();
            let app = volume.container(&bundle);
            let mut both = [app.spawn(app.create_command()), app.spawn(app.create_command())];
            let succeeded = both.iter_mut().map(|create| create.wait().unwrap().success());
            assert_eq!(succeeded.filter(|succeeded| *succeeded).count(), 1);
            let _ = app.start().success();
            let _ = app.sh("echo x > /data/file");
            app.end();
            let _ = app.create().success();
            let _ = app.start().success();
            assert_eq!(app.sh("cat /data/file"), "x", "the bundle must be usable a second time");
            app.end();
        }
    }

    fn a_create_reads_its_bundle_after_waiting_for_it(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.node.app_bundle(&sandbox);
        let written = |destination| bundle.clone().bind(&volume.target, destination, &[]).write();
        let app = volume.container(&written("/before"));
        let directory = File::open(app.bundle()).unwrap();
        let change = || drop(written("/after"));
        assert!(created_while_locked(&volume, &app, directory, change), "{:?}", app.last_log_error());
        let _ = app.start().success();
        let destinations = app.sh("cut -d ' ' -f 3,5 /proc/self/mountinfo");
        let destinations = destinations.lines().filter_map(|line| line.strip_prefix(volume.device.number()));
        assert_eq!(destinations.collect::<Vec<_>>(), [" /after"]);
    }

    fn a_create_looks_up_its_volumes_after_waiting(delegate: Delegate) {
        let node = Node::with(delegate, "unstaged = \"pass\"");
        let (one, two) = (node.ext4(), node.ext4());
        let unstaged = node.target(POD, "pv-2");
        let target = node.stage(POD, "pv-1", &one, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&unstaged, "/second", &[]).bind(&target, "/data", &[]);
        let app = node.container(&bundle.write());
        let directory = File::open(app.bundle()).unwrap();
        let change = || drop(node.stage(POD, "pv-2", &two, &[]));
        assert!(created_while_locked(&node, &app, directory, change), "{:?}", app.last_log_error());
        let _ = app.start().success();
        assert_eq!(app.sh("grep ' /second ' /proc/self/mountinfo | cut -d' ' -f3"), two.number());
    }

    fn a_volume_restaged_while_a_create_waits_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let (info, before) = (volume.entry().join("mountInfo.json"), bundle.config_bytes());
        let text = fs::read_to_string(&info).unwrap();
        let other = text.replacen("\"fstype\"", "\"options\":[\"noatime\"],\"fstype\"", 1);
        let restage = || fs::write(&info, &other).unwrap();
        let remove = || fs::remove_dir_all(volume.entry()).unwrap();
        let cases: [(&dyn Fn(), &str); 2] = [(&restage, "was staged again"), (&remove, "nothing is staged at")];
        for (change, expected) in cases {
            let app = volume.container(&bundle);
            let lock = File::options().append(true).create(true).open(volume.lock_file(&volume.target)).unwrap();
            assert!(!created_while_locked(&volume, &app, lock, change), "{expected}");
            let error = app.last_log_error().unwrap();
            assert!(error.contains("volume pv-1: ") && error.contains(expected), "{error}");
            assert_eq!(bundle.config_bytes(), before, "{expected}");
        }
    }

    fn a_bundle_under_many_ids_has_its_latest_volume(delegate: Delegate) {
        let node = Node::new(delegate);
        let (one, two) = (node.ext4(), node.ext4());
        let targets = [node.stage(POD, "pv-1", &one, &[]), node.stage(POD, "pv-2", &two, &[])];
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox);
        let written = |target: &Path| bundle.clone().bind(target, "/data", &[]).write();
        let first = node.run(&written(&targets[0]));
        first.end();
        let bundle = written(&targets[1]);
        for n in 0..4 {
            let app = under_id(&node, &bundle, &format!("{}-{n}", bundle.id()));
            let _ = app.create().success();
            let _ = app.start().success();
            assert_eq!(app.sh("grep ' /data ' /proc/self/mountinfo | cut -d' ' -f3"), two.number(), "{n}");
            app.end();
        }
    }

    fn hundreds_of_subpaths_can_be_mounted_and_released(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let mut bundle = volume.node.app_bundle(&sandbox);
        for n in 0..250 {
            let long = format!("{n}-{}", "x".repeat(120));
            bundle = bundle.bind(volume.target.join(&long), &format!("/volumes/{long}"), &[]);
        }
        let app = volume.run(&bundle.write());
        assert!(fs::metadata(volume.entry().join("runcrust.json")).unwrap().len() > 64 * 1024);
        assert_eq!(app.sh("ls /volumes | wc -l"), "250");
        let second = volume.app(&sandbox);
        for container in [app, second, sandbox] {
            container.end();
        }
        let _ = volume.unstage().success();
    }

    fn a_damaged_record_does_not_block_unstage_forever(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        fs::write(volume.entry().join("runcrust.json"), "{").unwrap();
        let refused = volume.unstage().failure();
        assert!(refused.stderr.contains("is in use by a user that runcrust has no record of"), "the device is busy: {refused}");
        kill(sandbox.pid());
        let _ = volume.unstage().success();
        assert!(!volume.entry().exists());
    }

    fn a_locked_volume_does_not_delay_another_pods_end(delegate: Delegate) {
        let node = Node::new(delegate);
        let (own, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &own, &[]);
        let busy = node.stage("other-pod", "pv-2", &other, &[]);
        let _other_sandbox = node.sandbox("other-pod");
        let sandbox = node.sandbox(POD);
        let digest = node.entry(&busy).file_name().unwrap().to_str().unwrap().to_owned();
        let file = node.handler().state_dir().join(format!("locks/{digest}.lock"));
        let file = File::options().write(true).open(file).unwrap();
        let _held = Flock::lock(file, FlockArg::LockExclusive).unwrap();
        sandbox.end();
        assert!(!node.entry(&target).join("runcrust.json").exists());
        let errors = sandbox.log_lines().into_iter().filter(|line| line.level == "error");
        assert_eq!(errors.count(), 0);
    }

    fn an_orphaned_hook_keeps_the_next_sandboxs_record(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let sandbox = volume.container(&volume.sandbox_bundle(POD).write());
        let lock = File::options().append(true).create(true).open(volume.lock_file(&volume.target)).unwrap();
        let held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        let create = || {
            let create = sandbox.spawn(sandbox.create_command());
            let record = sandbox_record(&volume, &sandbox);
            wait_until("the sandbox's record", WAIT_TIMEOUT, || {
                fs::read(&record).is_ok_and(|record| !record.is_empty())
            });
            create
        };
        let mut killed = create();
        let directory = utf8(volume.dir().path());
        let hooks = || process::with_command_line(|line| line.contains("crust-mount-hook") && line.contains(directory));
        let first_record = fs::read(sandbox_record(&volume, &sandbox)).unwrap();
        kill(killed.id().cast_signed());
        let _ = killed.wait().unwrap();
        sandbox.clean_up_after_kill();
        assert_eq!(hooks().len(), 1, "the hook outlives the delegate, and waits for the lock");
        let mut second = create();
        wait_until("the second record", WAIT_TIMEOUT, || {
            fs::read(sandbox_record(&volume, &sandbox)).is_ok_and(|record| record != first_record)
        });
        drop(held);
        assert!(second.wait().unwrap().success(), "{:?}", sandbox.last_log_error());
        let _ = sandbox.start().success();
        wait_until("the hooks to end", WAIT_TIMEOUT, || hooks().is_empty());
        let process = process_of(&volume, &sandbox);
        assert_eq!(process["pid"], sandbox.pid());
        let _app = volume.app(&sandbox);
    }

    fn a_late_release_keeps_a_live_container_and_sandbox(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let sandbox_bundle = volume.sandbox_bundle(POD).write();
        let sandbox = volume.run(&sandbox_bundle);
        let app_bundle = volume.app_bundle(&sandbox).write();
        let app = volume.run(&app_bundle);
        let before = volume.records();
        // The hooks of an earlier container with the same id, whose delegate was killed.
        for (bundle, container) in [(&sandbox_bundle, &sandbox), (&app_bundle, &app)] {
            let config = bundle.config();
            let hooks = config["hooks"]["poststop"].as_array().unwrap();
            assert!(!hooks.is_empty());
            for hook in hooks {
                let arguments = hook["args"].as_array().unwrap().iter().skip(1);
                let state = format!(r#"{{"ociVersion": "1.0.2", "id": "{}", "status": "stopped", "bundle": "{}"}}"#, container.id(), bundle.path().display());
                let mut command = Command::new("sh");
                command.args(["-c", "state=$1; shift; echo \"$state\" | \"$@\"", "sh", &state]);
                command.arg(hook["path"].as_str().unwrap()).args(arguments.map(|it| it.as_str().unwrap()));
                let _ = Run::capture(&mut command).success();
            }
        }
        assert_eq!(volume.records(), before);
        let refused = volume.unstage().failure();
        assert!(refused.stderr.contains("it is in use by pod"), "{refused}");
        let _second = volume.app(&sandbox);
    }

    fn containers_can_be_stopped_with_a_wrong_configuration(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        volume.handler().reconfigure("sandbxo = \"always\"");
        assert_eq!(app.status().as_deref(), Some("running"));
        app.stop();
        let _ = app.delete().success();
        let refused = volume.container(&volume.node.app_bundle(&sandbox).write());
        let _ = refused.create().failure();
        assert!(refused.last_log_error().unwrap().contains("sandbxo"));
    }

    fn a_killed_creates_record_does_not_prove_a_superblock(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        let sandbox = node.sandbox(POD);
        // The record of a create that was killed after it wrote the record and before it mounted.
        let target = node.stage(POD, "pv-1", &device, &[]);
        let app = node.app(&sandbox, &target, "/data");
        let record = node.entry(&target).join("runcrust.json");
        let left = fs::read_to_string(&record).unwrap();
        app.end();
        sandbox.end();
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&target).success();
        let second = node.sandbox(POD);
        let _ = node.stage(POD, "pv-1", &device, &[]);
        let mut left: serde_json::Value = serde_json::from_str(&left).unwrap();
        left["users"].as_array_mut().unwrap().truncate(1);
        left["users"][0]["id"] = second.id().into();
        left["users"][0]["sandbox"] = second.id().into();
        left["users"][0]["process"] = process_of(&node, &second);
        fs::write(&record, left.to_string()).unwrap();
        let bundle = node.app_bundle(&second).bind(&target, "/data", &[]).write();
        let app = node.container(&bundle);
        with_mounted(device.path(), |_| {
            let _ = app.create().failure();
        });
        let error = app.last_log_error().unwrap();
        assert!(error.contains("in use by a user that runcrust has no record of"), "{error}");
    }

    /// A killed create leaves the device busy until its process is gone.
    fn create_waits_for_a_device_that_is_soon_released(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let container = volume.container(&bundle);
        let held = File::options().read(true).custom_flags(libc::O_EXCL).open(volume.device.path()).unwrap();
        let trace = volume.dir().join("strace");
        let mut create = container.spawn(traced(&container.create_command(), "open,openat", &trace));
        wait_until("the create to find the device busy", WAIT_TIMEOUT, || {
            fs::read_to_string(&trace).is_ok_and(|text| text.contains("EBUSY"))
        });
        drop(held);
        assert!(create.wait().unwrap().success(), "{:?}", container.last_log_error());
    }

    fn a_read_only_volume_is_read_only_at_every_mount(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume
            .node
            .app_bundle(&sandbox)
            .bind(&volume.target, "/data", &["rbind", "rprivate", "ro"])
            .bind(volume.handler().state_dir(), "/host", &[]);
        let app = volume.run(&bundle.write());
        let _ = app.exec(&["/bin/sh", "-c", "touch /data/x"]).failure();
        let other_mount = app.exec(&["/bin/sh", "-c", "cd /host/attach/*/ && touch x"]).failure();
        assert!(other_mount.stderr.contains("Read-only file system"), "{other_mount}");
    }

    fn a_stock_kubelets_bind_of_a_staged_volume_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bind = volume.handler().kubelet_dir().join(format!("pods/{POD}/volume-subpaths/pv-1/app/0"));
        fs::create_dir_all(&bind).unwrap();
        let app = volume.container(&volume.node.app_bundle(&sandbox).bind(&bind, "/data", &[]).write());
        let error = app.expect_refusal();
        assert!(error.contains("volume pv-1") && error.contains("volume-subpaths/pv-1"), "{error}");
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0);
    }
}

/// Returns the path of a sandbox's record.
fn sandbox_record(node: &Node, sandbox: &Container) -> PathBuf {
    let file = format!("sandboxes/{}.json", sandbox.id());
    node.handler().state_dir().join(file)
}

/// Returns the process of a sandbox in the form of a record.
fn process_of(node: &Node, sandbox: &Container) -> serde_json::Value {
    let file = sandbox_record(node, sandbox);
    let record: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    record["process"].clone()
}

#[test]
fn unrelated_damaged_records_block_nothing() {
    let volume = StagedVolume::new(runcrust_tests::Delegate::Runc);
    for (directory, name) in [
        ("owners", "259:99999.json".to_owned()),
        ("bundles", format!("{}.json", "0".repeat(64))),
        ("sandboxes", "gone.json".to_owned()),
    ] {
        let directory = volume.handler().state_dir().join(directory);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(name), "{").unwrap();
    }
    let sandbox = volume.sandbox();
    let app = volume.app(&sandbox);
    for container in [app, sandbox] {
        container.end();
        let errors = container.log_lines().into_iter();
        assert_eq!(errors.filter(|line| line.level == "error").count(), 0);
        fs::remove_dir_all(container.bundle()).unwrap();
    }
    let _ = volume.unstage().success();
    let left = volume.records();
    assert_eq!(
        left.len(),
        3,
        "only the damaged records may be left: {left:?}"
    );
}

#[test]
fn creates_leave_no_lock_files() {
    let (volume, sandbox) = StagedVolume::with_sandbox(runcrust_tests::Delegate::Runc);
    let locks = || {
        fs::read_dir(volume.handler().state_dir().join("locks"))
            .unwrap()
            .count()
    };
    let before = locks();
    for _ in 0..3 {
        volume.app(&sandbox).end();
    }
    assert_eq!(locks(), before);
}

#[test]
fn too_many_options_are_refused_by_stage() {
    let (node, device) = Node::with_ext4(runcrust_tests::Delegate::Runc);
    let target = node.target(POD, "pv-1");
    let option = format!("x-{}", "y".repeat(200));
    let options: Vec<&str> = (0..400).flat_map(|_| ["--option", &option]).collect();
    let refused = node.try_stage(&target, device.path(), &options).failure();
    assert!(refused.stderr.contains("INVALID_ARGUMENT"), "{refused}");
    assert!(!node.entry(&target).exists());
}

#[test]
fn unstage_of_a_busy_device_names_the_device() {
    let (volume, sandbox) = StagedVolume::with_sandbox(runcrust_tests::Delegate::Runc);
    sandbox.end();
    volume.device.wait_until_free(WAIT_TIMEOUT);
    let refused = with_mounted(volume.device.path(), |_| volume.unstage()).failure();
    assert!(refused.stderr.contains("FAILED_PRECONDITION"), "{refused}");
    assert!(
        refused.stderr.contains(utf8(volume.device.path())),
        "{refused}"
    );
    assert!(volume.entry().exists(), "the entry was removed");
    let _ = volume.unstage().success();
}
