//! Clones and restored snapshots whose original is mounted: two devices with the same UUID.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use crust_blockfs::filesystem::MountError;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::support::{Image, TestLoopDevice, TestMount, in_mount_namespace, run, wait_until_free};
use crate::{expect_error, mount};

/// Returns true if the superblock was made with `nouuid`.
fn has_nouuid(mount: &OwnedFd) -> bool {
    let loop_device = tempfile::tempdir().expect("a temporary directory");
    let info = TestMount::attached(mount, loop_device.path()).info();
    let options = info.super_options.unescaped();
    let options = options.to_str().expect("options are text");
    options.split(',').any(|option| option == "nouuid")
}

fn make_file(mount: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(mount, name, create, Mode::from(0o600))
}

fn exists(mount: &OwnedFd, name: &str) -> bool {
    openat(mount, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// Returns an xfs with a file that is recorded only in its log.
fn xfs_with_dirty_log() -> Image {
    let image = Image::formatted("xfs", &[]);
    let loop_device = image.attach();
    let mount = mount(&loop_device, "xfs", &[], true).expect("the volume is mounted");
    make_file(&mount, "in-the-log").expect("a file");
    let path = format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd());
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f", &path]));
    drop(mount);
    wait_until_free(&loop_device.device());
    drop(loop_device);
    image
}

#[test]
fn an_xfs_gets_nouuid_only_while_its_clone_is_mounted() {
    let test = "clones::an_xfs_gets_nouuid_only_while_its_clone_is_mounted";
    in_mount_namespace(test, || {
        let image = Image::formatted("xfs", &[]);
        let (loop_device, other) = (image.attach(), Image::formatted("xfs", &[]));
        let clone = Image::cloned_from(&image);
        let (clone, other) = (clone.attach(), other.attach());
        let original = mount(&loop_device, "xfs", &[], true).expect("the original");
        assert!(!has_nouuid(&original));
        let unrelated = mount(&other, "xfs", &[], true).expect("one with another UUID");
        assert!(!has_nouuid(&unrelated));
        let mounted_clone = mount(&clone, "xfs", &["logbufs=4"], true).expect("the clone");
        assert!(has_nouuid(&mounted_clone));
        make_file(&mounted_clone, "only-here").expect("the clone is writable");
        assert!(!exists(&original, "only-here"));

        // A second pod shares the clone's superblock.
        let second = mount(&clone, "xfs", &["logbufs=4"], false).expect("the superblock is shared");
        assert!(exists(&second, "only-here"));
        drop((mounted_clone, second));
        wait_until_free(&clone.device());

        drop(original);
        wait_until_free(&loop_device.device());
        let alone = mount(&clone, "xfs", &[], true).expect("the clone without its original");
        assert!(!has_nouuid(&alone));
    });
}

#[test]
fn nouuid_may_be_given_as_an_option() {
    let test = "clones::nouuid_may_be_given_as_an_option";
    in_mount_namespace(test, || {
        let image = Image::formatted("xfs", &[]);
        let clone = Image::cloned_from(&image);
        let (loop_device, clone) = (image.attach(), clone.attach());
        let original = mount(&loop_device, "xfs", &["nouuid"], true).expect("the original");
        assert!(has_nouuid(&original));
        let mounted_clone = mount(&clone, "xfs", &["nouuid"], true).expect("the clone");
        assert!(has_nouuid(&mounted_clone));
    });
}

#[test]
fn the_log_of_an_xfs_clone_is_replayed_onto_the_clone() {
    let image = xfs_with_dirty_log();
    let clone = Image::cloned_from(&image);
    let (loop_device, clone) = (image.attach(), clone.attach());
    let original = mount(&loop_device, "xfs", &[], true).expect("the original");
    let mounted_clone = mount(&clone, "xfs", &[], true).expect("the clone");
    for mount in [&original, &mounted_clone] {
        assert!(exists(mount, "in-the-log"));
    }
}

#[test]
fn a_dirty_read_only_xfs_clone_is_mounted_without_its_log() {
    let image = xfs_with_dirty_log();
    let clone = Image::cloned_from(&image);
    let (loop_device, clone) = (image.attach(), clone.attach_with(&["--read-only"]));
    let _original = mount(&loop_device, "xfs", &[], true).expect("the original");
    let mounted_clone = mount(&clone, "xfs", &["ro"], true).expect("the clone");
    assert!(!exists(&mounted_clone, "in-the-log"));
    let error = make_file(&mounted_clone, "new").expect_err("the clone is read-only");
    assert_eq!(error, Errno::ROFS);
}

/// The second attempt, with `nouuid`, fails like the first one.
#[test]
fn another_reason_for_refusing_an_xfs_is_reported() {
    let image = Image::formatted("xfs", &[]);
    let clone = Image::cloned_from(&image);
    let (loop_device, clone) = (image.attach(), clone.attach());
    let start = "fsconfig({device}, xfs, create): EINVAL: the kernel refuses the device's xfs \
                 with the options logbsize=33; hint: ";
    let _ = expect_error(mount(&clone, "xfs", &["logbsize=33"], true), &clone, start);
    let _original = mount(&loop_device, "xfs", &[], true).expect("the original");
    let _ = expect_error(mount(&clone, "xfs", &["logbsize=33"], true), &clone, start);
}

#[test]
fn an_xfs_without_a_uuid_is_not_taken_for_a_clone() {
    let image = Image::formatted("xfs", &["-m", "crc=0"]);
    run(Command::new("xfs_admin")
        .args(["-U", "nil"])
        .arg(image.path()));
    let loop_device = image.attach();
    let start = "fsconfig({device}, xfs, create): EINVAL: the kernel refuses the device's xfs; ";
    let _ = expect_error(mount(&loop_device, "xfs", &[], true), &loop_device, start);
}

fn fsid(loop_device: &TestLoopDevice) -> String {
    let mut command = Command::new("blkid");
    let command = command.args(["-p", "-s", "UUID", "-o", "value"]);
    run(command.arg(loop_device.path())).trim().to_owned()
}

#[track_caller]
fn expect_clone_error(clone: &TestLoopDevice, options: &[&str], other: &Path) {
    let error = mount(clone, "btrfs", options, true).expect_err("the mount is refused");
    let expected = format!(
        "btrfs on \"{}\": its file-system id {} is also that of \"{}\", which is mounted \
         (/sys/fs/btrfs); hint: ",
        clone.path().display(),
        fsid(clone),
        other.display(),
    );
    let message = error.to_string();
    assert!(message.starts_with(&expected), "{message}");
    assert!(message.contains("btrfstune -u"), "{message}");
    assert!(matches!(error, MountError::Unfit(_)));
}

#[test]
fn a_clone_of_a_mounted_btrfs_is_refused_and_not_written_to() {
    let image = Image::formatted("btrfs", &[]);
    let copy = Image::cloned_from(&image);
    let (loop_device, clone) = (image.attach(), copy.attach());
    let original = mount(&loop_device, "btrfs", &[], true).expect("the original");
    for options in [&[][..], &["ro"], &["noatime", "ssd"]] {
        expect_clone_error(&clone, options, loop_device.path());
    }
    let before = std::fs::read(copy.path()).expect("the clone's bytes");
    expect_clone_error(&clone, &[], loop_device.path());
    assert!(std::fs::read(copy.path()).expect("the clone's bytes") == before);
    make_file(&original, "file").expect("the original still works");

    // A second mount of the original itself is allowed.
    let second = mount(&loop_device, "btrfs", &[], false).expect("the superblock is shared");
    drop((original, second));
    wait_until_free(&loop_device.device());
    let clone_alone = mount(&clone, "btrfs", &[], true).expect("the clone without its original");
    make_file(&clone_alone, "file").expect("the clone is writable");
    expect_clone_error(&loop_device, &[], clone.path());
}

#[test]
fn a_btrfs_clone_with_its_own_id_is_mounted() {
    let image = Image::formatted("btrfs", &[]);
    let clone = Image::cloned_from(&image);
    run(Command::new("btrfstune")
        .args(["-f", "-u"])
        .arg(clone.path()));
    let (loop_device, clone) = (image.attach(), clone.attach());
    let _original = mount(&loop_device, "btrfs", &[], true).expect("the original");
    let _ = mount(&clone, "btrfs", &[], true).expect("the clone");
}

#[test]
fn ext4_clones_can_be_mounted_at_the_same_time() {
    for fstype in ["ext3", "ext4"] {
        let image = Image::formatted(fstype, &[]);
        let clone = Image::cloned_from(&image);
        let (loop_device, clone) = (image.attach(), clone.attach());
        let original = mount(&loop_device, fstype, &[], true).expect("the original");
        let mounted_clone = mount(&clone, fstype, &[], true).expect("the clone");
        make_file(&mounted_clone, "only-here").expect("the clone is writable");
        assert!(!exists(&original, "only-here"));
    }
}
