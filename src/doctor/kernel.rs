//! The kernel's version.

use crust_state::check::Finding;
use rustix::system::uname;

const WHAT: &str = "kernel";

/// `mount_setattr` (docs/design.md).
const LEAST: (u32, u32) = (5, 12);

/// `MOVE_MOUNT_SET_GROUP`.
const WANTED: (u32, u32) = (5, 15);

pub(super) fn check() -> Finding {
    let name = uname();
    judge(&name.release().to_string_lossy())
}

fn judge(release: &str) -> Finding {
    let found = format!("Linux {release}");
    let Some(version) = version(release) else {
        return Finding::warn(WHAT, found, "a version of 5.12 or newer is needed");
    };
    if version < LEAST {
        let found = format!("{found} is older than 5.12: no volume can be mounted");
        return Finding::fail(WHAT, found, "boot a newer kernel, 5.15 at best");
    }
    if version < WANTED {
        let found = format!("{found} is older than 5.15: one mount more is on the host");
        return Finding::warn(WHAT, found, "a kernel of 5.15 or newer does without");
    }
    Finding::pass(WHAT, found)
}

/// The first two numbers: `6.1.0-18-cloud-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use crust_state::check::Verdict;

    use super::*;

    #[test]
    fn versions_are_numbers() {
        for (release, expected) in [
            ("6.18.5", Verdict::Pass),
            ("6.1.0-18-cloud-amd64", Verdict::Pass),
            ("5.15.0", Verdict::Pass),
            ("10.0", Verdict::Pass),
            ("5.14.0-427.el9.x86_64", Verdict::Warn),
            ("5.12-rc1", Verdict::Warn),
            ("5.9.16", Verdict::Fail),
            ("4.19.0", Verdict::Fail),
            ("unknown", Verdict::Warn),
        ] {
            assert_eq!(judge(release).verdict, expected, "{release}");
        }
    }
}
