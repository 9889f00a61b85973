//! Damaged file systems, made from what mkfs writes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use runcrust_tests::{LoopDevice, Run};

/// A way of damaging a file system.
pub(crate) struct Damage {
    /// The name of the damage. The volume has the same name.
    pub(crate) name: &'static str,
    pub(crate) fstype: &'static str,
    pub(crate) apply: fn(&LoopDevice),
}

macro_rules! damages {
    ($list:ident: $($name:literal $fstype:literal $device:ident => $do:expr;)+) => {
        pub(crate) const $list: &[Damage] = &[$(Damage {
            name: $name,
            fstype: $fstype,
            apply: |$device| { $do; },
        }),+];
    };
}

// debugfs and xfs_db write correct checksums, as an attacker who forges an image would.
damages! { SUPERBLOCKS:
    "ext4-too-many-blocks" "ext4" d => debugfs(d, &["set_super_value blocks_count 0xfffffff"]);
    "ext4-no-inodes" "ext4" d => debugfs(d, &["set_super_value inodes_per_group 0"]);
    "ext4-large-blocks" "ext4" d => debugfs(d, &["set_super_value log_block_size 20"]);
    "ext4-odd-descriptors" "ext4" d => debugfs(d, &["set_super_value desc_size 3"]);
    "xfs-short-log" "xfs" d => xfs_db(d, &["sb 0", "write logblocks 7"]);
    "xfs-small-blocks" "xfs" d => xfs_db(d, &["sb 0", "write -d blocksize 3"]);
    "btrfs-checksum" "btrfs" d => write(d, 0x1_0048, &[0xff; 8]);
}

damages! { JOURNALS:
    "ext4-is-the-root" "ext4" d => debugfs(d, &["set_super_value journal_inum 2"]);
    "ext4-is-no-file" "ext4" d => debugfs(d, &["set_inode_field <8> mode 0"]);
    "ext4-empty" "ext4" d => debugfs(d, &["set_inode_field <8> size 0"]);
    "ext4-garbage" "ext4" d => {
        let block = number(&debugfs(d, &["bmap <8> 0"]));
        write(d, block * block_size(d), &[0xff; 4096]);
    };
    "xfs-garbage" "xfs" d => {
        let start = number(&xfs_db(d, &["sb 0", "print logstart"]));
        let place = xfs_db(d, &[&format!("convert fsblock {start} byte")]);
        let place = place.split(['(', ')']).nth(1).expect("0x… (…)");
        write(d, number(place), &[0xff; 1 << 20]);
    };
}

damages! { ROOTS:
    "ext4-file" "ext4" d => debugfs(d, &["set_inode_field <2> mode 0100644"]);
    "ext4-link" "ext4" d => debugfs(d, &["set_inode_field <2> mode 0120777"]);
    "ext4-device" "ext4" d => debugfs(d, &["set_inode_field <2> mode 0060666"]);
    "ext4-unlinked" "ext4" d => debugfs(d, &["set_inode_field <2> links_count 0"]);
    "ext4-empty" "ext4" d => debugfs(d, &["set_inode_field <2> size 0"]);
    "xfs-link" "xfs" d => xfs_db(d, &["inode 128", "write -d core.mode 0120777"]);
    "xfs-no-inode" "xfs" d => xfs_db(d, &["inode 128", "write -d core.magic 0"]);
    "btrfs-no-tree" "btrfs" d => overwrite_trees(d);
}

/// Runs commands of debugfs(8) in order, and returns their output.
pub(crate) fn debugfs(device: &LoopDevice, commands: &[&str]) -> String {
    let script = device.file().with_extension("debugfs");
    fs::write(&script, commands.join("\n") + "\n").expect("a script");
    let mut debugfs = Command::new("debugfs");
    debugfs.arg("-w").arg("-f").arg(script).arg(device.file());
    let output = Run::capture(&mut debugfs).success().stdout;
    let output = output.lines().filter(|line| !line.starts_with("debugfs"));
    output.collect::<Vec<_>>().join("\n")
}

fn xfs_db(device: &LoopDevice, commands: &[&str]) -> String {
    let mut xfs_db = Command::new("xfs_db");
    xfs_db.arg("-x");
    for command in commands {
        xfs_db.args(["-c", command]);
    }
    Run::capture(xfs_db.arg(device.file())).success().stdout
}

/// Writes to the device's backing file. The device must not be in use.
pub(crate) fn write(device: &LoopDevice, at: u64, bytes: &[u8]) {
    let image = File::options().write(true).open(device.file());
    let written = image.and_then(|image| image.write_all_at(bytes, at));
    written.unwrap_or_else(|error| panic!("{}: {error}", device.file().display()));
}

/// Returns the block size of an ext4 in bytes.
pub(crate) fn block_size(device: &LoopDevice) -> u64 {
    value(device, "Block size:")
}

/// Returns a number from an ext4's superblock.
pub(crate) fn value(device: &LoopDevice, key: &str) -> u64 {
    let stats = debugfs(device, &["show_super_stats -h"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(key));
    number(line.unwrap_or_else(|| panic!("no {key} in {stats}")))
}

/// Returns the last word, which has to be a number.
fn number(text: &str) -> u64 {
    let word = text.split_whitespace().next_back();
    word.and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("no number: {text:?}"))
}

/// Overwrites everything that mkfs has written after the first superblock of a btrfs, except for the second superblock.
fn overwrite_trees(device: &LoopDevice) {
    const BLOCK: usize = 4096;
    const FIRST: usize = 0x1_0000;
    const SECOND: usize = 0x400_0000;
    let bytes = fs::read(device.file()).expect("the image");
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        let at = index * BLOCK;
        if at > FIRST && at != SECOND && block.iter().any(|byte| *byte != 0) {
            write(device, at as u64, &[0xff; BLOCK]);
        }
    }
}
