//! Superblocks that ask the kernel for a panic, or for another device.

use std::fs;
use std::process::Command;

use crust_blockfs::filesystem::MountError;
use crust_blockfs::options;

use crate::mount;
use crate::support::{Image, TestLoopDevice, edit_ext4, run, wait_until_free};

/// Returns the effective option `errors` of a mounted ext4, from procfs.
fn errors_option(loop_device: &TestLoopDevice) -> String {
    let name = loop_device
        .path()
        .file_name()
        .expect("a name")
        .to_string_lossy();
    let options = fs::read_to_string(format!("/proc/fs/ext4/{name}/options"));
    let options = options.expect("ext4 shows its options");
    let all = options
        .lines()
        .filter_map(|line| line.strip_prefix("errors="));
    // The last line is the superblock's default, which procfs lists too.
    all.map(str::to_owned).next().unwrap_or_default()
}

fn set_field(image: &Image, field: &str, value: &str) {
    edit_ext4(&image.path(), &format!("set_super_value {field} {value}\n"));
}

#[test]
fn an_ext4_that_asks_for_a_panic_is_mounted_with_remount_ro() {
    for (fstype, errors, stored, options, expected) in [
        ("ext4", "panic", "", &[][..], "remount-ro"),
        ("ext4", "panic", "", &["ro"], "remount-ro"),
        ("ext3", "panic", "", &[], "remount-ro"),
        ("ext2", "panic", "", &[], "remount-ro"),
        ("ext4", "continue", "errors=panic", &[], "remount-ro"),
        // If the two fields contradict each other, the kernel uses the stored options, unless it can't parse one of
        // them.
        ("ext4", "panic", "errors=continue", &[], "remount-ro"),
        ("ext4", "panic", "errors=continue,bogus", &[], "remount-ro"),
        // Other settings in the superblock are respected. So is a request for a panic in the volume's options.
        ("ext4", "continue", "", &[], "continue"),
        ("ext4", "continue", "acl,bogus", &[], "continue"),
        ("ext4", "panic", "", &["errors=continue"], "continue"),
        ("ext4", "panic", "", &["errors=panic"], "panic"),
        ("ext4", "continue", "", &["errors=panic"], "panic"),
        // With another superblock selected.
        ("ext4", "panic", "", &["sb=1"], "remount-ro"),
        ("ext4", "panic", "", &["sb=8193"], "remount-ro"),
    ] {
        let image = Image::formatted(fstype, &[]);
        run(Command::new("tune2fs")
            .args(["-e", errors])
            .arg(image.path()));
        if !stored.is_empty() {
            set_field(&image, "mount_opts", stored);
        }
        let loop_device = image.attach();
        let volume = mount(&loop_device, fstype, options, true).expect("the volume is mounted");
        let found = errors_option(&loop_device);
        assert_eq!(found, expected, "{fstype} {errors} {stored:?} {options:?}");
        drop(volume);
        wait_until_free(&loop_device.device());
    }
}

#[test]
fn a_second_mount_shares_the_superblock_with_the_added_option() {
    let image = Image::ext4(&["-e", "panic"]);
    let loop_device = image.attach();
    let first = mount(&loop_device, "ext4", &[], true).expect("the volume is mounted");
    let second = mount(&loop_device, "ext4", &[], false).expect("the superblock is shared");
    drop((first, second));
}

#[test]
fn an_external_journal_is_refused_before_it_is_opened() {
    for (script, field) in [
        (
            "feature has_journal\nset_super_value journal_dev 1792\n",
            "s_journal_dev",
        ),
        (
            "set_super_value mount_opts journal_path=/dev/loop0\n",
            "s_mount_opts",
        ),
    ] {
        let image = Image::ext4(&["-O", "^has_journal"]);
        edit_ext4(&image.path(), script);
        let loop_device = image.attach();
        let error = mount(&loop_device, "ext4", &[], true).expect_err("the mount is refused");
        assert!(matches!(error, MountError::Unfit(_)), "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
}

/// If the kernel and runcrust parsed `sb=` differently, runcrust would check a superblock that the kernel doesn't use.
#[test]
fn a_superblock_that_cannot_be_checked_is_not_mounted() {
    for number in ["0x1", "01", "+1", "0x4001"] {
        let option = format!("sb={number}");
        let error = options::parse(&[&option]).expect_err(&option).to_string();
        assert!(error.starts_with("mount option sb: "), "{error}");
    }
    let image = Image::ext4(&["-e", "panic"]);
    let loop_device = image.attach();
    // Offsets without a superblock, and beyond the end of the device.
    for list in [&["sb=4"][..], &["sb=1,sb=4"], &["sb=4294967295"]] {
        let error = mount(&loop_device, "ext4", list, true).expect_err("the mount is refused");
        assert!(matches!(error, MountError::Unfit(_)), "{error}");
        assert!(error.to_string().contains("can't be checked"), "{error}");
    }
}
