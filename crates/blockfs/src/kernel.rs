//! The running kernel: its version, for behaviour that no refused call tells of, and whether it enforces an SELinux
//! policy.

use std::path::Path;

use crate::bounded::{self, KERNELS_WORD};

/// Major and minor number of a kernel.
pub(crate) type KernelVersion = (u32, u32);

/// Returns the version of the running kernel.
pub(crate) fn version() -> KernelVersion {
    let name = rustix::system::uname();
    parse(&name.release().to_string_lossy())
}

/// Parses a release as uname(2) returns it; a part that isn't a number is 0.
fn parse(release: &str) -> KernelVersion {
    let numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut numbers = numbers.map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether the host enforces an SELinux policy (selinuxfs; getenforce(8) reads the same).
#[must_use]
pub fn enforces_selinux() -> bool {
    let word = bounded::read(Path::new("/sys/fs/selinux/enforce"), KERNELS_WORD);
    word.is_ok_and(|word| word.trim_ascii() == b"1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_begins_with_its_version() {
        for (release, version) in [
            ("6.1.0-13-amd64", (6, 1)),
            ("6.8.0-31-generic", (6, 8)),
            ("6.18.44", (6, 18)),
            ("7.0-rc1", (7, 0)),
            ("7", (7, 0)),
            ("", (0, 0)),
            ("unknown", (0, 0)),
        ] {
            assert_eq!(parse(release), version, "{release}");
        }
    }
}
