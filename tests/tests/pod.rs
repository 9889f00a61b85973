//! A pod with a deferred volume, run through the runtime's command line.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use runcrust_tests::container::end;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::process::kill_and_wait as kill;
use runcrust_tests::volume::{fsck_ext4, with_mounted};
use runcrust_tests::{MountWatcher, Node, POD, Run, StagedVolume, on_each_delegate};
use serde_json::json;

on_each_delegate! {
    fn two_apps_share_one_superblock_that_the_host_never_sees(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let watcher = MountWatcher::start(volume.device.path());
        let sandbox = volume.sandbox();
        let one = volume.app(&sandbox);
        let two = volume.node.app(&sandbox, &volume.target, "/elsewhere/deep");

        let _ = one.sh("echo hello > /data/file");
        assert_eq!(two.sh("cat /elsewhere/deep/file"), "hello");
        assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /elsewhere/deep"));
        assert_ne!(one.sh("stat -c %d /data"), one.sh("stat -c %d /"));

        watcher.assert_never_mounted();
        end([one, two, sandbox]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        fsck_ext4(volume.device.path());
        assert_eq!(with_mounted(volume.device.path(), |root| fs::read(root.join("file")).unwrap()), b"hello\n");
        volume.unstage_all();
        assert_eq!(fs::read_dir(&volume.target).unwrap().count(), 0, "files are left on the host");
    }

    fn an_app_restarted_in_the_pod_keeps_its_volume(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let first = volume.app(&sandbox);
        let _ = first.sh("echo kept > /data/file");
        let before = first.sh("stat -c %d:%i /data/file");
        end([first]);
        let second = volume.app(&sandbox);
        assert_eq!(second.sh("stat -c %d:%i /data/file"), before);
        assert_eq!(second.sh("cat /data/file"), "kept");
    }

    fn root_in_the_app_cannot_reach_the_raw_device(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).all_capabilities();
        let app = volume.run(&bundle.clone().write());
        let (major, minor) = volume.device.number().split_once(':').unwrap();
        let _ = app.exec(&["/bin/mknod", "/raw", "b", major, minor]).success();
        let read = ["/bin/dd", "if=/raw", "of=/dev/null", "count=1"];
        let refused = app.exec(&read).failure();
        assert!(refused.stderr.contains("Operation not permitted"), "{refused}");
        // The same read works outside the container's control group.
        let _ = Run::capture(Command::new("dd").arg(format!("if={}", volume.device.path().display())).args(["of=/dev/null", "count=1"])).success();
        assert_eq!(app.sh("ls -d /dev/crust* /.crust 2>/dev/null | wc -l"), "0");
        let config = fs::read_to_string(app.bundle().join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        assert_eq!(config["linux"].get("devices"), bundle.spec()["linux"].get("devices"));
        assert_eq!(config["linux"]["resources"], bundle.spec()["linux"]["resources"]);
    }

    fn only_the_sandbox_has_the_tmpfs_and_none_the_device(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let digest = volume.entry().file_name().unwrap().to_str().unwrap().to_owned();
        let app = volume.app(&sandbox);
        for container in [&sandbox, &app] {
            assert_eq!(container.sh("find /dev -type b"), "");
        }
        assert_eq!(app.sh("ls -d /.crust 2>/dev/null | wc -l"), "0");
        assert_eq!(sandbox.sh("cat /.crust/id"), sandbox.id());
        assert_eq!(sandbox.sh("stat -c %a /.crust"), "700");
        let mounted = sandbox.sh("grep /.crust /proc/self/mountinfo");
        assert!(mounted.lines().next().unwrap().contains(" tmpfs "), "{mounted}");
        assert!(mounted.contains(&format!("/.crust/{digest} ")), "{mounted}");
        assert!(!mounted.contains("shared:"), "a mount propagates to the host: {mounted}");
    }

    fn mounts_above_and_below_the_volume_keep_their_order(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let above = volume.dir().subdir("above");
        let below = volume.dir().subdir("below");
        fs::write(above.join("mark"), "above").unwrap();
        fs::write(below.join("mark"), "below").unwrap();
        let sandbox = volume.sandbox();
        let bundle = volume
            .node
            .app_bundle(&sandbox)
            .bind(&above, "/a", &[])
            .bind(&volume.target, "/a/volume", &[])
            .bind(&below, "/a/volume/inner", &["rbind", "rprivate", "ro"])
            .mount(json!({
                "destination": "/a/volume/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["size=64k"]
            }));
        let app = volume.run(&bundle.write());
        assert_eq!(app.sh("cat /a/mark /a/volume/inner/mark"), "abovebelow");
        let _ = app.sh("echo own > /a/volume/mark");
        let kinds = app.sh("for d in /a /a/volume /a/volume/inner /a/volume/tmp; do stat -c %d $d; done");
        let devices: Vec<&str> = kinds.lines().collect();
        assert_eq!(devices.len(), 4);
        assert_eq!(devices[0], devices[2], "both binds must be of the host's directory");
        assert!(devices[1] != devices[0] && devices[3] != devices[1], "{kinds}");
        assert!(!above.join("volume/mark").exists(), "the volume's file is on the host");
        let _ = app.exec(&["/bin/touch", "/a/volume/inner/x"]).failure();
    }

    fn a_missing_mountpoint_works_with_a_read_only_rootfs(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.node.app_bundle(&sandbox).bind(&volume.target, "/not/there/yet", &[]).readonly_rootfs();
        let app = volume.run(&bundle.write());
        let _ = app.sh("echo x > /not/there/yet/file");
        let _ = app.exec(&["/bin/touch", "/not/there/x"]).failure();
    }

    fn read_only_applies_to_a_mount_or_to_the_whole_superblock(delegate: Delegate) {
        let node = Node::new(delegate);
        let (rw, ro) = (node.ext4(), node.ext4());
        let writable = node.stage(POD, "pv-rw", &rw, &[]);
        let sealed = node.stage(POD, "pv-ro", &ro, &["--option", "ro", "--fs-group", "777"]);
        let sandbox = node.sandbox(POD);
        let read_only = ["rbind", "rprivate", "ro"];
        let bundle = node.app_bundle(&sandbox).bind(&writable, "/ro", &read_only).bind(&writable, "/rw", &[]);
        let app = node.run(&bundle.bind(&sealed, "/sealed", &[]).write());
        let _ = app.sh("echo x > /rw/file; cat /ro/file");
        for path in ["/ro/new", "/sealed/new"] {
            let refused = app.exec(&["/bin/touch", path]).failure();
            assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        }
        let superblock = app.sh("grep ' /sealed ' /proc/self/mountinfo");
        assert!(superblock.rsplit(' ').next().unwrap().starts_with("ro"), "{superblock}");
        let superblock = app.sh("grep ' /ro ' /proc/self/mountinfo");
        assert!(superblock.rsplit(' ').next().unwrap().starts_with("rw"), "{superblock}");
        assert_eq!(app.sh("stat -c %g /sealed"), "0", "fsGroup was applied to a read-only volume");
    }

    fn a_subpath_is_found_or_created_inside_the_volume_only(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        with_mounted(device.path(), |root| {
            fs::create_dir_all(root.join("there/deep")).unwrap();
            fs::write(root.join("there/deep/mark"), "deep").unwrap();
            std::os::unix::fs::symlink("there/deep", root.join("inside")).unwrap();
            std::os::unix::fs::symlink("/etc", root.join("outside")).unwrap();
            std::os::unix::fs::symlink("../../../../etc", root.join("upwards")).unwrap();
        });
        let volume = StagedVolume::on_device(node, device, &["--fs-group", "4321"]);
        let sandbox = volume.sandbox();
        let bundle = volume.node
            .app_bundle(&sandbox)
            .bind(volume.target.join("there/deep"), "/deep", &[])
            .bind(volume.target.join("inside"), "/inside", &[])
            .bind(volume.target.join("new/and/deep"), "/new", &[]);
        // containerd and kubelet create the directories of the source on the host.
        fs::create_dir_all(volume.target.join("new/and/deep")).unwrap();
        let app = volume.run(&bundle.write());
        assert_eq!(app.sh("cat /deep/mark /inside/mark"), "deepdeep");
        let _ = app.sh("echo new > /new/mark");
        let mode = app.sh("stat -c '%a %g' /new");
        assert_eq!(mode, "2775 4321", "the new directory must have the volume root's mode and group");
        assert_eq!(fs::read_dir(volume.target.join("new/and/deep")).unwrap().count(), 0);

        for escape in ["outside", "upwards", "there/deep/mark/x"] {
            let bundle = volume.node.app_bundle(&sandbox).bind(volume.target.join(escape), "/data", &[]).write();
            let app = volume.container(&bundle);
            let error = app.expect_refusal();
            assert!(error.contains("volume pv-1") && error.contains(escape), "{error}");
            assert!(!error.contains("/etc"), "the message shows a path of the host: {error}");
        }
        drop(app);
        end([sandbox]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let mark = with_mounted(volume.device.path(), |root| fs::read(root.join("new/and/deep/mark")).unwrap());
        assert_eq!(mark, b"new\n");
    }

    fn a_pod_can_be_restarted_after_all_its_processes_died(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        let _ = app.sh("dd if=/dev/zero of=/data/zeros bs=1M count=8 2>/dev/null; echo x > /data/file");
        kill(app.pid());
        kill(sandbox.pid());
        volume.device.wait_until_free(WAIT_TIMEOUT);
        // No hook ran, so the records still name the dead processes.
        let second = volume.sandbox();
        let second_app = volume.app(&second);
        assert_eq!(second_app.sh("cat /data/file"), "x");
        let refused = volume.unstage().failure();
        assert!(refused.stderr.contains(second.id()) || refused.stderr.contains(second_app.id()), "{refused}");
        kill(second_app.pid());
        kill(second.pid());
        let _ = volume.unstage().success();
        assert!(volume.device.is_free(), "unstage must wait for the device");
        assert!(!volume.entry().exists());
    }

    fn an_app_outlives_its_sandbox_and_a_second_one_joins(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--fs-group", "700"]);
        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        let _ = app.sh("echo live > /data/file; chgrp 5 /data/file");
        kill(sandbox.pid());
        let _ = sandbox.delete_force();
        assert_eq!(app.sh("cat /data/file"), "live");
        let _ = volume.stats().success();
        let _ = volume.unstage().failure();

        // A container that joins the dead sandbox would be refused; one of a new sandbox is not.
        let second = volume.sandbox();
        let other = volume.app(&second);
        assert_eq!(other.sh("cat /data/file"), "live");
        assert_eq!(other.sh("stat -c %g /data/file"), "5", "fsGroup was applied to a volume in use");
        assert_eq!(other.sh("stat -c %d /data"), app.sh("stat -c %d /data"));
        end([app, other, second]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        let _ = volume.unstage().success();
        drop(sandbox);
    }

    fn a_container_of_an_ended_sandbox_is_refused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).write();
        kill(sandbox.pid());
        let app = volume.container(&bundle);
        let error = app.expect_refusal();
        assert!(error.starts_with("volume pv-1: sandbox ") && error.contains("has ended"), "{error}");
    }

    fn a_volume_staged_after_the_sandbox_is_mounted(delegate: Delegate) {
        let node = Node::with(delegate, "sandbox = \"always\"");
        let device = node.ext4();
        let sandbox = node.sandbox(POD);
        let target = node.stage(POD, "pv-late", &device, &["--fs-group", "123"]);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("stat -c '%g %a' /data"), "123 2775");
        end([app, sandbox]);
        device.wait_until_free(WAIT_TIMEOUT);
        node.unstage_all(&[&target]);
    }

    fn the_record_of_use_exists_while_a_volume_is_in_use(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let entry = volume.entry();
        assert!(!entry.join("runtime-cli").exists());
        let sandbox = volume.sandbox();
        let cli = fs::read_to_string(entry.join("runtime-cli")).unwrap();
        assert_eq!(cli, format!("{}\n", volume.handler().path().display()));
        let app = volume.app(&sandbox);
        let record = fs::read_to_string(entry.join("runcrust.json")).unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let users = record["users"].as_array().unwrap();
        let user = |id: &str| users.iter().find(|user| user["id"] == id).unwrap();
        assert_eq!(user(sandbox.id())["process"]["pid"], sandbox.pid());
        assert_eq!(user(app.id())["process"]["pid"], app.pid());
        assert_eq!(user(app.id())["mounts"][0]["destination"], "/data");
        assert_eq!(user(app.id())["mounts"][0]["source"], volume.target.to_str().unwrap());
        assert_eq!(record["device"], volume.device.number());
        assert_eq!(fs::metadata(entry.join("runcrust.json")).unwrap().mode() & 0o777, 0o600);
        end([app, sandbox]);
        assert!(!entry.join("runcrust.json").exists() && !entry.join("runtime-cli").exists());
        assert!(entry.join("mountInfo.json").exists());
    }

    fn a_failed_delegate_leaves_no_user(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.app_bundle(&sandbox).args(["/no/such/program"]);
        let app = volume.container(&bundle.write());
        // crun looks up the program at create, runc at start.
        let created = app.create();
        let failed: Run = if created.status.success() { app.start() } else { created };
        let _ = failed.failure();
        let _ = app.delete_force();
        fs::remove_dir_all(app.bundle()).unwrap();
        end([sandbox]);
        volume.device.wait_until_free(WAIT_TIMEOUT);
        volume.unstage_all();
    }
}
