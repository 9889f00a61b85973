//! Errors of real mounts. Each message is one sentence with the device, the call and a hint.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use crust_blockfs::device::Device;
use crust_blockfs::filesystem::{MountError, MountErrorCause, MountRequest, mount_detached};
use crust_blockfs::options;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

use crate::support::{Image, TestLoopDevice, edit_ext4, kernel, run, wait_until_free};
use crate::{expect_error, mount};

const TYPES: [&str; 4] = ["ext3", "ext4", "xfs", "btrfs"];

#[test]
fn a_file_system_that_the_kernel_does_not_know_is_named() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    let result = mount(&loop_device, "nosuchfs", &[], true);
    let start = "fsopen(nosuchfs) for {device}: ENODEV: ";
    let (cause, _) = expect_error(result, &loop_device, start);
    assert_eq!(
        cause,
        MountErrorCause::UnknownFileSystem {
            fstype: "nosuchfs".to_owned()
        }
    );
}

#[test]
fn another_file_system_than_the_requested_one_is_named() {
    for (made, asked, found) in [
        ("xfs", "ext4", "xfs"),
        ("btrfs", "xfs", "btrfs"),
        ("ext4", "btrfs", "ext4"),
        ("ext4", "ext3", "ext4"),
        ("ext2", "ext3", "ext2"),
        ("ext2", "xfs", "ext2"),
    ] {
        let image = Image::formatted(made, &[]);
        let loop_device = image.attach();
        let start = format!(
            "fsconfig({{device}}, {asked}, create): EINVAL: the device holds {made}, not {asked}; \
             hint: set the volume's fsType to {made}, "
        );
        let (cause, _) = expect_error(mount(&loop_device, asked, &[], true), &loop_device, &start);
        let fstype = asked.to_owned();
        assert_eq!(cause, MountErrorCause::OtherFileSystem { fstype, found });
    }
}

#[test]
fn a_blank_device_holds_no_file_system() {
    let image = Image::blank(32);
    let loop_device = image.attach();
    for fstype in TYPES {
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EINVAL: \
             the device holds no file system"
        );
        let (cause, _) = expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
        assert_eq!(
            cause,
            MountErrorCause::NoFileSystem {
                fstype: fstype.to_owned()
            }
        );
    }
}

#[test]
fn a_bad_option_is_named_with_the_kernels_message() {
    for (fstype, option, words) in [
        ("ext4", "nonsense", "Unknown parameter 'nonsense'"),
        ("ext4", "commit=soon", "Bad value for 'commit'"),
        ("ext3", "nonsense=1", "Unknown parameter 'nonsense'"),
        ("xfs", "commit=30", "Unknown parameter 'commit'"),
        ("xfs", "logbufs=many", "Bad value for 'logbufs'"),
    ] {
        let image = Image::formatted(fstype, &[]);
        let loop_device = image.attach();
        let start = format!(
            "fsconfig({{device}}, {fstype}, \"{option}\"): EINVAL: {fstype}: {words}; hint: "
        );
        let result = mount(&loop_device, fstype, &["noatime", option], true);
        let (cause, _) = expect_error(result, &loop_device, &start);
        let key = option.split('=').next().expect("a key");
        let (fstype, option) = (fstype.to_owned(), key.to_owned());
        assert_eq!(cause, MountErrorCause::BadOption { fstype, option });
    }
}

/// btrfs checks its options one by one since Linux 6.8. Before, it fails only at the end, without a message.
#[test]
fn a_bad_option_of_btrfs_is_named_by_old_and_new_kernels() {
    let image = Image::formatted("btrfs", &[]);
    let loop_device = image.attach();
    for option in ["nonsense", "compress=foo", "commit=soon"] {
        let checks_options_at_create = kernel() < (6, 8);
        let call = if checks_options_at_create {
            "create".to_owned()
        } else {
            format!("\"{option}\"")
        };
        let start = format!("fsconfig({{device}}, btrfs, {call}): EINVAL: ");
        let result = mount(&loop_device, "btrfs", &["noatime,ssd", option], true);
        let (cause, message) = expect_error(result, &loop_device, &start);
        assert!(message.contains(option), "{message}");
        let fstype = "btrfs".to_owned();
        let key = option.split('=').next().expect("a key").to_owned();
        let expected = if checks_options_at_create {
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

/// The kernel checks all options together for such conflicts, and reports the reason only in its own log.
#[test]
fn all_options_are_named_if_some_exclude_each_other() {
    for (fstype, options) in [
        ("ext4", "data=journal,delalloc"),
        ("xfs", "norecovery"),
        ("btrfs", "rescue=nologreplay"),
    ] {
        let image = Image::formatted(fstype, &[]);
        let loop_device = image.attach();
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EINVAL: the kernel refuses the device's \
             {fstype} with the options {options}; hint: see the kernel's log (dmesg) for the reason"
        );
        let _ = expect_error(
            mount(&loop_device, fstype, &[options], true),
            &loop_device,
            &start,
        );
    }
}

#[test]
fn a_missing_subvolume_is_not_reported_as_a_missing_device() {
    let image = Image::formatted("btrfs", &[]);
    let loop_device = image.attach();
    for option in ["subvol=/none", "subvolid=999"] {
        let start = "fsconfig({device}, btrfs, create): ENOENT: the file system has no subvolume";
        let (cause, _) = expect_error(
            mount(&loop_device, "btrfs", &["ssd", option], true),
            &loop_device,
            start,
        );
        let option = option.to_owned();
        assert_eq!(cause, MountErrorCause::NoSubvolume { option });
        wait_until_free(&loop_device.device());
    }
}

#[test]
fn a_device_held_by_another_type_is_busy() {
    let image = Image::ext4(&["-t", "ext2"]);
    let loop_device = image.attach();
    let held = loop_device.device();
    let holder = rustix::fs::open(
        loop_device.path(),
        OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .expect("the device has no other user");
    assert!(held.is_held_exclusively().expect("the device answers"));
    let start = "fsconfig({device}, ext4, create): EBUSY: ";
    let (cause, _) = expect_error(mount(&loop_device, "ext4", &[], false), &loop_device, start);
    assert_eq!(cause, MountErrorCause::InUse);
    drop(holder);
    let ext2 = mount(&loop_device, "ext2", &[], true).expect("the device is free again");
    let (cause, _) = expect_error(mount(&loop_device, "ext4", &[], false), &loop_device, start);
    assert_eq!(cause, MountErrorCause::InUse);
    drop(ext2);
}

/// Before Linux 6.6 the kernel can't refuse the second mount itself, and callers check with `open(O_EXCL)`.
#[test]
fn a_second_mount_of_an_exclusive_device_is_refused() {
    for fstype in TYPES {
        let image = Image::formatted(fstype, &[]);
        let loop_device = image.attach();
        let first = mount(&loop_device, fstype, &[], true).expect("the volume is mounted");
        assert!(
            loop_device
                .device()
                .is_held_exclusively()
                .expect("the kernel answers")
        );
        if kernel() >= (6, 6) {
            let start = format!("fsconfig({{device}}, {fstype}, create): EBUSY: ");
            let (cause, _) =
                expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
            assert_eq!(cause, MountErrorCause::AlreadyMounted);
        }
        let second = mount(&loop_device, fstype, &[], false).expect("sharing is allowed");
        drop((first, second));
        wait_until_free(&loop_device.device());
    }
}

/// btrfs isn't tested: it has allowed both mounts since Linux 6.8, and only runcrust's records of the device's users
/// prevent the second one.
#[test]
fn a_device_is_not_mounted_read_only_and_read_write_at_once() {
    for (fstype, first, second) in [
        ("ext3", "rw", "ro"),
        ("ext4", "rw", "ro"),
        ("ext4", "ro", "rw"),
        ("xfs", "rw", "ro"),
        ("xfs", "ro", "rw"),
    ] {
        let image = Image::formatted(fstype, &[]);
        let loop_device = image.attach();
        let held = mount(&loop_device, fstype, &[first], true).expect("the volume is mounted");
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): EBUSY: \
             the device's file system is mounted read-"
        );
        let (cause, _) = expect_error(
            mount(&loop_device, fstype, &[second], false),
            &loop_device,
            &start,
        );
        let read_only = second == "ro";
        assert_eq!(cause, MountErrorCause::ReadOnlyMismatch { read_only });
        drop(held);
        wait_until_free(&loop_device.device());
    }
}

/// The device was found, and then its node is removed (by udev or `losetup -d`) or replaced by something else.
#[test]
fn a_removed_device_node_is_reported_as_a_missing_device() {
    let image = Image::ext4(&[]);
    let loop_device = image.attach();
    let node = image.directory().join("node");
    let copy_node = || {
        let _ = std::fs::remove_file(&node);
        run(Command::new("cp")
            .arg("--archive")
            .arg(loop_device.path())
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
fn a_node_that_becomes_another_device_is_refused() {
    let (image, other) = (Image::ext4(&[]), Image::ext4(&[]));
    let (loop_device, other) = (image.attach(), other.attach());
    let node = image.directory().join("node");
    let copy = |from: &TestLoopDevice| {
        let _ = std::fs::remove_file(&node);
        run(Command::new("cp")
            .arg("--archive")
            .arg(from.path())
            .arg(&node));
    };
    copy(&loop_device);
    let device = Device::open(&node).expect("a block device");
    copy(&other);
    let options = options::parse(&["rw"]).expect("the options are valid");
    let error = mount_detached(&MountRequest {
        device: &device.into(),
        fstype: "ext4",
        options: &options,
        exclusive: true,
    })
    .expect_err("the device is another one");
    assert!(matches!(error, MountError::Replaced { .. }), "{error}");
    wait_until_free(&other.device());
}

/// Changes a letter of the label, which only the superblock's checksum covers, and attaches the image.
fn attach_with_bad_checksum(image: &Image, at: u64) -> TestLoopDevice {
    let mut file = File::options();
    let file = file.write(true).open(image.path());
    let file = file.expect("the image opens");
    file.write_all_at(b"X", at).expect("the label is changed");
    image.attach()
}

#[test]
fn a_wrong_checksum_of_an_ext4_is_not_reported_as_corruption() {
    let image = Image::ext4(&["-O", "metadata_csum"]);
    let loop_device = attach_with_bad_checksum(&image, 0x400 + 0x78);
    let start = "fsconfig({device}, ext4, create): EBADMSG: ";
    let (cause, _) = expect_error(mount(&loop_device, "ext4", &[], true), &loop_device, start);
    assert_eq!(cause, MountErrorCause::BadChecksum);
}

/// xfs reports corruption, and btrfs only EINVAL.
#[test]
fn a_wrong_checksum_of_an_xfs_or_btrfs_has_a_hint() {
    let image = Image::formatted("xfs", &[]);
    let loop_device = attach_with_bad_checksum(&image, 0x6c);
    let start = "fsconfig({device}, xfs, create): EUCLEAN: ";
    let (cause, message) = expect_error(mount(&loop_device, "xfs", &[], true), &loop_device, start);
    assert_eq!(cause, MountErrorCause::Corrupt);
    assert!(message.contains("xfs_repair"), "{message}");

    let image = Image::formatted("btrfs", &[]);
    let loop_device = attach_with_bad_checksum(&image, 0x1_0000 + 0x12b);
    let start =
        "fsconfig({device}, btrfs, create): EINVAL: the kernel refuses the device's btrfs; ";
    let (_, message) = expect_error(mount(&loop_device, "btrfs", &[], true), &loop_device, start);
    assert!(message.contains("damage"), "{message}");
}

#[test]
fn the_checker_is_named_for_a_corrupt_file_system() {
    let ext4 = Image::ext4(&["-O", "^metadata_csum,^uninit_bg,^64bit", "-E", "nodiscard"]);
    // The block number of a group's bitmap is beyond the end of the file system.
    edit_ext4(&ext4.path(), "set_block_group 0 block_bitmap 99999999\n");
    let xfs = Image::formatted("xfs", &[]);
    let script = ["-c", "inode 128", "-c", "write -d core.mode 0100644"];
    run(Command::new("xfs_db")
        .arg("-x")
        .args(script)
        .arg(xfs.path()));
    for (fstype, image, checker) in [("ext4", ext4, "e2fsck"), ("xfs", xfs, "xfs_repair")] {
        let loop_device = image.attach();
        let start = format!("fsconfig({{device}}, {fstype}, create): EUCLEAN: ");
        let (cause, message) =
            expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
        assert_eq!(cause, MountErrorCause::Corrupt);
        assert!(message.contains(checker), "{message}");
    }
}

/// For example, a snapshot was restored to a smaller volume.
#[test]
fn both_sizes_are_named_if_the_device_is_too_small() {
    for (fstype, size, device_size) in [("ext4", 32, 16), ("xfs", 320, 310), ("btrfs", 128, 120)] {
        let image = Image::formatted(fstype, &[]);
        let file = File::options().write(true).open(image.path());
        let (size, device_size) = (size << 20, device_size << 20);
        file.expect("the file opens")
            .set_len(device_size)
            .expect("the file shrinks");
        let loop_device = image.attach();
        let errno = if fstype == "xfs" { "EIO" } else { "EINVAL" };
        let start = format!(
            "fsconfig({{device}}, {fstype}, create): {errno}: the device has {device_size} bytes, and \
             the file system on it needs {size}; hint: "
        );
        let (cause, _) = expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
        assert_eq!(cause, MountErrorCause::Truncated { size, device_size });
    }
}

/// The loop device's file is truncated, and the device keeps its size. (Without direct I/O, Linux 6.1 returns zeroes
/// for the missing part.)
#[test]
fn a_read_error_is_not_reported_as_a_corrupt_file_system() {
    let image = Image::formatted("xfs", &[]);
    let loop_device = image.attach_with(&["--direct-io=on"]);
    let file = File::options().write(true).open(image.path());
    file.expect("the file opens")
        .set_len(4096)
        .expect("the file shrinks");
    let start = "fsconfig({device}, xfs, create): EIO: the device can't be read";
    let (cause, _) = expect_error(mount(&loop_device, "xfs", &[], true), &loop_device, start);
    assert_eq!(cause, MountErrorCause::ReadFailed);
}

#[test]
fn a_read_only_device_can_only_be_mounted_read_only() {
    for fstype in TYPES {
        let image = Image::formatted(fstype, &[]);
        let loop_device = image.attach_with(&["--read-only"]);
        assert!(loop_device.device().is_read_only().expect("sysfs answers"));
        let start =
            format!("fsconfig({{device}}, {fstype}, create): EACCES: the device is read-only");
        let (cause, _) = expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
        assert_eq!(cause, MountErrorCause::ReadOnlyDevice);
        let mount = mount(&loop_device, fstype, &["ro"], true).expect("read-only is possible");
        let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&mount, "file", create, Mode::from(0o600));
        assert_eq!(file.expect_err("nothing is written"), Errno::ROFS);
    }
}

/// Returns an ext4 whose journal must be replayed.
fn ext4_with_dirty_journal() -> Image {
    let image = Image::ext4(&[]);
    edit_ext4(&image.path(), "feature needs_recovery\n");
    assert!(is_dirty(&image));
    image
}

fn is_dirty(image: &Image) -> bool {
    let dumped = run(Command::new("dumpe2fs").arg("-h").arg(image.path()));
    dumped.contains("needs_recovery")
}

/// Without `noload` the mount would fail with EROFS, because the kernel would replay the journal.
#[test]
fn a_dirty_journal_on_a_read_only_device_is_not_replayed() {
    let image = ext4_with_dirty_journal();
    let loop_device = image.attach_with(&["--read-only"]);
    drop(
        mount(&loop_device, "ext4", &["ro"], true)
            .expect("the volume is mounted without its journal"),
    );
    wait_until_free(&loop_device.device());
    assert!(is_dirty(&image));
}

/// A read-only mount by mount(8) replays the journal as well.
#[test]
fn a_dirty_journal_on_a_writable_device_is_replayed() {
    let image = ext4_with_dirty_journal();
    let loop_device = image.attach();
    drop(mount(&loop_device, "ext4", &["ro"], true).expect("the volume is mounted"));
    wait_until_free(&loop_device.device());
    assert!(!is_dirty(&image));
}

#[test]
fn noload_with_a_dirty_journal_needs_a_read_only_mount() {
    let image = ext4_with_dirty_journal();
    let loop_device = image.attach();
    let start = "fsconfig({device}, ext4, create): EINVAL: the kernel refuses the device's ext4 \
                 with the options noload; hint: ";
    let _ = expect_error(
        mount(&loop_device, "ext4", &["noload"], true),
        &loop_device,
        start,
    );
    let _ = mount(&loop_device, "ext4", &["ro,noload"], true).expect("a read-only mount succeeds");
}

#[test]
fn a_btrfs_on_several_devices_is_refused_before_the_mount() {
    let (first, second) = (Image::blank(128), Image::blank(128));
    let (loop_device, other) = (first.attach(), second.attach());
    run(Command::new("mkfs.btrfs")
        .args(["-q", "-f", "-d", "single", "-m", "raid1"])
        .args([loop_device.path(), other.path()]));
    for options in [&[][..], &["degraded"]] {
        let error = mount(&loop_device, "btrfs", options, true).expect_err("the mount is refused");
        let expected = format!(
            "btrfs on {:?}: the file system is on 2 devices, but a volume is a single device; hint: ",
            loop_device.path()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

/// The devices have signatures that libblkid knows too.
#[test]
fn other_contents_are_named_and_no_hint_suggests_formatting() {
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
            Some((1 << 20, b"other data")),
            "isn't empty: byte 1048576",
        ),
    ] {
        let image = Image::blank(32);
        if let Some((at, bytes)) = bytes {
            let file = File::options().write(true).open(image.path());
            let file = file.expect("the image opens");
            file.write_all_at(bytes, at).expect("the image is written");
        } else {
            run(Command::new(program).args(arguments).arg(image.path()));
        }
        let loop_device = image.attach();
        for fstype in TYPES {
            let start =
                format!("fsconfig({{device}}, {fstype}, create): EINVAL: the device holds ");
            let (_, message) =
                expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
            assert!(message.contains(name), "{name}: {message}");
            assert!(!message.contains("mkfs"), "{message}");
        }
    }
}

/// The device is writable; on a read-only device the journal isn't replayed at all. Some kernels replay fast commits
/// for a read-only mount too: Debian 13's 6.12.118 does, while Debian 12's 6.1 and 6.18.44 refuse the mount.
#[test]
fn fast_commits_to_replay_are_not_reported_as_a_device_error() {
    let image = Image::ext4(&["-O", "fast_commit"]);
    let loop_device = image.attach();
    let volume = mount(&loop_device, "ext4", &[], true).expect("the volume is mounted");
    let create = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    for name in ["a", "b", "c"] {
        let file = openat(&volume, name, create, Mode::from(0o600)).expect("a file");
        rustix::fs::fsync(&file).expect("a fast commit");
    }
    // Copied while the volume is mounted, like a snapshot of the disk.
    let snapshot = Image::cloned_from(&image);
    drop(volume);
    let loop_device = snapshot.attach();
    let start = "fsconfig({device}, ext4, create): EROFS: ";
    match mount(&loop_device, "ext4", &["ro"], true) {
        Ok(replayed) => drop(replayed),
        failed => {
            let (cause, message) = expect_error(failed, &loop_device, start);
            assert!(matches!(cause, MountErrorCause::Restricted(_)), "{message}");
            assert!(!message.contains("device can't"), "{message}");
        }
    }
    drop(mount(&loop_device, "ext4", &["ro,noload"], true).expect("the hint works"));
    drop(mount(&loop_device, "ext4", &[], true).expect("the hint works"));
}

#[test]
fn a_seed_is_not_reported_as_a_read_only_device() {
    let image = Image::formatted("btrfs", &[]);
    run(Command::new("btrfstune")
        .args(["-S", "1"])
        .arg(image.path()));
    let loop_device = image.attach();
    let start = "fsconfig({device}, btrfs, create): EACCES: ";
    let (cause, _) = expect_error(mount(&loop_device, "btrfs", &[], true), &loop_device, start);
    assert!(matches!(cause, MountErrorCause::Restricted(_)));
    drop(mount(&loop_device, "btrfs", &["ro"], true).expect("the hint works"));
}

#[test]
fn both_sizes_are_named_if_the_sectors_are_too_small() {
    for (fstype, arguments, sector) in [
        ("xfs", &["-s", "size=512"][..], 512),
        ("ext4", &["-b", "1024"], 1024),
    ] {
        let image = Image::formatted(fstype, arguments);
        let loop_device = image.attach_with(&["--sector-size", "4096"]);
        let errno = if fstype == "xfs" { "ENOSYS" } else { "EINVAL" };
        let start = format!("fsconfig({{device}}, {fstype}, create): {errno}: ");
        let (cause, message) =
            expect_error(mount(&loop_device, fstype, &[], true), &loop_device, &start);
        let logical_block = 4096;
        assert_eq!(
            cause,
            MountErrorCause::SmallSectors {
                sector,
                logical_block
            },
            "{message}"
        );
        for size in [sector, logical_block] {
            assert!(message.contains(&size.to_string()), "{message}");
        }
    }
}
