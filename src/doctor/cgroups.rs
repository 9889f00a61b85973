//! The control groups that the delegate finds.

use std::path::Path;

use crust_mount::mountinfo::{self, Mount};
use crust_state::check::Finding;

use crate::invocation::Flavour;

const WHAT: &str = "cgroups";

const PLACE: &str = "/sys/fs/cgroup";

pub(super) fn check(flavour: Flavour) -> Finding {
    match mountinfo::read_own() {
        Ok(mounts) => judge(Layout::of(&mounts), flavour),
        Err(error) => Finding::failed(WHAT, &error),
    }
}

/// What is mounted at or below `/sys/fs/cgroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    None,
    V1,
    Hybrid,
    V2,
}

impl Layout {
    fn of(mounts: &[Mount]) -> Self {
        let below = || mounts.iter().filter(|it| it.mount_point.starts_with(PLACE));
        let has_v1 = below().any(|mount| mount.fstype == "cgroup");
        let v2 = below().any(|mount| mount.fstype == "cgroup2");
        match (has_v1, v2) {
            (false, false) => Self::None,
            (true, false) => Self::V1,
            (true, true) => Self::Hybrid,
            (false, true) => Self::V2,
        }
    }
}

fn judge(layout: Layout, flavour: Flavour) -> Finding {
    match (layout, flavour) {
        (Layout::V2, _) => Finding::pass(WHAT, "v2"),
        (Layout::V1, _) => Finding::pass(WHAT, "v1"),
        (Layout::Hybrid, Flavour::Runc) => Finding::pass(WHAT, "v1, with v2 beside it (hybrid)"),
        (Layout::Hybrid, Flavour::Crun) => Finding::fail(
            WHAT,
            "v1, with v2 beside it (hybrid), which crun refuses: no container starts",
            "boot with systemd.unified_cgroup_hierarchy=1, or set `delegate` to runc",
        ),
        (Layout::None, _) => Finding::fail(
            WHAT,
            format!("none are mounted below {}", Path::new(PLACE).display()),
            "mount -t cgroup2 none /sys/fs/cgroup, as systemd does",
        ),
    }
}

#[cfg(test)]
mod tests {
    use crust_state::check::Verdict;

    use super::*;

    fn layout(mounts: &[(&str, &str)]) -> Layout {
        let lines: Vec<String> = mounts
            .iter()
            .map(|(place, fstype)| format!("1 2 0:3 / {place} rw - {fstype} none rw\n"))
            .collect();
        Layout::of(&mountinfo::parse(lines.concat().as_bytes()).unwrap())
    }

    #[test]
    fn layouts_are_told_apart() {
        for (mounts, expected) in [
            (
                &[("/", "ext4"), ("/sys/fs/cgroup", "tmpfs")][..],
                Layout::None,
            ),
            (&[("/sys/fs/cgroup", "cgroup2")], Layout::V2),
            (&[("/sys/fs/cgroup/cpu", "cgroup")], Layout::V1),
            (
                &[
                    ("/sys/fs/cgroup/cpu", "cgroup"),
                    ("/sys/fs/cgroup/unified", "cgroup2"),
                ],
                Layout::Hybrid,
            ),
            (&[("/srv/cgroup", "cgroup2")], Layout::None),
        ] {
            assert_eq!(layout(mounts), expected);
        }
    }

    #[test]
    fn crun_refuses_the_hybrid_mount() {
        for (layout, flavour, expected) in [
            (Layout::Hybrid, Flavour::Crun, Verdict::Fail),
            (Layout::Hybrid, Flavour::Runc, Verdict::Pass),
            (Layout::V1, Flavour::Crun, Verdict::Pass),
            (Layout::V2, Flavour::Crun, Verdict::Pass),
            (Layout::None, Flavour::Runc, Verdict::Fail),
        ] {
            assert_eq!(judge(layout, flavour).verdict, expected, "{layout:?}");
        }
    }
}
