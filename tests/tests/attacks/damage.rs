//! Making file systems what mkfs would never make of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use runcrust_tests::{LoopDevice, Run};

/// What somebody does to a file system of a type; the name is a volume's.
pub(crate) struct Damage {
    pub(crate) name: &'static str,
    pub(crate) fstype: &'static str,
    pub(crate) to: fn(&LoopDevice),
}

macro_rules! damages {
    ($list:ident: $($name:literal $fstype:literal $device:ident => $do:expr;)+) => {
        pub(crate) const $list: &[Damage] = &[$(Damage {
            name: $name,
            fstype: $fstype,
            to: |$device| { $do; },
        }),+];
    };
}

// Those of debugfs and xfs_db have the right checksum: whoever makes up a device can do that.
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

/// Runs debugfs(8)'s commands, in their order; what they print.
pub(crate) fn debugfs(device: &LoopDevice, commands: &[&str]) -> String {
    let script = device.file().with_extension("debugfs");
    fs::write(&script, commands.join("\n") + "\n").expect("a script");
    let mut debugfs = Command::new("debugfs");
    debugfs.arg("-w").arg("-f").arg(script).arg(device.file());
    let output = Run::of(&mut debugfs).success().stdout;
    let said = output.lines().filter(|line| !line.starts_with("debugfs"));
    said.collect::<Vec<_>>().join("\n")
}

fn xfs_db(device: &LoopDevice, commands: &[&str]) -> String {
    let mut xfs_db = Command::new("xfs_db");
    xfs_db.arg("-x");
    for command in commands {
        xfs_db.args(["-c", command]);
    }
    Run::of(xfs_db.arg(device.file())).success().stdout
}

/// Writes to the file behind the device, which nobody has open.
pub(crate) fn write(device: &LoopDevice, at: u64, bytes: &[u8]) {
    let image = File::options().write(true).open(device.file());
    let written = image.and_then(|image| image.write_all_at(bytes, at));
    written.unwrap_or_else(|error| panic!("{}: {error}", device.file().display()));
}

/// An ext4's, in bytes.
pub(crate) fn block_size(device: &LoopDevice) -> u64 {
    value(device, "Block size:")
}

/// A number that stands in an ext4's superblock.
pub(crate) fn value(device: &LoopDevice, key: &str) -> u64 {
    let shown = debugfs(device, &["show_super_stats -h"]);
    let line = shown.lines().find_map(|line| line.strip_prefix(key));
    number(line.unwrap_or_else(|| panic!("no {key} in {shown}")))
}

/// The last word, which is a number.
fn number(text: &str) -> u64 {
    let word = text.split_whitespace().next_back();
    word.and_then(|word| word.parse().ok())
        .unwrap_or_else(|| panic!("no number: {text:?}"))
}

/// Whatever mkfs has written behind a btrfs' first superblock, but for the second one.
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
