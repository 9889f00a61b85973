//! Properties of the running kernel: its version, for behaviour that can't be detected by trying a call, and whether
//! it enforces an SELinux policy.

use std::path::Path;

use crate::bounded::{self, MAX_KERNEL_VALUE};

/// The major and minor version of a kernel.
pub(crate) type KernelVersion = (u32, u32);

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

/// Returns whether the host enforces an SELinux policy. Reads selinuxfs, as getenforce(8) does.
#[must_use]
pub fn enforces_selinux() -> bool {
    let value = bounded::read(Path::new("/sys/fs/selinux/enforce"), MAX_KERNEL_VALUE);
    value.is_ok_and(|value| value.trim_ascii() == b"1")
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
