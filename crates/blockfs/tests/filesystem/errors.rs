//! What goes wrong, each provoked for real: one sentence with the device, the call and what to do.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crust_blockfs::device::Device;
use crust_blockfs::filesystem::{MountError, MountErrorCause, MountRequest, mount_detached};
use crust_blockfs::options;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::support::{Image, Loop, kernel, run, wait_until_free};
use crate::{mount, refused};

const TYPES: [&str; 4] = ["ext3", "ext4", "xfs", "btrfs"];

#[test]
fn a_file_system_the_kernel_does_not_know_is_named() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let result = mount(&on, "nosuchfs", &[], true);
    let start = "fsopen(nosuchfs) for {device}: ENODEV: ";
    let (cause, _) = refused(result, &on, start);
    assert_eq!(
        cause,
        MountErrorCause::UnknownFileSystem {
            fstype: "nosuchfs".to_owned()
        }
    );
}

#[test]
fn another_file_system_than_asked_for_is_named() {
    for (made, asked, found) in [
        ("xfs", "ext4", "xfs"),
        ("btrfs", "xfs", "btrfs"),
        ("ext4", "btrfs", "ext4"),
        ("ext4", "ext3", "ext4"),
        ("ext2", "ext3", "ext2"),
        ("ext2", "xfs", "ext2"),
    ] {
        let image = Image::made(made, &[]);
        let on = image.attach();
        let start = format!(
            "fsconfig({{device}}, {asked}, create): EINVAL: the device holds {made}, not {asked}; \
             hint: set the volume's fsType to {made}, "
        );
        let (cause, _) = refused(mount(&on, asked, &[], true), &on, &start);
        let fstype = asked.to_owned();
        assert_eq!(cause, MountErrorCause::OtherFileSystem { fstype, found });
    }
}

#[test]
fn a_blank_device_holds_no_file_system() {
    let image = Image::blank(32);
    let on = image.attach();
    for fstype in TYPES {
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EINVAL: \
             the device holds no file system"
        );
        let (cause, _) = refused(mount(&on, fstype, &[], true), &on, &start);
        assert_eq!(
            cause,
            MountErrorCause::NoFileSystem {
                fstype: fstype.to_owned()
            }
        );
    }
}

#[test]
fn a_bad_option_is_named_in_the_kernels_words() {
    for (fstype, option, words) in [
        ("ext4", "nonsense", "Unknown parameter 'nonsense'"),
        ("ext4", "commit=soon", "Bad value for 'commit'"),
        ("ext3", "nonsense=1", "Unknown parameter 'nonsense'"),
        ("xfs", "commit=30", "Unknown parameter 'commit'"),
        ("xfs", "logbufs=many", "Bad value for 'logbufs'"),
    ] {
        let image = Image::made(fstype, &[]);
        let on = image.attach();
        let start = format!(
            "fsconfig({{device}}, {fstype}, \"{option}\"): EINVAL: {fstype}: {words}; hint: "
        );
        let result = mount(&on, fstype, &["noatime", option], true);
        let (cause, _) = refused(result, &on, &start);
        let key = option.split('=').next().expect("a key");
        let (fstype, option) = (fstype.to_owned(), key.to_owned());
        assert_eq!(cause, MountErrorCause::BadOption { fstype, option });
    }
}

/// btrfs checks its options one by one since Linux 6.8; before that it says nothing, and late.
#[test]
fn a_bad_option_of_btrfs_is_named_by_old_and_new_kernels() {
    let image = Image::made("btrfs", &[]);
    let on = image.attach();
    for option in ["nonsense", "compress=foo", "commit=soon"] {
        let late = kernel() < (6, 8);
        let call = if late {
            "create".to_owned()
        } else {
            format!("\"{option}\"")
        };
        let start = format!("fsconfig({{device}}, btrfs, {call}): EINVAL: ");
        let result = mount(&on, "btrfs", &["noatime,ssd", option], true);
        let (cause, sentence) = refused(result, &on, &start);
        assert!(sentence.contains(option), "{sentence}");
        let fstype = "btrfs".to_owned();
        let key = option.split('=').next().expect("a key").to_owned();
        let expected = if late {
            let options = vec!["ssd".to_owned(), option.to_owned()];
            MountErrorCause::Rejected { fstype, options }
        } else {
            MountErrorCause::BadOption {
                fstype,
                option: key,
            }
        };
        assert_eq!(cause, expected);
    }
}

/// They are looked at together, by a kernel that says why in its log alone.
#[test]
fn options_that_exclude_each_other_are_all_named() {
    for (fstype, options) in [
        ("ext4", "data=journal,delalloc"),
        ("xfs", "norecovery"),
        ("btrfs", "rescue=nologreplay"),
    ] {
        let image = Image::made(fstype, &[]);
        let on = image.attach();
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EINVAL: the kernel refuses the device's \
             {fstype} with the options {options}; hint: the kernel's log (dmesg) has the reason"
        );
        let _ = refused(mount(&on, fstype, &[options], true), &on, &start);
    }
}

#[test]
fn a_subvolume_that_is_not_there_is_not_a_device_that_is_gone() {
    let image = Image::made("btrfs", &[]);
    let on = image.attach();
    for option in ["subvol=/none", "subvolid=999"] {
        let start = "fsconfig({device}, btrfs, create): ENOENT: the file system has no subvolume";
        let (cause, _) = refused(mount(&on, "btrfs", &["ssd", option], true), &on, start);
        let option = option.to_owned();
        assert_eq!(cause, MountErrorCause::NoSubvolume { option });
        wait_until_free(&on.device());
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
    assert!(held.is_held_exclusively().expect("the device answers"));
    let start = "fsconfig({device}, ext4, create): EBUSY: ";
    let (cause, _) = refused(mount(&on, "ext4", &[], false), &on, start);
    assert_eq!(cause, MountErrorCause::InUse);
    drop(holder);
    let ext2 = mount(&on, "ext2", &[], true).expect("it is free again");
    let (cause, _) = refused(mount(&on, "ext4", &[], false), &on, start);
    assert_eq!(cause, MountErrorCause::InUse);
    drop(ext2);
}

/// Before Linux 6.6 the kernel can't tell, and `open(O_EXCL)` has to.
#[test]
fn a_second_mount_of_an_exclusive_device_is_refused() {
    for fstype in TYPES {
        let image = Image::made(fstype, &[]);
        let on = image.attach();
        let first = mount(&on, fstype, &[], true).expect("it is mounted");
        assert!(on.device().is_held_exclusively().expect("it answers"));
        if kernel() >= (6, 6) {
            let start = format!("fsconfig({{device}}, {fstype}, create): EBUSY: ");
            let (cause, _) = refused(mount(&on, fstype, &[], true), &on, &start);
            assert_eq!(cause, MountErrorCause::AlreadyMounted);
        }
        let second = mount(&on, fstype, &[], false).expect("sharing is allowed");
        drop((first, second));
        wait_until_free(&on.device());
    }
}

/// btrfs allows it since Linux 6.8, so that there the records of a device's users have to refuse.
#[test]
fn read_write_and_read_only_at_once_are_refused_both_ways() {
    for (fstype, first, second) in [
        ("ext3", "rw", "ro"),
        ("ext4", "rw", "ro"),
        ("ext4", "ro", "rw"),
        ("xfs", "rw", "ro"),
        ("xfs", "ro", "rw"),
    ] {
        let image = Image::made(fstype, &[]);
        let on = image.attach();
        let held = mount(&on, fstype, &[first], true).expect("it is mounted");
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EBUSY: \
             the device's file system is mounted read-"
        );
        let (cause, _) = refused(mount(&on, fstype, &[second], false), &on, &start);
        let read_only = second == "ro";
        assert_eq!(cause, MountErrorCause::ReadOnlyMismatch { read_only });
        drop(held);
        wait_until_free(&on.device());
    }
}

/// The device is found, then its node goes (udev, `losetup -d`) or becomes something else.
#[test]
fn a_device_node_that_vanishes_is_a_device_gone() {
    let image = Image::ext4(&[]);
    let on = image.attach();
    let node = image.directory().join("node");
    let copy_node = || {
        let _ = std::fs::remove_file(&node);
        run(Command::new("cp")
            .arg("--archive")
            .arg(on.path())
            .arg(&node));
        Device::open(&node).expect("the copy is a block device")
    };
    let options = options::parse(&["rw"]).expect("the options are valid");
    for (replacement, errno, expected) in [
        (None, "ENOENT", MountErrorCause::NoDevice),
        (Some("a file"), "ENOTBLK", MountErrorCause::NotBlockDevice),
    ] {
        let device = copy_node();
        std::fs::remove_file(&node).expect("the node is removed");
        if let Some(contents) = replacement {
            std::fs::write(&node, contents).expect("a file takes its place");
        }
        let result = mount_detached(&MountRequest {
            device: &device.into(),
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
fn a_node_that_becomes_another_device_is_noticed() {
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
    let device = Device::open(&node).expect("a block device");
    copy(&other);
    let options = options::parse(&["rw"]).expect("the options are valid");
    let error = mount_detached(&MountRequest {
        device: &device.into(),
        fstype: "ext4",
        options: &options,
        exclusive: true,
    })
    .expect_err("it is another device");
    assert!(matches!(error, MountError::Replaced { .. }), "{error}");
    wait_until_free(&other.device());
}

/// A letter of the label is covered by the superblock's checksum and nothing else.
fn with_another_label(image: &Image, at: u64) -> Loop {
    let mut file = File::options();
    let file = file.write(true).open(image.path());
    let file = file.expect("the image opens");
    file.write_all_at(b"X", at).expect("the label is changed");
    image.attach()
}

#[test]
fn a_wrong_checksum_is_told_from_corruption() {
    let image = Image::ext4(&["-O", "metadata_csum"]);
    let on = with_another_label(&image, 0x400 + 0x78);
    let start = "fsconfig({device}, ext4, create): EBADMSG: ";
    let (cause, _) = refused(mount(&on, "ext4", &[], true), &on, start);
    assert_eq!(cause, MountErrorCause::BadChecksum);
}

/// xfs calls it corruption, btrfs only says EINVAL.
#[test]
fn a_wrong_checksum_of_xfs_and_btrfs_is_told_to_be_checked() {
    let image = Image::made("xfs", &[]);
    let on = with_another_label(&image, 0x6c);
    let start = "fsconfig({device}, xfs, create): EUCLEAN: ";
    let (cause, sentence) = refused(mount(&on, "xfs", &[], true), &on, start);
    assert_eq!(cause, MountErrorCause::Corrupt);
    assert!(sentence.contains("xfs_repair"), "{sentence}");

    let image = Image::made("btrfs", &[]);
    let on = with_another_label(&image, 0x1_0000 + 0x12b);
    let start =
        "fsconfig({device}, btrfs, create): EINVAL: the kernel refuses the device's btrfs; ";
    let (_, sentence) = refused(mount(&on, "btrfs", &[], true), &on, start);
    assert!(sentence.contains("damage"), "{sentence}");
}

#[test]
fn a_corrupt_file_system_is_told_to_be_checked() {
    let ext4 = Image::ext4(&["-O", "^metadata_csum,^uninit_bg,^64bit", "-E", "nodiscard"]);
    // A group's bitmap is said to be behind the end.
    run(Command::new("debugfs")
        .args(["-w", "-R", "set_block_group 0 block_bitmap 99999999"])
        .arg(ext4.path()));
    let xfs = Image::made("xfs", &[]);
    let script = ["-c", "inode 128", "-c", "write -d core.mode 0100644"];
    run(Command::new("xfs_db")
        .arg("-x")
        .args(script)
        .arg(xfs.path()));
    for (fstype, image, checker) in [("ext4", ext4, "e2fsck"), ("xfs", xfs, "xfs_repair")] {
        let on = image.attach();
        let start = format!("fsconfig({{device}}, {fstype}, create): EUCLEAN: ");
        let (cause, sentence) = refused(mount(&on, fstype, &[], true), &on, &start);
        assert_eq!(cause, MountErrorCause::Corrupt);
        assert!(sentence.contains(checker), "{sentence}");
    }
}

/// A snapshot restored to a smaller volume.
#[test]
fn a_device_shorter_than_its_file_system_names_both_sizes() {
    for (fstype, size, device_size) in [("ext4", 32, 16), ("xfs", 320, 310), ("btrfs", 128, 120)] {
        let image = Image::made(fstype, &[]);
        let file = File::options().write(true).open(image.path());
        let (size, device_size) = (size << 20, device_size << 20);
        file.expect("it opens")
            .set_len(device_size)
            .expect("it shrinks");
        let on = image.attach();
        let errno = if fstype == "xfs" { "EIO" } else { "EINVAL" };
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): {errno}: the device has {device_size} bytes, and \
             the file system on it needs {size}; hint: "
        );
        let (cause, _) = refused(mount(&on, fstype, &[], true), &on, &start);
        assert_eq!(cause, MountErrorCause::Truncated { size, device_size });
    }
}

/// The file behind the loop device loses its end, and the device doesn't know. (Where it doesn't
/// read directly, Linux 6.1 gives zeroes for what isn't there.)
#[test]
fn a_read_error_is_told_from_a_broken_file_system() {
    let image = Image::made("xfs", &[]);
    let on = image.attach_with(&["--direct-io=on"]);
    let file = File::options().write(true).open(image.path());
    file.expect("it opens").set_len(4096).expect("it shrinks");
    let start = "fsconfig({device}, xfs, create): EIO: the device can't be read";
    let (cause, _) = refused(mount(&on, "xfs", &[], true), &on, start);
    assert_eq!(cause, MountErrorCause::ReadFailed);
}

#[test]
fn a_read_only_device_takes_only_a_read_only_mount() {
    for fstype in TYPES {
        let image = Image::made(fstype, &[]);
        let on = image.attach_with(&["--read-only"]);
        assert!(on.device().is_read_only().expect("sysfs answers"));
        let start =
            format!("fsconfig({{device}}, {fstype}, create): EACCES: the device is read-only");
        let (cause, _) = refused(mount(&on, fstype, &[], true), &on, &start);
        assert_eq!(cause, MountErrorCause::ReadOnlyDevice);
        let mount = mount(&on, fstype, &["ro"], true).expect("read-only is possible");
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&mount, "file", create, Mode::from(0o600));
        assert_eq!(file.expect_err("nothing is written"), Errno::ROFS);
    }
}

/// An ext4 whose journal is to be replayed.
fn dirty() -> Image {
    let image = Image::ext4(&[]);
    run(Command::new("debugfs")
        .args(["-w", "-R", "feature needs_recovery"])
        .arg(image.path()));
    assert!(is_dirty(&image));
    image
}

fn is_dirty(image: &Image) -> bool {
    let dumped = run(Command::new("dumpe2fs").arg("-h").arg(image.path()));
    dumped.contains("needs_recovery")
}

/// Without `noload` this is EROFS: the journal would be replayed onto a device that can't take it.
#[test]
fn a_dirty_journal_on_a_read_only_device_is_left_alone() {
    let image = dirty();
    let on = image.attach_with(&["--read-only"]);
    drop(mount(&on, "ext4", &["ro"], true).expect("it mounts without its journal"));
    wait_until_free(&on.device());
    assert!(is_dirty(&image));
}

/// As with mount(8).
#[test]
fn a_dirty_journal_is_replayed_for_a_read_only_mount_too() {
    let image = dirty();
    let on = image.attach();
    drop(mount(&on, "ext4", &["ro"], true).expect("it mounts"));
    wait_until_free(&on.device());
    assert!(!is_dirty(&image));
}

#[test]
fn a_dirty_journal_not_replayed_needs_a_read_only_mount() {
    let image = dirty();
    let on = image.attach();
    let start = "fsconfig({device}, ext4, create): EINVAL: the kernel refuses the device's ext4 \
                 with the options noload; hint: ";
    let _ = refused(mount(&on, "ext4", &["noload"], true), &on, start);
    let _ = mount(&on, "ext4", &["ro,noload"], true).expect("read-only it works");
}

#[test]
fn a_btrfs_on_several_devices_is_refused_at_once() {
    let (first, second) = (Image::blank(128), Image::blank(128));
    let (on, other) = (first.attach(), second.attach());
    run(Command::new("mkfs.btrfs")
        .args(["-q", "-f", "-d", "single", "-m", "raid1"])
        .args([on.path(), other.path()]));
    for options in [&[][..], &["degraded"]] {
        let error = mount(&on, "btrfs", options, true).expect_err("it is refused");
        let expected = format!(
            "btrfs on {:?}: the file system is on 2 devices, but a volume is a single device; hint: ",
            on.path()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

/// What libblkid's users know better than to format.
#[test]
fn what_is_not_empty_is_named_and_nobody_is_told_to_format_it() {
    for (program, arguments, bytes, name) in [
        ("mkswap", &[][..], None, "swap space"),
        (
            "mke2fs",
            &["-q", "-O", "journal_dev"],
            None,
            "external journal",
        ),
        ("", &[], Some((0, &b"LUKS\xba\xbe\0\x02"[..])), "LUKS"),
        ("", &[], Some((512, b"LABELONE")), "LVM"),
        ("", &[], Some((4096, b"\xfc\x4e\x2b\xa9")), "md array"),
        ("", &[], Some((512, b"EFI PART")), "GPT"),
        ("", &[], Some((510, b"\x55\xaa")), "MBR"),
        ("", &[], Some((0x52, b"FAT32   ")), "FAT"),
        ("", &[], Some((1024, b"\xe2\xe1\xf5\xe0")), "erofs"),
        ("", &[], Some((0, b"hsqs")), "squashfs"),
        (
            "",
            &[],
            Some((1 << 20, b"somebody's")),
            "isn't empty: byte 1048576",
        ),
    ] {
        let image = Image::blank(32);
        if let Some((at, bytes)) = bytes {
            let file = File::options().write(true).open(image.path());
            let file = file.expect("the image opens");
            file.write_all_at(bytes, at).expect("it is written");
        } else {
            run(Command::new(program).args(arguments).arg(image.path()));
        }
        let on = image.attach();
        for fstype in TYPES {
            let start =
                format!("fsconfig({{device}}, {fstype}, create): EINVAL: the device holds ");
            let (_, sentence) = refused(mount(&on, fstype, &[], true), &on, &start);
            assert!(sentence.contains(name), "{name}: {sentence}");
            assert!(!sentence.contains("mkfs"), "{sentence}");
        }
    }
}

/// On a device that can be written to; on another one the journal isn't replayed at all. Some kernels replay it
/// for a read-only mount as well: Debian 13's 6.12.118 does, and Debian 12's 6.1 and 6.18.44 refuse.
#[test]
fn unreplayed_fast_commits_are_told_from_a_device_error() {
    let image = Image::ext4(&["-O", "fast_commit"]);
    let on = image.attach();
    let volume = mount(&on, "ext4", &[], true).expect("it is mounted");
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    for name in ["a", "b", "c"] {
        let file = openat(&volume, name, create, Mode::from(0o600)).expect("a file");
        rustix::fs::fsync(&file).expect("a fast commit");
    }
    // As a snapshot of the disk would have it.
    let dirty = Image::clone_of(&image);
    drop(volume);
    let on = dirty.attach();
    let start = "fsconfig({device}, ext4, create): EROFS: ";
    match mount(&on, "ext4", &["ro"], true) {
        Ok(replayed) => drop(replayed),
        failed => {
            let (cause, sentence) = refused(failed, &on, start);
            assert!(
                matches!(cause, MountErrorCause::Restricted(_)),
                "{sentence}"
            );
            assert!(!sentence.contains("device can't"), "{sentence}");
        }
    }
    drop(mount(&on, "ext4", &["ro,noload"], true).expect("what is hinted at works"));
    drop(mount(&on, "ext4", &[], true).expect("what is hinted at works"));
}

#[test]
fn a_seed_is_told_from_a_device_that_is_read_only() {
    let image = Image::made("btrfs", &[]);
    run(Command::new("btrfstune")
        .args(["-S", "1"])
        .arg(image.path()));
    let on = image.attach();
    let start = "fsconfig({device}, btrfs, create): EACCES: ";
    let (cause, _) = refused(mount(&on, "btrfs", &[], true), &on, start);
    assert!(matches!(cause, MountErrorCause::Restricted(_)));
    drop(mount(&on, "btrfs", &["ro"], true).expect("what is hinted at works"));
}

#[test]
fn sectors_larger_than_blocks_are_named_with_both_sizes() {
    for (fstype, arguments, sector) in [
        ("xfs", &["-s", "size=512"][..], 512),
        ("ext4", &["-b", "1024"], 1024),
    ] {
        let image = Image::made(fstype, arguments);
        let on = image.attach_with(&["--sector-size", "4096"]);
        let errno = if fstype == "xfs" { "ENOSYS" } else { "EINVAL" };
        let start = format!("fsconfig({{device}}, {fstype}, create): {errno}: ");
        let (cause, sentence) = refused(mount(&on, fstype, &[], true), &on, &start);
        let logical_block = 4096;
        assert_eq!(
            cause,
            MountErrorCause::SmallSectors {
                sector,
                logical_block
            },
            "{sentence}"
        );
        for size in [sector, logical_block] {
            assert!(sentence.contains(&size.to_string()), "{sentence}");
        }
    }
}
