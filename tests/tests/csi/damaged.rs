//! Volumes that cannot be probed. They are never formatted, because data that mkfs destroys cannot be recovered.

mod disk;
mod programs;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use runcrust_tests::csi::{CsiVolume, filesystem};

use crate::scene::{Scene, read, write};

/// Creates a volume, writes a file to it, and unstages it.
fn volume_with_data(scene: &Scene, fstype: &str) -> CsiVolume {
    let volume = scene.staged("pv", filesystem(fstype));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.unpublish_and_unstage(&volume, &[&target]);
    volume
}

/// Copies a sparse file.
fn copy(from: &Path, to: &Path) {
    let mut copy = std::process::Command::new("cp");
    let copy = copy
        .args(["--sparse=always", "--no-preserve=all"])
        .args([from, to]);
    let _ = runcrust_tests::Run::capture(copy).success();
}

fn is_same(one: &Path, other: &Path) -> bool {
    let mut compare = std::process::Command::new("cmp");
    runcrust_tests::Run::capture(compare.arg("--silent").args([one, other]))
        .status
        .success()
}

/// Replacements in the record of an ext4 volume that turn it into an older record. The first one removes the file
/// system, as in the record of an older driver or in a copy from before the mkfs. The second one also adds an mkfs
/// in progress.
const OLDER_RECORDS: [(&str, &str); 2] = [
    (r#""holds": "ext4""#, r#""holds": null"#),
    (
        r#""holds": "ext4""#,
        r#""holds": null, "formatting": "ext4""#,
    ),
];

/// Replaces text in the record of a volume. No driver may be running.
#[track_caller]
fn change_record(data: &Path, volume: &CsiVolume, from: &str, to: &str) {
    let file = data.join("volumes").join(format!("{}.json", volume.id));
    let text = fs::read_to_string(&file).expect("the record");
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to)).expect("the record");
}

/// Damages the image of a volume. The volume cannot be staged, the image is not written to, and once the damage is
/// undone the data are still there.
#[track_caller]
fn assert_not_formatted(what: &str, fstype: &str, damage: impl Fn(&File)) {
    let scene = Scene::new();
    let volume = volume_with_data(&scene, fstype);
    let image = scene.image(&volume.id);
    let (whole, damaged) = (
        scene.node.dir().join("whole"),
        scene.node.dir().join("damaged"),
    );
    copy(&image, &whole);
    damage(
        &File::options()
            .read(true)
            .write(true)
            .open(&image)
            .expect("the image"),
    );
    copy(&image, &damaged);
    for _ in 0..2 {
        let status = scene.call(volume.stage()).expect_err(what);
        assert!(status.message().contains(&volume.id), "{what}: {status}");
        assert!(is_same(&image, &damaged), "{what}: the image is unchanged");
        scene.restart(&[]);
    }
    scene.call_ok(volume.unstage());
    assert_eq!(scene.devices(&volume.id), Vec::<PathBuf>::new(), "{what}");
    copy(&whole, &image);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data", "{what}");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn an_empty_image_is_not_formatted() {
    assert_not_formatted("an empty file", "ext4", |image| {
        image.set_len(0).expect("ftruncate");
    });
}

#[test]
fn a_truncated_image_is_not_extended() {
    for fstype in ["ext4", "xfs", "btrfs"] {
        assert_not_formatted("half a file", fstype, |image| {
            let half = image.metadata().expect("stat").len() / 2;
            image.set_len(half).expect("ftruncate");
        });
    }
}

#[test]
fn an_image_of_zeros_is_not_formatted() {
    assert_not_formatted("zeros", "ext4", |image| {
        let size = image.metadata().expect("stat").len();
        image
            .set_len(0)
            .and_then(|()| image.set_len(size))
            .expect("ftruncate");
    });
}

#[test]
fn an_image_without_signatures_is_not_formatted() {
    // The backup superblock of btrfs at 64 MiB is overwritten as well, because tools look for it.
    for fstype in ["ext4", "xfs", "btrfs"] {
        assert_not_formatted("no superblock", fstype, |image| {
            for offset in [0, 64 << 20] {
                if offset < image.metadata().expect("stat").len() {
                    image
                        .write_all_at(&vec![0; 128 << 10], offset)
                        .expect("pwrite");
                }
            }
        });
    }
}

#[test]
fn an_image_with_unknown_data_is_not_formatted() {
    assert_not_formatted("noise", "ext4", |image| {
        let noise: Vec<u8> = (0..1_u32 << 16)
            .map(|it| (it.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        image.write_all_at(&noise, 0).expect("pwrite");
    });
}

#[test]
fn an_image_with_two_signatures_is_refused() {
    let dir = runcrust_tests::TestDir::new();
    let other = dir.join("btrfs");
    File::create(&other)
        .and_then(|image| image.set_len(128 << 20))
        .expect("an image");
    runcrust_tests::volume::mkfs("btrfs", &other, &[]);
    let mut superblock = vec![0; 4096];
    let other = File::open(&other).expect("an image");
    other
        .read_exact_at(&mut superblock, 64 << 10)
        .expect("pread");
    assert_not_formatted("two file systems", "ext4", |image| {
        image.write_all_at(&superblock, 64 << 10).expect("pwrite");
    });
}

#[test]
fn a_missing_image_is_not_recreated() {
    let scene = Scene::new();
    let volume = volume_with_data(&scene, "ext4");
    let image = scene.image(&volume.id);
    let aside = image.with_extension("aside");
    fs::rename(&image, &aside).expect("rename");
    let status = scene
        .call(volume.stage())
        .expect_err("the image is missing");
    assert!(
        status.message().contains(image.to_str().expect("UTF-8")),
        "{status}"
    );
    assert!(!image.exists());
    fs::rename(&aside, &image).expect("rename");
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

/// The device is larger than the file behind it, so reads fail.
#[test]
fn an_unreadable_device_is_an_error() {
    let scene = Scene::new();
    let volume = volume_with_data(&scene, "ext4");
    let image = scene.image(&volume.id);
    let whole = scene.node.dir().join("whole");
    copy(&image, &whole);
    let device = runcrust_tests::LoopDevice::on(&image);
    let open = File::options().write(true).open(&image).expect("the image");
    open.set_len(4096).expect("ftruncate");
    let status = scene
        .call(volume.stage())
        .expect_err("an unreadable device");
    assert!(status.message().contains(&volume.id), "{status}");
    assert_eq!(
        open.metadata().expect("stat").len(),
        4096,
        "nothing was written"
    );
    drop(device);
    scene.call_ok(volume.unstage());
    copy(&whole, &image);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_volume_with_an_older_record_keeps_its_data() {
    for (now, before) in OLDER_RECORDS {
        let scene = Scene::new();
        let volume = volume_with_data(&scene, "ext4");
        scene.kill();
        change_record(scene.data(), &volume, now, before);
        scene.spawn(scene.command(&[]));
        scene.call_ok(volume.stage());
        let target = scene.publish(&volume, "pod");
        assert_eq!(read(&target, "file"), "data", "{before}");
        scene.remove_volume(&volume, &[&target]);
    }
}

#[test]
fn a_file_system_made_by_hand_is_named_in_the_error() {
    let scene = Scene::new();
    let mut volume = scene.volume("pv", filesystem("xfs"));
    runcrust_tests::volume::mkfs("ext4", &scene.image(&volume.id), &[]);
    let message = crate::expect_error(scene.call(volume.stage()), tonic::Code::FailedPrecondition);
    assert!(message.contains("request ext4"), "{message}");
    volume.capability = filesystem("ext4");
    scene.call_ok(volume.stage());
    scene.remove_volume(&volume, &[]);
}
