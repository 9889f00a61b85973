//! What a file system's own bytes ask of the kernel, and don't get.

use std::fs;
use std::process::Command;

use crust_blockfs::filesystem::MountError;
use crust_blockfs::options;

use crate::mount;
use crate::support::{Image, Loop, run, wait_until_free};

/// What the kernel does on an error, as it shows that itself.
fn on_error(on: &Loop) -> String {
    let name = on.path().file_name().expect("a name").to_string_lossy();
    let options = fs::read_to_string(format!("/proc/fs/ext4/{name}/options"));
    let options = options.expect("ext4 shows its options");
    let all = options.lines().filter_map(|it| it.strip_prefix("errors="));
    // The last line is the superblock's own default, which is shown as well.
    all.map(str::to_owned).next().unwrap_or_default()
}

/// Sets a field of an ext4's superblock, whatever its value means.
fn set_field(image: &Image, field: &str, value: &str) {
    let request = format!("set_super_value {field} {value}");
    run(Command::new("debugfs")
        .args(["-w", "-R", &request])
        .arg(image.path()));
}

#[test]
fn an_ext4_that_asks_for_a_panic_becomes_read_only() {
    for (fstype, errors, stored, options, expected) in [
        ("ext4", "panic", "", &[][..], "remount-ro"),
        ("ext4", "panic", "", &["ro"], "remount-ro"),
        ("ext3", "panic", "", &[], "remount-ro"),
        ("ext2", "panic", "", &[], "remount-ro"),
        ("ext4", "continue", "errors=panic", &[], "remount-ro"),
        // Of two fields that contradict each other the kernel uses the stored options, unless it can't
        // parse one of them.
        ("ext4", "panic", "errors=continue", &[], "remount-ro"),
        ("ext4", "panic", "errors=continue,bogus", &[], "remount-ro"),
        // Any other setting of the superblock stays, and a volume whose options ask for a panic gets one.
        ("ext4", "continue", "", &[], "continue"),
        ("ext4", "continue", "acl,bogus", &[], "continue"),
        ("ext4", "panic", "", &["errors=continue"], "continue"),
        ("ext4", "panic", "", &["errors=panic"], "panic"),
        ("ext4", "continue", "", &["errors=panic"], "panic"),
        // Whichever superblock is selected.
        ("ext4", "panic", "", &["sb=1"], "remount-ro"),
        ("ext4", "panic", "", &["sb=8193"], "remount-ro"),
    ] {
        let image = Image::made(fstype, &[]);
        run(Command::new("tune2fs")
            .args(["-e", errors])
            .arg(image.path()));
        if !stored.is_empty() {
            set_field(&image, "mount_opts", stored);
        }
        let on = image.attach();
        let volume = mount(&on, fstype, options, true).expect("it is mounted");
        let found = on_error(&on);
        assert_eq!(found, expected, "{fstype} {errors} {stored:?} {options:?}");
        drop(volume);
        wait_until_free(&on.device());
    }
}

#[test]
fn a_second_mount_of_what_was_disarmed_shares_its_superblock() {
    let image = Image::ext4(&["-e", "panic"]);
    let on = image.attach();
    let first = mount(&on, "ext4", &[], true).expect("it is mounted");
    let second = mount(&on, "ext4", &[], false).expect("it is shared");
    drop((first, second));
}

#[test]
fn an_external_journal_is_refused_before_it_is_opened() {
    for (script, says) in [
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
        let commands = image.directory().join("commands");
        fs::write(&commands, script).expect("a script");
        run(Command::new("debugfs")
            .arg("-wf")
            .arg(commands)
            .arg(image.path()));
        let on = image.attach();
        let error = mount(&on, "ext4", &[], true).expect_err("it is refused");
        assert!(matches!(error, MountError::Unfit(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// An `sb=` that the kernel and runcrust read differently would switch the checks off.
#[test]
fn a_superblock_that_cannot_be_checked_is_not_mounted() {
    for number in ["0x1", "01", "+1", "0x4001"] {
        let option = format!("sb={number}");
        let error = options::parse(&[&option]).expect_err(&option).to_string();
        assert!(error.starts_with("mount option sb: "), "{error}");
    }
    let image = Image::ext4(&["-e", "panic"]);
    let on = image.attach();
    // Where there is none, and behind the end.
    for list in [&["sb=4"][..], &["sb=1,sb=4"], &["sb=4294967295"]] {
        let error = mount(&on, "ext4", list, true).expect_err("it is refused");
        assert!(matches!(error, MountError::Unfit(_)), "{error}");
        assert!(error.to_string().contains("can't be checked"), "{error}");
    }
}
