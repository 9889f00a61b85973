//! The control groups that the delegate finds.

use std::path::Path;

use crust_blockfs::mountinfo::{self, Mount};
use crust_state::DelegateKind;
use crust_state::check::Finding;

const WHAT: &str = "cgroups";

const PLACE: &str = "/sys/fs/cgroup";

pub(super) fn check(kind: DelegateKind) -> Finding {
    match mountinfo::read_own() {
        Ok(mounts) => judge(Layout::of(&mounts), kind),
        Err(error) => Finding::from_error(WHAT, &error),
    }
}

/// The layout of the control groups below `/sys/fs/cgroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    None,
    V1,
    Hybrid,
    V2,
}

impl Layout {
    fn of(mounts: &[Mount]) -> Self {
        // Of several on one place the last is on top, and hides what is on the others.
        let top = mounts.iter().rfind(|it| it.mount_point == Path::new(PLACE));
        let is_seen = |it: &&Mount| {
            it.mount_point.starts_with(PLACE)
                && top.is_none_or(|top| it.id == top.id || it.parent == top.id)
        };
        let below = || mounts.iter().filter(is_seen);
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

fn judge(layout: Layout, kind: DelegateKind) -> Finding {
    match (layout, kind) {
        (Layout::V2, _) => Finding::pass(WHAT, "v2"),
        (Layout::V1, _) => Finding::pass(WHAT, "v1"),
        (Layout::Hybrid, DelegateKind::Runc | DelegateKind::Youki) => {
            Finding::pass(WHAT, "v1, with v2 beside it (hybrid)")
        }
        (Layout::Hybrid, DelegateKind::Crun) => Finding::fail(
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
    use crust_state::check::CheckVerdict;

    use super::*;

    /// Each with its id and its parent's.
    fn layout(mounts: &[(u32, u32, &str, &str)]) -> Layout {
        let line = |(id, parent, place, fstype): &_| {
            format!("{id} {parent} 0:3 / {place} rw - {fstype} none rw\n")
        };
        let lines: Vec<String> = mounts.iter().map(line).collect();
        Layout::of(&mountinfo::parse(lines.concat().as_bytes()).unwrap())
    }

    #[test]
    fn layouts_are_told_apart() {
        const PLACE: &str = super::PLACE;
        let (cpu, unified) = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified");
        for (mounts, expected) in [
            (
                &[(1, 1, "/", "ext4"), (2, 1, PLACE, "tmpfs")][..],
                Layout::None,
            ),
            (&[(1, 1, PLACE, "cgroup2")], Layout::V2),
            (&[(1, 1, cpu, "cgroup")], Layout::V1),
            (&[(1, 9, PLACE, "tmpfs"), (2, 1, cpu, "cgroup")], Layout::V1),
            (
                &[
                    (1, 9, PLACE, "tmpfs"),
                    (2, 1, cpu, "cgroup"),
                    (3, 1, unified, "cgroup2"),
                ],
                Layout::Hybrid,
            ),
            (
                &[
                    (1, 9, PLACE, "tmpfs"),
                    (2, 1, cpu, "cgroup"),
                    (3, 1, PLACE, "cgroup2"),
                ],
                Layout::V2,
            ),
            (&[(1, 1, "/srv/cgroup", "cgroup2")], Layout::None),
        ] {
            assert_eq!(layout(mounts), expected, "{mounts:?}");
        }
    }

    #[test]
    fn crun_refuses_the_hybrid_mount() {
        for (layout, kind, expected) in [
            (Layout::Hybrid, DelegateKind::Crun, CheckVerdict::Fail),
            (Layout::Hybrid, DelegateKind::Runc, CheckVerdict::Pass),
            (Layout::V1, DelegateKind::Crun, CheckVerdict::Pass),
            (Layout::V2, DelegateKind::Crun, CheckVerdict::Pass),
            (Layout::None, DelegateKind::Runc, CheckVerdict::Fail),
        ] {
            assert_eq!(judge(layout, kind).verdict, expected, "{layout:?}");
        }
    }
}
