//! Programs that fail, or say what isn't so: nothing is made over what is there, and nothing is left of what
//! was half made.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::csi::filesystem;
use tonic::Code;

use super::{OF_BEFORE, change_record, copy, same, used};
use crate::refused;
use crate::scene::{Scene, read};

/// Where a program is that the driver runs.
fn installed(name: &str) -> PathBuf {
    let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|it| Path::new(it).join(name));
    let mut there = places.into_iter().filter(|it| it.is_file());
    there.next().unwrap_or_else(|| panic!("{name} isn't there"))
}

/// Starts the driver where a program is another one. In a mount namespace of its own: others' drivers have theirs.
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
    spawn_where(scene, &other, &installed(program));
}

fn spawn_where(scene: &Scene, other: &Path, program: &Path) {
    let driver = scene.command(&[]);
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", script, "sh"]);
    command.args([other, program]);
    command.arg(driver.get_program()).args(driver.get_args());
    scene.spawn(command);
}

/// A used volume isn't staged where blkid does so, whatever the record says, and has its data afterwards.
fn is_refused_where(starts: impl Fn(&Scene)) {
    let as_it_is = (r#""holds""#, r#""holds""#);
    for (now, then) in [as_it_is, OF_BEFORE[0], OF_BEFORE[1]] {
        let scene = Scene::new();
        let volume = used(&scene, "ext4");
        let image = scene.image(&volume.id);
        let whole = scene.node.dir().join("whole");
        copy(&image, &whole);
        scene.kill();
        change_record(scene.data(), &volume, now, then);
        starts(&scene);
        let status = scene.call(volume.stage()).expect_err("blkid has failed");
        let message = status.message();
        assert!(message.contains(&volume.id), "{message}");
        for advice in ["wipe", "blkdiscard", "mkfs"] {
            assert!(!message.contains(advice), "{message}");
        }
        assert!(same(&image, &whole), "{then}: it was written to: {message}");
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        let target = scene.publish(&volume, "pod");
        assert_eq!(read(&target, "file"), "data", "{then}");
        scene.put_away(&volume, &[&target]);
    }
}

fn is_refused_where_blkid(script: &str) {
    is_refused_where(|scene| spawn_with(scene, "blkid", script));
}

#[test]
fn a_probe_that_finds_nothing_where_data_is_is_not_believed() {
    is_refused_where_blkid("exit 2");
}

#[test]
fn a_probe_that_fails_is_not_taken_for_an_empty_device() {
    is_refused_where_blkid("echo \"error: $6: Input/output error\" >&2; exit 2");
}

#[test]
fn a_probe_that_fails_silently_is_none() {
    is_refused_where_blkid("exit 1");
}

#[test]
fn a_probe_that_succeeds_silently_is_none() {
    is_refused_where_blkid("exit 0");
}

#[test]
fn a_probe_that_is_killed_is_none() {
    is_refused_where_blkid("kill -KILL $$");
}

#[test]
fn a_probe_that_names_it_and_fails_is_none() {
    is_refused_where_blkid("echo TYPE=ext4; exit 2");
}

#[test]
fn a_probe_that_finds_another_file_system_makes_none() {
    is_refused_where_blkid("echo TYPE=xfs");
}

#[test]
fn a_probe_that_is_not_installed_is_none() {
    is_refused_where(|scene| spawn_where(scene, Path::new("/dev/null"), &installed("blkid")));
}

#[test]
fn an_image_that_is_cut_while_it_is_looked_at_is_not_made_anew() {
    let scene = Scene::new();
    let volume = used(&scene, "ext4");
    let (image, whole) = (scene.image(&volume.id), scene.node.dir().join("whole"));
    copy(&image, &whole);
    let inode = || {
        fs::metadata(&image)
            .map(|it| (it.ino(), it.len()))
            .expect("stat")
    };
    let (file, _) = inode();
    scene.kill();
    change_record(scene.data(), &volume, OF_BEFORE[0].0, OF_BEFORE[0].1);
    let cut = format!("truncate --size 0 {}; exit 2", image.display());
    spawn_with(&scene, "blkid", &cut);
    let _ = refused(scene.call(volume.stage()), Code::FailedPrecondition);
    assert_eq!(inode(), (file, 0));
    scene.restart(&[]);
    scene.call_ok(volume.unstage());
    copy(&whole, &image);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data");
    scene.put_away(&volume, &[&target]);
}

#[test]
fn a_file_system_that_is_not_made_whole_is_not_the_volumes() {
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
        // Large enough for an xfs, too.
        let mut request = runcrust_tests::csi::create_request("pv", filesystem("xfs"));
        request.volume_capabilities = vec![filesystem("ext4")];
        let volume = scene.create_volume(request);
        scene.kill();
        spawn_with(&scene, program, script);
        for _ in 0..2 {
            let message = refused(scene.call(volume.stage()), Code::Internal);
            assert!(message.contains(&volume.id), "{script}: {message}");
            let images = fs::read_dir(scene.data().join("images")).expect("images");
            assert_eq!(images.count(), 1, "{script}: nothing is left beside it");
            let image = fs::metadata(scene.image(&volume.id)).expect("its image");
            assert_eq!(image.blocks(), 0, "{script}");
        }
        scene.restart(&[]);
        scene.call_ok(volume.stage());
        let target = scene.publish(&volume, "pod");
        scene.put_away(&volume, &[&target]);
    }
}
