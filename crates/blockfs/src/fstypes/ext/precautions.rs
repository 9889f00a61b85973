//! Keeps the superblock of an ext2, ext3 or ext4 from reaching beyond the volume
//! (Documentation/filesystems/ext4/super.rst): from panicking the node, and from opening another device.
//! A tenant that can write to the device can write these fields.
//!
//! No other file system can ask for a panic on disk (Linux 6.18): `errors=panic` of f2fs, nilfs2, gfs2,
//! ocfs2, jfs, fat and squashfs, `onerror=panic` of ufs and `fatal_errors=panic` of btrfs are mount options
//! alone, and what of xfs panics is a sysctl.
//!
//! Others can name further devices on disk: f2fs, erofs, jfs and reiserfs, which aren't looked for
//! (docs/limitations.md), and btrfs, of which only those on one device are mounted. A log or a realtime
//! section of an xfs on another device is named by a mount option alone, which is refused.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use crate::device::{DeviceFacts, read_at};
use crate::errno::Name;
use crate::fstypes::descriptor::{RequiredOptions, UnfitDevice};

/// Length of the superblock in bytes.
const LENGTH: usize = 1024;

/// Offset of the superblock in bytes, unless `sb=` selects a copy.
const DEFAULT: u64 = 1024;

/// Offset and length of the superblock at the default place.
pub(super) const PLACE: (u64, NonZeroU64) = (DEFAULT, NonZeroU64::new(LENGTH as u64).unwrap());

/// The mount options: names and values.
type Options<'a> = &'a [(&'a str, Option<&'a str>)];

/// Returns what a mount does because of the superblock, so that it can't make the kernel panic. Fails if the
/// superblock names another device, or can't be read and so can't be checked.
///
/// The mount is read-only if the superblock says that no mount can write to the file system
/// (`tune2fs -O read-only`).
///
/// `errors=remount-ro` is added only if a kernel could panic otherwise. Any other setting in the superblock
/// (mke2fs's default is `continue`) is left to the volume: it is mounted as mount(8) would. The option isn't
/// among those that are recorded and compared, so that a second pod still matches, and so does a volume
/// mounted by an earlier version. It has no effect on a file system that is mounted already.
pub(super) fn of_device(
    device: &DeviceFacts,
    options: Options<'_>,
) -> Result<RequiredOptions, UnfitDevice> {
    let superblocks = read(device, options)?;
    if let Some(field) = superblocks.iter().find_map(Superblock::foreign_journal) {
        return Err(UnfitDevice {
            fstype: "ext4",
            device: device.path().to_owned(),
            what: format!(
                "its superblock has its journal on another device ({field}), and a volume is one"
            ),
            hint: "give it a journal of its own where no pod uses it: tune2fs -O ^has_journal, then tune2fs -j; \
                   tune2fs -E mount_opts= clears options",
        });
    }
    let has_errors = options.iter().any(|(key, _)| *key == "errors");
    let panics = superblocks.iter().any(Superblock::may_panic) && !has_errors;
    if panics {
        let device = device.path().display();
        tracing::warn!(%device, "its superblock asks for a kernel panic on an error: mounted with errors=remount-ro");
    }
    Ok(RequiredOptions {
        read_only: superblocks.iter().any(Superblock::is_read_only),
        option: panics.then_some(("errors", "remount-ro")),
    })
}

/// Returns the superblocks among which the kernel chooses the one to use. Fails if one can't be read, or
/// if `sb=` names a place that holds none.
///
/// Nothing is returned for the default place if it holds no superblock: the kernel looks for the same
/// magic number there and refuses the mount, unless `sb=` names another copy.
fn read(device: &DeviceFacts, options: Options<'_>) -> Result<Vec<Superblock>, UnfitDevice> {
    let unchecked = |offset, why: String| UnfitDevice {
        fstype: "ext4",
        device: device.path().to_owned(),
        what: format!("the superblock at byte {offset} can't be checked before the mount: {why}"),
        hint: "does the volume's option sb= (in units of 1 KiB) name a copy of the superblock (dumpe2fs)? the kernel's \
               log has a device's I/O errors",
    };
    let opened = device.opened();
    let opened = opened.map_err(|errno| unchecked(DEFAULT, format!("open: {}", Name(errno))))?;
    let mut superblocks = Vec::new();
    for offset in offsets(options) {
        let mut superblock = Superblock([0; LENGTH]);
        let is_whole = read_at(opened, &mut superblock.0, offset)
            .map_err(|errno| unchecked(offset, format!("read: {}", Name(errno))))?;
        if is_whole && superblock.is_ext() {
            superblocks.push(superblock);
        } else if offset != DEFAULT {
            return Err(unchecked(offset, "no superblock is there".to_owned()));
        }
    }
    Ok(superblocks)
}

/// Returns the offsets of the superblocks that the kernel may read, in bytes: the default, and each that
/// an `sb=` selects, in units of 1 KiB (ext4(5)).
///
/// Which of them it reads depends on its version and driver: the last `sb=` counts since ext4 has the
/// new mount API (Linux 5.17), before that and in ext2's own driver only one that is the first option.
fn offsets(options: Options<'_>) -> BTreeSet<u64> {
    let selected = options.iter().filter(|(key, _)| *key == "sb");
    let selected = selected.filter_map(|(_, value)| value.as_ref()?.parse::<u32>().ok());
    let selected = selected.map(|number| u64::from(number) * 1024);
    selected.chain([DEFAULT]).collect()
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

    /// Returns true if some kernel would panic on an error: `s_errors` is `EXT4_ERRORS_PANIC`, or a word
    /// of the stored mount options is `errors=panic`.
    ///
    /// Whether the kernel uses the stored options depends on all of their words: since Linux 5.17 one
    /// that it can't parse makes it ignore the whole field, before that each word counts for itself
    /// (`ext4_parse_param`, fs/ext4/super.c). So no word takes back what the other field or another
    /// word asks for. The most that this costs is a remount where the kernel would have gone on.
    fn may_panic(&self) -> bool {
        const PANIC: u32 = 3;
        let errors = self.number(0x3c) & 0xffff;
        let mut options = self.options().split(|byte| *byte == b',');
        errors == PANIC || options.any(|option| option == b"errors=panic")
    }

    /// Returns the name of the field that puts the journal on another device.
    fn foreign_journal(&self) -> Option<&'static str> {
        const HAS_JOURNAL: u32 = 0x4;
        if self.number(0x5c) & HAS_JOURNAL != 0 && self.number(0xe4) != 0 {
            return Some("s_journal_dev");
        }
        let mut options = self.options().split(|byte| *byte == b',');
        options
            .any(|option| option.starts_with(b"journal_dev") || option.starts_with(b"journal_path"))
            .then_some("s_mount_opts")
    }

    /// Returns `s_mount_opts`, which `tune2fs -E mount_opts=` sets.
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
    fn a_superblock_may_panic_if_either_of_its_two_fields_says_so() {
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
            // Kernels that use the field differ from those that ignore it.
            (3, "errors=continue", true),
            (3, "errors=continue,bogus", true),
            (3, "errors=remount-ro,journal_dev", true),
            (3, "ERRORS=continue", true),
            // Kernels that read word by word differ from those that ignore a field with a bad word.
            (1, "errors=panic,errors=remount-ro", true),
            (1, "errors=panic,errors=foo", true),
        ] {
            let found = superblock(errors, 0, options).may_panic();
            assert_eq!(found, may_panic, "{errors} {options:?}");
        }
        // All of the field, without a NUL.
        let long = format!("{},errors=panic", "x".repeat(51));
        assert!(long.len() == 64 && superblock(1, 0, &long).may_panic());
    }

    #[test]
    fn a_journal_on_another_device_is_seen_in_both_fields() {
        for (journal, options, says) in [
            (0, "journal_checksum", None),
            (1, "", Some("s_journal_dev")),
            (0, "acl,journal_dev=0x700", Some("s_mount_opts")),
            (0, "journal_path=/dev/sda", Some("s_mount_opts")),
        ] {
            assert_eq!(superblock(1, journal, options).foreign_journal(), says);
        }
    }

    #[test]
    fn each_superblock_is_read_that_a_kernel_could_read() {
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
