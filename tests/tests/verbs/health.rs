//! `stats` of unhealthy volumes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{
    Container, LoopDevice, Node, Pod, Run, StagedVolume, host, on_each_delegate, process, refusal,
    wait_until,
};
use serde_json::{Value, json};

#[track_caller]
fn stats(node: &Node, target: &Path) -> Value {
    parse(node.stats(target))
}

#[track_caller]
fn parse(run: Run) -> Value {
    let run = run.success();
    assert_eq!(run.stderr, "");
    serde_json::from_str(&run.stdout).expect("JSON")
}

/// Asserts that the volume is abnormal, with a message that has a hint and contains all of `names`.
#[track_caller]
fn assert_abnormal(answer: &Value, names: &[&str]) {
    let condition = &answer["volume_condition"];
    assert_eq!(condition["abnormal"], json!(true), "{answer}");
    let message = condition["message"].as_str().expect("a string");
    assert!(
        message.contains("; hint: ") && !message.contains('\n'),
        "{message}"
    );
    assert_contains(message, names);
}

#[track_caller]
fn assert_normal(answer: &Value) {
    let normal = json!({"abnormal": false, "message": ""});
    assert_eq!(answer["volume_condition"], normal, "{answer}");
}

/// Returns the path of the volume's root in the sandbox.
fn root(node: &Node, sandbox: &Container, target: &Path) -> PathBuf {
    let digest = node.entry(target);
    let digest = digest.file_name().expect("a digest");
    let crust = format!("/proc/{}/root/.crust", sandbox.pid());
    Path::new(&crust).join(digest)
}

/// Shuts the file system down (`XFS_IOC_GOINGDOWN`): its device is neither written nor read after that.
fn shut_down(root: &Path) {
    let mut xfs_io = Command::new("xfs_io");
    let _ = Run::capture(xfs_io.args(["-x", "-r", "-c", "shutdown"]).arg(root)).success();
}

/// Returns the device's line in the sandbox's mountinfo.
fn mountinfo_line(sandbox: &Container, device: &LoopDevice) -> String {
    let mounts = host::mounts_of(sandbox.pid());
    let mount = mounts.iter().find(|mount| mount.device == device.number());
    mount
        .expect("a mount of the device in the sandbox")
        .line
        .clone()
}

fn loop_with(node: &Node, fstype: &'static str) -> LoopDevice {
    let mebibytes = if fstype == "ext4" { 32 } else { 320 };
    LoopDevice::formatted(node.dir(), fstype, mebibytes)
}

on_each_delegate! {
    fn every_healthy_file_system_is_normal(delegate: Delegate) {
        let node = Node::new(delegate);
        for fstype in ["ext4", "xfs", "btrfs"] {
            let device = loop_with(&node, fstype);
            let target = node.stage(fstype, "pv-1", &device, &[]);
            let sandbox = node.sandbox(fstype);
            let app = node.app(&sandbox, &target, "/data");
            let sandbox_stats = stats(&node, &target);
            assert_normal(&sandbox_stats);
            process::kill_now(sandbox.pid());
            wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
            let app_stats = stats(&node, &target);
            assert_eq!(app_stats, sandbox_stats, "{fstype}");
            let bytes = app_stats["usage"][0]["total"].as_u64().expect("a number");
            let seen = app.sh("stat -f -c '%S %b' /data");
            let seen: u64 = seen.split(' ').map(|word| word.parse::<u64>().unwrap()).product();
            assert_eq!(bytes, seen, "{fstype}");
        }
    }

    fn a_file_system_with_errors_is_abnormal(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--option", "errors=continue"]);
        let _sandbox = volume.sandbox();
        assert_normal(&parse(volume.stats()));
        for recorded in ["recorded an error", "recorded 2 errors"] {
            volume.device.fail_ext4();
            // The kernel counts the error a moment later.
            wait_until("the error to count", WAIT_TIMEOUT, || {
                parse(volume.stats()).to_string().contains(recorded)
            });
            assert_abnormal(&parse(volume.stats()), &[recorded, "e2fsck"]);
        }
    }

    fn a_file_system_that_became_read_only_is_abnormal(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--option", "errors=remount-ro"]);
        let sandbox = volume.sandbox();
        let app = volume.app(&sandbox);
        volume.device.fail_ext4();
        let refused = app.exec(&["/bin/touch", "/data/file"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        wait_until("the error to count", WAIT_TIMEOUT, || {
            parse(volume.stats())["volume_condition"]["abnormal"] == json!(true)
        });
        let answer = parse(volume.stats());
        assert_abnormal(&answer, &["e2fsck"]);
        // Kernels before about 6.12 show the superblock as ro, those since 6.15 as emergency_ro; between them only the
        // errors show it.
        let line = mountinfo_line(&sandbox, &volume.device);
        let is_shown = line.contains("emergency_ro") || line.contains(" ro,");
        assert_eq!(answer.to_string().contains("read-only"), is_shown, "{answer}: {line}");
    }

    fn a_volume_staged_read_only_is_normal(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--read-only"]);
        let _sandbox = volume.sandbox();
        assert_normal(&parse(volume.stats()));
    }

    /// Only the container's mount is read-only, not the file system.
    fn a_read_only_mount_of_a_container_is_normal(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let bundle = volume.node.app_bundle(&sandbox).bind(&volume.target, "/data", &["rbind", "ro"]);
        let app = volume.run(&bundle.write());
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        let refused = app.exec(&["/bin/touch", "/data/file"]).failure();
        assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        assert_normal(&parse(volume.stats()));
    }

    fn a_shut_down_xfs_is_abnormal_and_reports_usage(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = loop_with(&node, "xfs");
        let target = node.stage("pod-a", "pv-1", &device, &[]);
        let sandbox = node.sandbox("pod-a");
        let app = node.app(&sandbox, &target, "/data");
        let before = stats(&node, &target);
        assert_normal(&before);
        shut_down(&root(&node, &sandbox, &target));
        let after = stats(&node, &target);
        assert_abnormal(&after, &["EIO", "xfs_repair"]);
        assert_eq!(after["usage"][0]["total"], before["usage"][0]["total"]);
        // Neither a new container of the pod nor another pod gets the volume, and each error says what to do.
        for source in [target.clone(), target.join("sub")] {
            let bundle = node.app_bundle(&sandbox).bind(&source, "/data", &[]);
            let refused = refusal::create_refused(&node, &bundle.write()).naming_volume("pv-1");
            let _ = refused.containing(&["EIO", "shut down", "stop the pods", "xfs_repair"]).message();
        }
        let other = Pod::new(&node, "pod-b", &device, &[]);
        let sentence = other.expect_refusal();
        assert_contains(&sentence, &["EIO", "shut down", "stop the pods", "xfs_repair"]);
        process::kill_now(sandbox.pid());
        wait_until("the sandbox to end", WAIT_TIMEOUT, || !sandbox.is_alive());
        assert_abnormal(&stats(&node, &target), &["EIO", "xfs_repair"]);
        assert!(app.is_alive());
    }

    /// The kernel mounts such a file system read-only, but nothing is wrong with it.
    fn a_file_system_with_the_read_only_feature_is_normal(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let _ = Run::capture(Command::new("tune2fs").args(["-O", "read-only"]).arg(device.path())).success();
        // fsGroup is not applied to a read-only file system, as in kubelet.
        let first = Pod::new(&node, "pod-a", &device, &["--fs-group", "2000"]);
        let second = Pod::new(&node, "pod-b", &device, &["--fs-group", "3000"]);
        for pod in [&first, &second] {
            let app = pod.app();
            assert_eq!(app.sh("stat -c %g /data"), "0");
            assert_normal(&stats(&node, &pod.target));
            app.end();
        }
    }

    /// A shut down ext4 answers nearly everything from memory; only Linux 6.15 and newer show the shutdown.
    fn a_shut_down_ext4_is_abnormal_if_the_kernel_shows_it(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        shut_down(&root(&volume, &sandbox, &volume.target));
        let answer = parse(volume.stats());
        let line = mountinfo_line(&sandbox, &volume.device);
        let is_shown = line.contains(",shutdown");
        assert_eq!(answer.to_string().contains("was shut down"), is_shown, "{answer}: {line}");
        assert!(answer["usage"][0]["total"].as_u64().expect("a number") > 0);
    }

    fn files_in_the_host_directory_are_abnormal(delegate: Delegate) {
        let (volume, _sandbox) = StagedVolume::with_sandbox(delegate);
        // containerd and kubelet create a subPath's directories there; these are normal.
        fs::create_dir_all(volume.target.join("sub/deep")).unwrap();
        assert_normal(&parse(volume.stats()));
        let names = [utf8(&volume.target), "another runtime handler", "move"];
        fs::write(volume.target.join("sub/deep/file"), "").unwrap();
        assert_abnormal(&parse(volume.stats()), &names);
        fs::remove_file(volume.target.join("sub/deep/file")).unwrap();
        assert_normal(&parse(volume.stats()));
        symlink("/", volume.target.join("sub/link")).unwrap();
        assert_abnormal(&parse(volume.stats()), &names);
        fs::remove_dir_all(&volume.target).unwrap();
        assert_normal(&parse(volume.stats()));
    }

    /// Files below such a mount are on another file system. They are not data that was written to the host directory
    /// instead of the volume.
    fn a_mount_on_the_host_directory_is_not_searched(delegate: Delegate) {
        let (volume, _sandbox) = StagedVolume::with_sandbox(delegate);
        let elsewhere = volume.dir().subdir("elsewhere");
        fs::write(elsewhere.join("file"), "").unwrap();
        let mount = Run::capture(Command::new("mount").arg("--bind").args([&elsewhere, &volume.target]));
        let run = volume.stats();
        let umount = Run::capture(Command::new("umount").arg(&volume.target));
        let _ = (mount.success(), umount.success());
        assert_normal(&parse(run));
    }
}
