//! Volumes that can't be looked into: mkfs over data is the one mistake that can't be mended.

mod disk;
mod programs;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use runcrust_tests::csi::{CsiVolume, filesystem};

use crate::scene::{Scene, read, write};

/// A volume of a pod that has ended.
fn used(scene: &Scene, fstype: &str) -> CsiVolume {
    let volume = scene.staged("pv", filesystem(fstype));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.take_back(&volume, &[&target]);
    volume
}

/// Sparse as it was.
fn copy(from: &Path, to: &Path) {
    let mut copy = std::process::Command::new("cp");
    let copy = copy
        .args(["--sparse=always", "--no-preserve=all"])
        .args([from, to]);
    let _ = runcrust_tests::Run::of(copy).success();
}

fn same(one: &Path, other: &Path) -> bool {
    let mut compare = std::process::Command::new("cmp");
    runcrust_tests::Run::of(compare.arg("--silent").args([one, other]))
        .status
        .success()
}

/// What a driver of before, or a copy from before the file system was made, has on record of an ext4 volume.
const OF_BEFORE: [(&str, &str); 2] = [
    (r#""holds": "ext4""#, r#""holds": null"#),
    (
        r#""holds": "ext4""#,
        r#""holds": null, "formatting": "ext4""#,
    ),
];

/// Puts something else into a volume's record, while no driver runs.
#[track_caller]
fn change_record(data: &Path, volume: &CsiVolume, from: &str, to: &str) {
    let file = data.join("volumes").join(format!("{}.json", volume.id));
    let text = fs::read_to_string(&file).expect("its record");
    assert!(text.contains(from), "{text}");
    fs::write(&file, text.replace(from, to)).expect("its record");
}

/// Damages a volume's image: its stage fails, writes nothing to it, and with the damage undone its data
/// are there.
#[track_caller]
fn is_refused(what: &str, fstype: &str, damage: impl Fn(&File)) {
    let scene = Scene::new();
    let volume = used(&scene, fstype);
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
        assert!(same(&image, &damaged), "{what}: it was written to");
        scene.restart(&[]);
    }
    scene.call_ok(volume.unstage());
    assert_eq!(scene.devices(&volume.id), Vec::<PathBuf>::new(), "{what}");
    copy(&whole, &image);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data", "{what}");
    scene.put_away(&volume, &[&target]);
}

#[test]
fn one_whose_image_is_empty_is_no_new_one() {
    is_refused("an empty file", "ext4", |image| {
        image.set_len(0).expect("ftruncate");
    });
}

#[test]
fn one_whose_image_is_shorter_is_not_filled_up() {
    for fstype in ["ext4", "xfs", "btrfs"] {
        is_refused("half a file", fstype, |image| {
            let half = image.metadata().expect("stat").len() / 2;
            image.set_len(half).expect("ftruncate");
        });
    }
}

#[test]
fn one_that_was_wiped_whole_is_no_new_one() {
    is_refused("zeros", "ext4", |image| {
        let size = image.metadata().expect("stat").len();
        image
            .set_len(0)
            .and_then(|()| image.set_len(size))
            .expect("ftruncate");
    });
}

#[test]
fn one_without_its_signatures_is_not_empty() {
    // Also the second ones, which tools look for: at 64 MiB is the next of btrfs.
    for fstype in ["ext4", "xfs", "btrfs"] {
        is_refused("no superblock", fstype, |image| {
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
fn one_with_somebodys_data_is_not_empty() {
    is_refused("noise", "ext4", |image| {
        let noise: Vec<u8> = (0..1_u32 << 16)
            .map(|it| (it.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        image.write_all_at(&noise, 0).expect("pwrite");
    });
}

#[test]
fn one_with_two_signatures_is_nobodys_to_choose() {
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
    is_refused("two file systems", "ext4", |image| {
        image.write_all_at(&superblock, 64 << 10).expect("pwrite");
    });
}

#[test]
fn one_whose_image_is_missing_is_not_made_again() {
    let scene = Scene::new();
    let volume = used(&scene, "ext4");
    let image = scene.image(&volume.id);
    let aside = image.with_extension("aside");
    fs::rename(&image, &aside).expect("rename");
    let status = scene
        .call(volume.stage())
        .expect_err("its image is missing");
    assert!(
        status.message().contains(image.to_str().expect("UTF-8")),
        "{status}"
    );
    assert!(!image.exists());
    fs::rename(&aside, &image).expect("rename");
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data");
    scene.put_away(&volume, &[&target]);
}

/// What is there can't be read: the device is larger than the file behind it.
#[test]
fn one_that_cannot_be_read_is_an_error() {
    let scene = Scene::new();
    let volume = used(&scene, "ext4");
    let image = scene.image(&volume.id);
    let whole = scene.node.dir().join("whole");
    copy(&image, &whole);
    let device = runcrust_tests::LoopDevice::on(&image);
    let open = File::options().write(true).open(&image).expect("the image");
    open.set_len(4096).expect("ftruncate");
    let status = scene.call(volume.stage()).expect_err("it can't be read");
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
    scene.put_away(&volume, &[&target]);
}

#[test]
fn one_with_an_older_record_keeps_its_data() {
    for (now, before) in OF_BEFORE {
        let scene = Scene::new();
        let volume = used(&scene, "ext4");
        scene.kill();
        change_record(scene.data(), &volume, now, before);
        scene.spawn(scene.command(&[]));
        scene.call_ok(volume.stage());
        let target = scene.publish(&volume, "pod");
        assert_eq!(read(&target, "file"), "data", "{before}");
        scene.put_away(&volume, &[&target]);
    }
}

#[test]
fn one_that_somebody_else_has_made_is_told_by_its_name() {
    let scene = Scene::new();
    let mut volume = scene.volume("pv", filesystem("xfs"));
    runcrust_tests::volume::mkfs("ext4", &scene.image(&volume.id), &[]);
    let message = crate::refused(scene.call(volume.stage()), tonic::Code::FailedPrecondition);
    assert!(message.contains("ask for ext4"), "{message}");
    volume.capability = filesystem("ext4");
    scene.call_ok(volume.stage());
    scene.put_away(&volume, &[]);
}
