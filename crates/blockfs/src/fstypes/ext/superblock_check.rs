//! Checks the superblock of an ext2, ext3 or ext4 (Documentation/filesystems/ext4/super.rst), so that it can't affect
//! more than its volume: make the kernel panic, or make it open another device. A tenant that can write to the device
//! can write these fields.
//!
//! No other file system can ask for a panic in its superblock (Linux 6.18). `errors=panic` of f2fs, nilfs2, gfs2,
//! ocfs2, jfs, fat and squashfs, `onerror=panic` of ufs and `fatal_errors=panic` of btrfs are mount options only, and
//! the panics of xfs are controlled by a sysctl.
//!
//! Some other file systems can name further devices in their superblocks. f2fs, erofs, jfs and reiserfs aren't checked
//! for that (docs/limitations.md). A btrfs is mounted only if it is on one device. The log and the realtime section of
//! an xfs are put on another device by a mount option only, which is refused.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use crate::device::{DeviceFacts, read_at};
use crate::errno::Name;
use crate::fstypes::descriptor::{RequiredOptions, UnfitDevice};

/// Length of the superblock in bytes.
const LENGTH: usize = 1024;

/// Offset of the primary superblock in bytes. It is used unless `sb=` selects a copy.
const PRIMARY: u64 = 1024;

/// Offset and length of the primary superblock in bytes.
pub(super) const READ_AHEAD: (u64, NonZeroU64) = (PRIMARY, NonZeroU64::new(LENGTH as u64).unwrap());

/// Mount options: names and values.
type Options<'a> = &'a [(&'a str, Option<&'a str>)];

/// Returns the options that the superblock requires for the mount. Fails if the superblock names another device, or
/// can't be read and so can't be checked.
///
/// The mount must be read-only if the superblock doesn't allow read-write mounts (`tune2fs -O read-only`).
///
/// `errors=remount-ro` is required only if a kernel could panic otherwise. Any other setting in the superblock
/// (mke2fs's default is `continue`) is respected, as with mount(8). The option isn't recorded and compared with the
/// options of other mounts. So a second pod can use the volume, also if an earlier version of runcrust mounted it. The
/// option has no effect on a file system that is already mounted.
pub(super) fn check(
    device: &DeviceFacts,
    options: Options<'_>,
) -> Result<RequiredOptions, UnfitDevice> {
    let superblocks = read(device, options)?;
    if let Some(field) = superblocks.iter().find_map(Superblock::external_journal) {
        return Err(UnfitDevice {
            fstype: "ext4",
            device: device.path().to_owned(),
            reason: format!(
                "its superblock has its journal on another device ({field}), but a volume is a single device"
            ),
            hint: "when no pod uses it, give it an internal journal: tune2fs -O ^has_journal, then tune2fs -j; \
                   tune2fs -E mount_opts= clears the options in the superblock",
        });
    }
    let has_errors = options.iter().any(|(key, _)| *key == "errors");
    let panics = superblocks.iter().any(Superblock::may_panic) && !has_errors;
    if panics {
        let device = device.path().display();
        tracing::warn!(%device, "the superblock asks for a kernel panic on an error: mounted with errors=remount-ro");
    }
    Ok(RequiredOptions {
        read_only: superblocks.iter().any(Superblock::is_read_only),
        option: panics.then_some(("errors", "remount-ro")),
    })
}

/// Returns the superblocks from which the kernel chooses the one to use. Fails if one of them can't be read, or if
/// `sb=` selects an offset without a superblock.
///
/// A missing primary superblock isn't an error here. The kernel looks for the same magic number, and refuses the mount
/// itself unless `sb=` selects a copy.
fn read(device: &DeviceFacts, options: Options<'_>) -> Result<Vec<Superblock>, UnfitDevice> {
    let unchecked = |offset, reason: String| UnfitDevice {
        fstype: "ext4",
        device: device.path().to_owned(),
        reason: format!(
            "the superblock at byte {offset} can't be checked before the mount: {reason}"
        ),
        hint: "check that the volume's option sb= (in units of 1 KiB) selects a copy of the superblock (dumpe2fs), and \
               look for I/O errors of the device in the kernel's log (dmesg)",
    };
    let opened = device.opened();
    let opened = opened.map_err(|errno| unchecked(PRIMARY, format!("open: {}", Name(errno))))?;
    let mut superblocks = Vec::new();
    for offset in offsets(options) {
        let mut superblock = Superblock([0; LENGTH]);
        let is_whole = read_at(opened, &mut superblock.0, offset)
            .map_err(|errno| unchecked(offset, format!("read: {}", Name(errno))))?;
        if is_whole && superblock.is_ext() {
            superblocks.push(superblock);
        } else if offset != PRIMARY {
            return Err(unchecked(offset, "there is no superblock".to_owned()));
        }
    }
    Ok(superblocks)
}

/// Returns the offsets in bytes of the superblocks that the kernel may read: the offset of the primary superblock, and
/// the offset that each `sb=` selects in units of 1 KiB (ext4(5)).
///
/// The kernel's choice depends on its version and driver. Since ext4 has the new mount API (Linux 5.17), the last `sb=`
/// counts. Before, and in ext2's own driver, `sb=` counts only as the first option.
fn offsets(options: Options<'_>) -> BTreeSet<u64> {
    let selected = options.iter().filter(|(key, _)| *key == "sb");
    let selected = selected.filter_map(|(_, value)| value.as_ref()?.parse::<u32>().ok());
    let selected = selected.map(|number| u64::from(number) * 1024);
    selected.chain([PRIMARY]).collect()
}

struct Superblock([u8; LENGTH]);

impl Superblock {
    fn is_ext(&self) -> bool {
        self.0[0x38..0x3a] == [0x53, 0xef]
    }

    /// Returns true if no mount can write to the file system (`RO_COMPAT_READONLY`).
    fn is_read_only(&self) -> bool {
        const READ_ONLY: u32 = 0x1000;
        self.number(0x64) & READ_ONLY != 0
    }

    /// Returns true if some kernel would panic on an error: if `s_errors` is `EXT4_ERRORS_PANIC`, or the stored mount
    /// options include `errors=panic`.
    ///
    /// Kernels differ in the use of the stored options. Since Linux 5.17 an option that can't be parsed makes the
    /// kernel ignore all of them; before, each option counts by itself (`ext4_parse_param`, fs/ext4/super.c). So the
    /// other field and the other options can't revoke a request for a panic here. At worst, the file system is
    /// remounted read-only although the kernel would have continued.
    fn may_panic(&self) -> bool {
        const PANIC: u32 = 3;
        let errors = self.number(0x3c) & 0xffff;
        let mut options = self.options().split(|byte| *byte == b',');
        errors == PANIC || options.any(|option| option == b"errors=panic")
    }

    /// Returns the name of the field that puts the journal on another device; `None` if no field does.
    fn external_journal(&self) -> Option<&'static str> {
        const HAS_JOURNAL: u32 = 0x4;
        if self.number(0x5c) & HAS_JOURNAL != 0 && self.number(0xe4) != 0 {
            return Some("s_journal_dev");
        }
        let mut options = self.options().split(|byte| *byte == b',');
        options
            .any(|option| option.starts_with(b"journal_dev") || option.starts_with(b"journal_path"))
            .then_some("s_mount_opts")
    }

    /// Returns the stored mount options, `s_mount_opts`. `tune2fs -E mount_opts=` sets them.
    fn options(&self) -> &[u8] {
        let field = &self.0[0x200..0x240];
        field.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    fn number(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.0[at..at + 4]);
        u32::from_le_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(errors: u8, journal: u8, options: &str) -> Superblock {
        let mut bytes = [0; LENGTH];
        bytes[0x3c] = errors;
        bytes[0x5c] = 0x3c;
        bytes[0xe4] = journal;
        bytes[0x200..0x200 + options.len()].copy_from_slice(options.as_bytes());
        Superblock(bytes)
    }

    #[test]
    fn a_superblock_may_panic_if_either_field_asks_for_it() {
        for (errors, options, may_panic) in [
            (0, "", false),
            (1, "", false),
            (2, "", false),
            (3, "", true),
            (1, "errors=panic", true),
            (1, "acl,errors=panic,noatime", true),
            (1, "errors=remount-ro,errors=panic", true),
            (1, "noerrors=panic", false),
            (1, "errors=continue,bogus", false),
            // Some kernels use the stored options, and others ignore them.
            (3, "errors=continue", true),
            (3, "errors=continue,bogus", true),
            (3, "errors=remount-ro,journal_dev", true),
            (3, "ERRORS=continue", true),
            // Some kernels use each option by itself, and others ignore all if one is bad.
            (1, "errors=panic,errors=remount-ro", true),
            (1, "errors=panic,errors=foo", true),
        ] {
            let found = superblock(errors, 0, options).may_panic();
            assert_eq!(found, may_panic, "{errors} {options:?}");
        }
        // Options that fill the field, without a NUL at the end.
        let long = format!("{},errors=panic", "x".repeat(51));
        assert!(long.len() == 64 && superblock(1, 0, &long).may_panic());
    }

    #[test]
    fn a_journal_on_another_device_is_found_in_both_fields() {
        for (journal, options, field) in [
            (0, "journal_checksum", None),
            (1, "", Some("s_journal_dev")),
            (0, "acl,journal_dev=0x700", Some("s_mount_opts")),
            (0, "journal_path=/dev/sda", Some("s_mount_opts")),
        ] {
            assert_eq!(superblock(1, journal, options).external_journal(), field);
        }
    }

    #[test]
    fn all_superblocks_that_a_kernel_may_read_are_read() {
        for (values, expected) in [
            (&[][..], &[1024][..]),
            (&["1"], &[1024]),
            (&["0"], &[0, 1024]),
            (&["8193"], &[1024, 8193 * 1024]),
            (&["3", "2"], &[1024, 2048, 3072]),
            (&["4294967295"], &[1024, 4_294_967_295 * 1024]),
        ] {
            let selected = values.iter().map(|value| ("sb", Some(*value)));
            let options: Vec<_> = [("acl", None)].into_iter().chain(selected).collect();
            let found = offsets(&options);
            assert!(found.iter().eq(expected), "{values:?}: {found:?}");
        }
    }
}
