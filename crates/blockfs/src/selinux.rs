//! SELinux: a volume's files have the label that its pod's containers may use (KEP-1710, "mount with
//! -o context"). Nothing on the volume is changed for it, and so nothing is walked.

use std::path::Path;

use crate::bounded::{self, KERNELS_WORD};

use crate::linux::{self, Version};

/// Whether the host enforces a policy (selinuxfs; `getenforce(8)` reads the same).
#[must_use]
pub fn enforces() -> bool {
    let word = bounded::read(Path::new("/sys/fs/selinux/enforce"), KERNELS_WORD);
    word.is_ok_and(|word| word.trim_ascii() == b"1")
}

/// Whether a file system can be given a label by way of fsconfig(2). It is the security module that
/// takes the option, whatever the file system; but btrfs before Linux 6.8 gives its new superblock the
/// module's defaults itself, which the mount's own option then contradicts.
#[must_use]
pub fn takes_label(fstype: &str) -> bool {
    takes_label_on(fstype, linux::version())
}

fn takes_label_on(fstype: &str, version: Version) -> bool {
    fstype != "btrfs" || version >= (6, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btrfs_takes_a_label_from_linux_6_8_on() {
        for (version, btrfs) in [
            ((6, 7), false),
            ((6, 8), true),
            ((7, 0), true),
            ((5, 15), false),
            ((0, 0), false),
        ] {
            assert_eq!(takes_label_on("btrfs", version), btrfs, "{version:?}");
            for fstype in ["ext4", "ext3", "xfs", "vfat"] {
                assert!(takes_label_on(fstype, version), "{fstype} {version:?}");
            }
        }
    }
}
