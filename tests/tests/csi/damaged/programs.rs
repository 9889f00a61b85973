//! Programs that fail or give wrong answers. Data are never overwritten, and no half-made file system is left.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::csi::filesystem;
use tonic::Code;

use super::{OLDER_RECORDS, change_record, copy, is_same, volume_with_data};
use crate::expect_error;
use crate::scene::{Scene, read};

/// Returns the path of a program that the driver runs.
fn installed(name: &str) -> PathBuf {
    let candidates = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|it| Path::new(it).join(name));
    let mut existing = candidates.into_iter().filter(|it| it.is_file());
    existing
        .next()
        .unwrap_or_else(|| panic!("{name} is not installed"))
}

/// Starts the driver with a script in the place of a program. The driver gets a mount namespace of its own, so that
/// other tests don't run the script.
fn spawn_with(scene: &Scene, program: &str, script: &str) {
    let other = scene.node.dir().join(program);
    let _ = fs::remove_file(&other);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&other);
    let written = file.and_then(|mut file| write!(file, "#!/bin/sh\n{script}\n"));
    written.expect("a script");
    spawn_with_mounted(scene, &other, &installed(program));
}

/// Starts the driver in a mount namespace in which `other` is mounted over `program`.
fn spawn_with_mounted(scene: &Scene, other: &Path, program: &Path) {
    let driver = scene.command(&[]);
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]);
    command.args([other, program]);
    command.arg(driver.get_program()).args(driver.get_args());
    scene.spawn(command);
}

/// Asserts that a volume with data is not staged by a driver that `start` has started with another blkid, whatever the
/// record says, and that it keeps its data.
fn assert_not_staged_by(start: impl Fn(&Scene)) {
    let unchanged = (r#""holds""#, r#""holds""#);
    for (now, then) in [unchanged, OLDER_RECORDS[0], OLDER_RECORDS[1]] {
        let scene = Scene::new();
        let volume = volume_with_data(&scene, "ext4");
        let image = scene.image(&volume.id);
        let whole = scene.node.dir().join("whole");
        copy(&image, &whole);
        scene.kill();
        change_record(scene.data(), &volume, now, then);
        start(&scene);
        let status = scene.call(volume.stage()).expect_err("blkid failed");
        let message = status.message();
        assert!(message.contains(&volume.id), "{message}");
        for advice in ["wipe", "blkdiscard", "mkfs"] {
            assert!(!message.contains(advice), "{message}");
        }
        assert!(
            is_same(&image, &whole),
            "{then}: the image is unchanged: {message}"
        );
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        let target = scene.publish(&volume, "pod");
        assert_eq!(read(&target, "file"), "data", "{then}");
        scene.remove_volume(&volume, &[&target]);
    }
}

fn assert_not_staged_with_blkid(script: &str) {
    assert_not_staged_by(|scene| spawn_with(scene, "blkid", script));
}

#[test]
fn a_probe_that_overlooks_data_is_not_trusted() {
    assert_not_staged_with_blkid("exit 2");
}

#[test]
fn a_failed_probe_does_not_mean_an_empty_device() {
    assert_not_staged_with_blkid("echo \"error: $6: Input/output error\" >&2; exit 2");
}

#[test]
fn a_probe_that_fails_silently_is_an_error() {
    assert_not_staged_with_blkid("exit 1");
}

#[test]
fn a_probe_without_output_is_an_error() {
    assert_not_staged_with_blkid("exit 0");
}

#[test]
fn a_killed_probe_is_an_error() {
    assert_not_staged_with_blkid("kill -KILL $$");
}

#[test]
fn a_probe_with_output_that_fails_is_an_error() {
    assert_not_staged_with_blkid("echo TYPE=ext4; exit 2");
}

#[test]
fn a_probe_that_finds_another_type_is_an_error() {
    assert_not_staged_with_blkid("echo TYPE=xfs");
}

#[test]
fn a_missing_probe_is_an_error() {
    assert_not_staged_by(|scene| {
        spawn_with_mounted(scene, Path::new("/dev/null"), &installed("blkid"));
    });
}

#[test]
fn an_image_truncated_during_a_probe_is_not_formatted() {
    let scene = Scene::new();
    let volume = volume_with_data(&scene, "ext4");
    let (image, whole) = (scene.image(&volume.id), scene.node.dir().join("whole"));
    copy(&image, &whole);
    let inode = || {
        fs::metadata(&image)
            .map(|it| (it.ino(), it.len()))
            .expect("stat")
    };
    let (file, _) = inode();
    scene.kill();
    change_record(
        scene.data(),
        &volume,
        OLDER_RECORDS[0].0,
        OLDER_RECORDS[0].1,
    );
    let cut = format!("truncate --size 0 {}; exit 2", image.display());
    spawn_with(&scene, "blkid", &cut);
    let _ = expect_error(scene.call(volume.stage()), Code::FailedPrecondition);
    assert_eq!(inode(), (file, 0));
    scene.restart(&[]);
    scene.call_ok(volume.unstage());
    copy(&whole, &image);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_failed_mkfs_leaves_the_image_empty() {
    for (program, script) in [
        ("mkfs.ext4", "exit 1"),
        ("mkfs.ext4", "exit 0"),
        (
            "mkfs.ext4",
            "for it; do :; done; echo half > \"$it\"; kill -KILL $$",
        ),
        (
            "mkfs.ext4",
            "for it; do :; done; exec mkfs.xfs -q -f \"$it\"",
        ),
    ] {
        let scene = Scene::new();
        // Large enough for an xfs as well.
        let mut request = runcrust_tests::csi::create_request("pv", filesystem("xfs"));
        request.volume_capabilities = vec![filesystem("ext4")];
        let volume = scene.create_volume(request);
        scene.kill();
        spawn_with(&scene, program, script);
        for _ in 0..2 {
            let message = expect_error(scene.call(volume.stage()), Code::Internal);
            assert!(message.contains(&volume.id), "{script}: {message}");
            let images = fs::read_dir(scene.data().join("images")).expect("images");
            assert_eq!(images.count(), 1, "{script}: no other file is left");
            let image = fs::metadata(scene.image(&volume.id)).expect("the image");
            assert_eq!(image.blocks(), 0, "{script}");
        }
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        let target = scene.publish(&volume, "pod");
        scene.remove_volume(&volume, &[&target]);
    }
}
