//! SELinux: a volume's files have the label that its pod's containers may use (KEP-1710, "mount with
//! -o context"). Nothing on the volume is changed for it, and so nothing is walked.

use std::path::Path;

use crate::bounded::{self, KERNELS_WORD};

use crate::{fstypes, kernel_version};

/// Whether the host enforces a policy (selinuxfs; `getenforce(8)` reads the same).
#[must_use]
pub fn enforces() -> bool {
    let word = bounded::read(Path::new("/sys/fs/selinux/enforce"), KERNELS_WORD);
    word.is_ok_and(|word| word.trim_ascii() == b"1")
}

/// Whether a file system can be given a label by way of fsconfig(2). It is the security module that
/// takes the option, whatever the file system; but some types didn't pass it on at first.
#[must_use]
pub fn takes_label(fstype: &str) -> bool {
    fstypes::takes_label(fstype, kernel_version::running())
}
