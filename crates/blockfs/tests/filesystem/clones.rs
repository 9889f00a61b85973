//! A clone or a restored snapshot beside its original: two devices, one UUID.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use crust_blockfs::filesystem::MountError;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::support::{Image, Loop, Mounted, in_own_mount_namespace, run, wait_until_free};
use crate::{mount, refused};

/// Whether the superblock was made with `nouuid`.
fn has_no_uuid(mount: &OwnedFd) -> bool {
    let on = tempfile::tempdir().expect("a temporary directory");
    let info = Mounted::attached(mount, on.path()).info();
    let options = info.super_options.unescaped();
    let options = options.to_str().expect("options are text");
    options.split(',').any(|option| option == "nouuid")
}

fn make(mount: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    openat(mount, name, create, Mode::from(0o600))
}

fn exists(mount: &OwnedFd, name: &str) -> bool {
    openat(mount, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

/// An xfs with a file that only its log knows.
fn with_a_dirty_log() -> Image {
    let image = Image::made("xfs", &[]);
    let on = image.attach();
    let mount = mount(&on, "xfs", &[], true).expect("it is mounted");
    make(&mount, "in-the-log").expect("a file");
    let path = format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd());
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f", &path]));
    drop(mount);
    wait_until_free(&on.device());
    drop(on);
    image
}

#[test]
fn only_an_xfs_beside_its_clone_gets_nouuid() {
    let test = "clones::only_an_xfs_beside_its_clone_gets_nouuid";
    in_own_mount_namespace(test, || {
        let image = Image::made("xfs", &[]);
        let (on, other) = (image.attach(), Image::made("xfs", &[]));
        let clone = Image::clone_of(&image);
        let (clone, other) = (clone.attach(), other.attach());
        let original = mount(&on, "xfs", &[], true).expect("the original");
        assert!(!has_no_uuid(&original));
        let stranger = mount(&other, "xfs", &[], true).expect("one with another UUID");
        assert!(!has_no_uuid(&stranger));
        let twin = mount(&clone, "xfs", &["logbufs=4"], true).expect("the clone");
        assert!(has_no_uuid(&twin));
        make(&twin, "only-here").expect("it can be written to");
        assert!(!exists(&original, "only-here"));

        // A second pod on the clone joins the superblock that is there.
        let again = mount(&clone, "xfs", &["logbufs=4"], false).expect("it is joined");
        assert!(exists(&again, "only-here"));
        drop((twin, again));
        wait_until_free(&clone.device());

        drop(original);
        wait_until_free(&on.device());
        let alone = mount(&clone, "xfs", &[], true).expect("the clone without its original");
        assert!(!has_no_uuid(&alone));
    });
}

#[test]
fn nouuid_by_hand_is_taken_with_and_without_a_twin() {
    let test = "clones::nouuid_by_hand_is_taken_with_and_without_a_twin";
    in_own_mount_namespace(test, || {
        let image = Image::made("xfs", &[]);
        let clone = Image::clone_of(&image);
        let (on, clone) = (image.attach(), clone.attach());
        let original = mount(&on, "xfs", &["nouuid"], true).expect("the original");
        assert!(has_no_uuid(&original));
        let twin = mount(&clone, "xfs", &["nouuid"], true).expect("the clone");
        assert!(has_no_uuid(&twin));
    });
}

#[test]
fn the_log_of_an_xfs_clone_is_replayed_onto_the_clone() {
    let image = with_a_dirty_log();
    let clone = Image::clone_of(&image);
    let (on, clone) = (image.attach(), clone.attach());
    let original = mount(&on, "xfs", &[], true).expect("the original");
    let twin = mount(&clone, "xfs", &[], true).expect("the clone");
    for mount in [&original, &twin] {
        assert!(exists(mount, "in-the-log"));
    }
}

#[test]
fn a_dirty_read_only_xfs_clone_is_mounted_without_its_log() {
    let image = with_a_dirty_log();
    let clone = Image::clone_of(&image);
    let (on, clone) = (image.attach(), clone.attach_with(&["--read-only"]));
    let _original = mount(&on, "xfs", &[], true).expect("the original");
    let twin = mount(&clone, "xfs", &["ro"], true).expect("the clone");
    assert!(!exists(&twin, "in-the-log"));
    let error = make(&twin, "new").expect_err("it is read-only");
    assert_eq!(error, Errno::ROFS);
}

/// With `nouuid` the second try fails as the first did.
#[test]
fn another_reason_to_refuse_an_xfs_is_reported() {
    let image = Image::made("xfs", &[]);
    let clone = Image::clone_of(&image);
    let (on, clone) = (image.attach(), clone.attach());
    let start = "fsconfig({device}, xfs, create): EINVAL: the kernel refuses the device's xfs \
                 with the options logbsize=33; hint: ";
    let _ = refused(mount(&clone, "xfs", &["logbsize=33"], true), &clone, start);
    let _original = mount(&on, "xfs", &[], true).expect("the original");
    let _ = refused(mount(&clone, "xfs", &["logbsize=33"], true), &clone, start);
}

#[test]
fn an_xfs_without_a_uuid_is_nobodys_twin() {
    let image = Image::made("xfs", &["-m", "crc=0"]);
    run(Command::new("xfs_admin")
        .args(["-U", "nil"])
        .arg(image.path()));
    let on = image.attach();
    let start = "fsconfig({device}, xfs, create): EINVAL: the kernel refuses the device's xfs; ";
    let _ = refused(mount(&on, "xfs", &[], true), &on, start);
}

fn fsid(on: &Loop) -> String {
    let mut command = Command::new("blkid");
    let command = command.args(["-p", "-s", "UUID", "-o", "value"]);
    run(command.arg(on.path())).trim().to_owned()
}

#[track_caller]
fn refused_as_a_twin(clone: &Loop, options: &[&str], other: &Path) {
    let error = mount(clone, "btrfs", options, true).expect_err("it is refused");
    let expected = format!(
        "btrfs on \"{}\": its file-system id {} is also that of \"{}\", which is mounted \
         (/sys/fs/btrfs); hint: ",
        clone.path().display(),
        fsid(clone),
        other.display(),
    );
    let sentence = error.to_string();
    assert!(sentence.starts_with(&expected), "{sentence}");
    assert!(sentence.contains("btrfstune -u"), "{sentence}");
    assert!(matches!(error, MountError::Unfit(_)));
}

#[test]
fn a_clone_of_a_mounted_btrfs_is_refused_and_not_written_to() {
    let image = Image::made("btrfs", &[]);
    let copy = Image::clone_of(&image);
    let (on, clone) = (image.attach(), copy.attach());
    let original = mount(&on, "btrfs", &[], true).expect("the original");
    for options in [&[][..], &["ro"], &["noatime", "ssd"]] {
        refused_as_a_twin(&clone, options, on.path());
    }
    let before = std::fs::read(copy.path()).expect("the clone's bytes");
    refused_as_a_twin(&clone, &[], on.path());
    assert!(std::fs::read(copy.path()).expect("the clone's bytes") == before);
    make(&original, "file").expect("the original goes on");

    // The original's own second mount isn't meant.
    let again = mount(&on, "btrfs", &[], false).expect("the superblock is joined");
    drop((original, again));
    wait_until_free(&on.device());
    let clone_alone = mount(&clone, "btrfs", &[], true).expect("the clone without its original");
    make(&clone_alone, "file").expect("it can be written to");
    refused_as_a_twin(&on, &[], clone.path());
}

#[test]
fn a_btrfs_clone_with_an_id_of_its_own_is_mounted() {
    let image = Image::made("btrfs", &[]);
    let clone = Image::clone_of(&image);
    run(Command::new("btrfstune")
        .args(["-f", "-u"])
        .arg(clone.path()));
    let (on, clone) = (image.attach(), clone.attach());
    let _original = mount(&on, "btrfs", &[], true).expect("the original");
    let _ = mount(&clone, "btrfs", &[], true).expect("the clone");
}

#[test]
fn ext4_clones_do_not_mind_each_other() {
    for fstype in ["ext3", "ext4"] {
        let image = Image::made(fstype, &[]);
        let clone = Image::clone_of(&image);
        let (on, clone) = (image.attach(), clone.attach());
        let original = mount(&on, fstype, &[], true).expect("the original");
        let twin = mount(&clone, fstype, &[], true).expect("the clone");
        make(&twin, "only-here").expect("it can be written to");
        assert!(!exists(&original, "only-here"));
    }
}
