//! Real file systems on loop devices, detached mounts only. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set their scenes by path"
)]

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crust_mount::filesystem::{Cause, MountError, Request, instantiate};
use crust_mount::options;
use crust_mount::probe::Kind;
use crust_mount::usage::usage;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use support::{Image, Loop, run, wait_until_free};

fn mount(on: &Loop, fstype: &str, list: &[&str], exclusive: bool) -> Result<OwnedFd, MountError> {
    let options = options::parse(list).expect("the options are valid");
    instantiate(&Request {
        device: &on.device(),
        fstype,
        options: &options,
        exclusive,
    })
}

/// The error's sentence and cause; `{device}` in `start` stands for the path.
fn refused(result: Result<OwnedFd, MountError>, on: &Loop, start: &str) -> (Cause, String) {
    let error = result.expect_err("the mount is refused");
    let sentence = error.to_string();
    let start = start.replace("{device}", &format!("\"{}\"", on.path().display()));
    assert!(
        sentence.starts_with(&start),
        "{sentence}\n does not start with\n{start}"
    );
    assert!(sentence.contains("; hint: "), "{sentence}");
    assert!(!sentence.contains('\n'), "{sentence}");
    (error.cause().expect("the kernel refused").clone(), sentence)
}

fn write_and_read(mount: &OwnedFd) {
    let create = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(mount, "file", create, Mode::from(0o600)).expect("a file is created");
    rustix::io::write(&file, b"contents").expect("it is written");
    let again = openat(
        mount,
        "file",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let mut contents = String::new();
    File::from(again.expect("it opens again"))
        .read_to_string(&mut contents)
        .expect("it is read");
    assert_eq!(contents, "contents");
}

#[test]
fn a_detached_mount_is_usable_and_gone_when_its_descriptor_is_closed() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let device = on.device();
    assert!(!device.in_use_exclusively().expect("the device answers"));
    let mount = mount(&on, "ext4", &["noatime,discard", "nosuid"], true).expect("it is mounted");
    write_and_read(&mount);
    assert!(usage(&mount).expect("it answers").bytes.total > 16 << 20);
    assert!(device.in_use_exclusively().expect("the device answers"));
    let mounts = crust_mount::mountinfo::read_own().expect("our mountinfo");
    assert!(
        mounts.iter().all(|mount| mount.device != device.number()),
        "it is attached nowhere"
    );
    drop(mount);
    wait_until_free(&device);
}

#[test]
fn options_reach_the_mount_and_the_superblock() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let list = ["nosuid,nodev,noatime,lazytime", "commit=77"];
    let mount = mount(&on, "ext4", &list, true).expect("it is mounted");
    let flags = rustix::fs::fstatvfs(&mount).expect("it answers").f_flag;
    let expected = rustix::fs::StatVfsMountFlags::NOSUID
        | rustix::fs::StatVfsMountFlags::NODEV
        | rustix::fs::StatVfsMountFlags::NOATIME;
    assert!(flags.contains(expected), "{flags:?}");
    let name = on.path().file_name().expect("a name");
    let proc = std::path::Path::new("/proc/fs/ext4")
        .join(name)
        .join("options");
    let options = std::fs::read_to_string(proc).expect("ext4 shows its options");
    assert!(options.lines().any(|line| line == "commit=77"), "{options}");
}

#[test]
fn xfs_and_btrfs_mount_as_well() {
    for (fstype, mebibytes) in [("xfs", 320), ("btrfs", 128)] {
        let image = Image::blank(mebibytes);
        run(Command::new(format!("mkfs.{fstype}"))
            .arg("-q")
            .arg(image.path()));
        let on = image.attach();
        let mount = mount(&on, fstype, &["noatime"], true).expect(fstype);
        write_and_read(&mount);
        drop(mount);
        wait_until_free(&on.device());
    }
}

#[test]
fn a_file_system_the_kernel_does_not_know_is_named() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let result = mount(&on, "nosuchfs", &[], true);
    let start = "fsopen(nosuchfs) for {device}: ENODEV: ";
    let (cause, _) = refused(result, &on, start);
    assert_eq!(
        cause,
        Cause::UnknownFileSystem {
            fstype: "nosuchfs".to_owned()
        }
    );
}

#[test]
fn another_file_system_than_asked_for_is_named() {
    let image = Image::blank(320);
    run(Command::new("mkfs.xfs").arg("-q").arg(image.path()));
    let on = image.attach();
    let start = "fsconfig({device}, ext4, create): EINVAL: \
                 the device holds xfs, not ext4";
    let (cause, _) = refused(mount(&on, "ext4", &[], true), &on, start);
    let (fstype, found) = ("ext4".to_owned(), Kind::Xfs);
    assert_eq!(cause, Cause::OtherFileSystem { fstype, found });
}

#[test]
fn a_blank_device_holds_no_file_system() {
    let image = Image::blank(32);
    let on = image.attach();
    for fstype in ["ext4", "xfs", "btrfs"] {
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EINVAL: \
             the device holds no file system"
        );
        let (cause, _) = refused(mount(&on, fstype, &[], true), &on, &start);
        assert_eq!(
            cause,
            Cause::NoFileSystem {
                fstype: fstype.to_owned()
            }
        );
    }
}

#[test]
fn a_bad_option_is_named_in_the_kernels_words() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    for (option, key, words) in [
        ("nonsense", "nonsense", "ext4: Unknown parameter 'nonsense'"),
        ("commit=soon", "commit", "ext4: Bad value for 'commit'"),
    ] {
        let start = format!("fsconfig({{device}}, ext4, \"{option}\"): EINVAL: {words}; hint: ");
        let (cause, _) = refused(mount(&on, "ext4", &["noatime", option], true), &on, &start);
        let (fstype, option) = ("ext4".to_owned(), key.to_owned());
        assert_eq!(cause, Cause::BadOption { fstype, option });
    }
}

#[test]
fn a_device_held_by_another_type_is_busy() {
    let image = Image::ext4(&["-t", "ext2"]);
    let on = image.attach();
    let held = on.device();
    let holder = rustix::fs::open(
        on.path(),
        OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("nobody else has it");
    assert!(held.in_use_exclusively().expect("the device answers"));
    let start = "fsconfig({device}, ext4, create): EBUSY: ";
    let (cause, _) = refused(mount(&on, "ext4", &[], false), &on, start);
    assert_eq!(cause, Cause::InUse);
    drop(holder);
    let ext2 = mount(&on, "ext2", &[], true).expect("it is free again");
    let (cause, _) = refused(mount(&on, "ext4", &[], false), &on, start);
    assert_eq!(cause, Cause::InUse);
    drop(ext2);
}

#[test]
fn a_second_mount_is_refused_where_the_first_is_to_be_the_only_one() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let first = mount(&on, "ext4", &[], true).expect("it is mounted");
    let start = "fsconfig({device}, ext4, create): EBUSY: ";
    let (cause, _) = refused(mount(&on, "ext4", &[], true), &on, start);
    assert_eq!(cause, Cause::AlreadyMounted);
    let second = mount(&on, "ext4", &[], false).expect("sharing is allowed");
    drop((first, second));
    wait_until_free(&on.device());
}

#[test]
fn read_write_and_read_only_at_once_are_refused_both_ways() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    for (first, second) in [("rw", "ro"), ("ro", "rw")] {
        let held = mount(&on, "ext4", &[first], true).expect("it is mounted");
        let start = "fsconfig({device}, ext4, create): EBUSY: \
                     the device's file system is mounted read-";
        let (cause, _) = refused(mount(&on, "ext4", &[second], false), &on, start);
        let read_only = second == "ro";
        assert_eq!(cause, Cause::ReadOnlyMismatch { read_only });
        drop(held);
        wait_until_free(&on.device());
    }
}

/// The device is found, then its node goes (udev, `losetup -d`) or becomes something else.
#[test]
fn a_node_that_goes_after_it_was_found_is_a_device_that_is_gone() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let node = image.directory().join("node");
    let copy_node = || {
        let _ = std::fs::remove_file(&node);
        run(Command::new("cp")
            .arg("--archive")
            .arg(on.path())
            .arg(&node));
        crust_mount::device::Device::open(&node).expect("the copy is a block device")
    };
    let options = options::parse(&["rw"]).expect("the options are valid");
    for (replacement, errno, expected) in [
        (None, "ENOENT", Cause::NoDevice),
        (Some("a file"), "ENOTBLK", Cause::NotBlockDevice),
    ] {
        let device = copy_node();
        std::fs::remove_file(&node).expect("the node is removed");
        if let Some(contents) = replacement {
            std::fs::write(&node, contents).expect("a file takes its place");
        }
        let result = instantiate(&Request {
            device: &device,
            fstype: "ext4",
            options: &options,
            exclusive: true,
        });
        let error = result.expect_err("the node is gone");
        let start = format!("fsconfig({node:?}, ext4, create): {errno}: ");
        assert!(error.to_string().starts_with(&start), "{error}");
        assert_eq!(error.cause(), Some(&expected));
    }
}

#[test]
fn a_node_that_becomes_another_device_is_not_taken_for_the_first() {
    let (image, other) = (Image::ext4(&[]), Image::ext4(&[]));
    let (on, other) = (image.attach(), other.attach());
    let node = image.directory().join("node");
    let copy = |from: &Loop| {
        let _ = std::fs::remove_file(&node);
        run(Command::new("cp")
            .arg("--archive")
            .arg(from.path())
            .arg(&node));
    };
    copy(&on);
    let device = crust_mount::device::Device::open(&node).expect("a block device");
    copy(&other);
    let options = options::parse(&["rw"]).expect("the options are valid");
    let error = instantiate(&Request {
        device: &device,
        fstype: "ext4",
        options: &options,
        exclusive: true,
    })
    .expect_err("it is another device");
    assert!(matches!(error, MountError::Replaced { .. }), "{error}");
    wait_until_free(&other.device());
}

#[test]
fn a_wrong_checksum_is_told_from_corruption() {
    let image = Image::ext4(&["-O", "metadata_csum"]);
    let file = File::options()
        .write(true)
        .open(image.path())
        .expect("the image opens");
    // A letter of the volume's label: covered by the superblock's checksum and nothing else.
    file.write_all_at(b"X", 0x400 + 0x78)
        .expect("the label is changed");
    let on = image.attach();
    let start = "fsconfig({device}, ext4, create): EBADMSG: ";
    let (cause, _) = refused(mount(&on, "ext4", &[], true), &on, start);
    assert_eq!(cause, Cause::BadChecksum);
}

#[test]
fn a_corrupt_file_system_is_told_to_be_checked() {
    let image = Image::ext4(&["-O", "^metadata_csum,^uninit_bg,^64bit", "-E", "nodiscard"]);
    // The root directory's inode becomes a file.
    run(Command::new("debugfs")
        .args(["-w", "-R", "set_inode_field <2> mode 0100644"])
        .arg(image.path()));
    let on = image.attach();
    let start = "fsconfig({device}, ext4, create): EUCLEAN: ";
    let (cause, sentence) = refused(mount(&on, "ext4", &[], true), &on, start);
    assert_eq!(cause, Cause::Corrupt);
    assert!(sentence.contains("fsck"), "{sentence}");
}

#[test]
fn a_read_only_device_takes_no_read_write_mount_and_a_read_only_one() {
    let image = Image::ext4(&[]);
    let on = image.attach_with(&["--read-only"]);
    assert!(on.device().is_read_only().expect("sysfs answers"));
    let start = "fsconfig({device}, ext4, create): EACCES: the device is read-only";
    let (cause, _) = refused(mount(&on, "ext4", &[], true), &on, start);
    assert_eq!(cause, Cause::ReadOnlyDevice);
    let mount = mount(&on, "ext4", &["ro"], true).expect("read-only is possible");
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(&mount, "file", create, Mode::from(0o600));
    assert_eq!(file.expect_err("nothing is written"), Errno::ROFS);
}

/// Without `noload` this is EROFS: the journal would be replayed onto a device that can't take it.
#[test]
fn a_dirty_journal_on_a_read_only_device_is_left_alone() {
    let image = Image::ext4(&[]);
    run(Command::new("debugfs")
        .args(["-w", "-R", "feature needs_recovery"])
        .arg(image.path()));
    let on = image.attach_with(&["--read-only"]);
    let dumped = run(Command::new("dumpe2fs").arg("-h").arg(on.path()));
    assert!(
        dumped.contains("needs_recovery"),
        "the journal is dirty: {dumped}"
    );
    mount(&on, "ext4", &["ro"], true).expect("it mounts without its journal");
}

#[test]
fn two_loop_devices_on_one_file_are_aliases_and_two_files_are_not() {
    let (image, other) = (Image::blank(16), Image::blank(16));
    let (first, second, other) = (image.attach(), image.attach(), other.attach());
    let aliases = |on: &Loop| on.device().aliases().expect("sysfs is complete");
    assert!(aliases(&first).conflicts_with(&aliases(&second)));
    assert!(!aliases(&first).conflicts_with(&aliases(&other)));
}

#[test]
fn a_device_is_found_through_a_symbolic_link() {
    let image = Image::blank(16);
    let on = image.attach();
    let link = image.directory().join("by-id");
    std::os::unix::fs::symlink(on.path(), &link).expect("a link");
    let device = crust_mount::device::Device::open(&link).expect("the link leads to a device");
    assert_eq!(device.path(), link);
    assert_eq!(device.resolved_path(), on.path());
    assert_eq!(device.number(), on.device().number());
}

#[test]
fn a_detached_mount_can_be_made_private() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let mount = mount(&on, "ext4", &[], true).expect("it is mounted");
    crust_mount::sys::set_propagation_private(&mount).expect("it is the root of a mount");
}
