//! Checks the layout of the control groups, which the delegate has to support.

use std::path::Path;

use crust_blockfs::mountinfo::{self, Mount};
use crust_state::DelegateKind;
use crust_state::check::Finding;

const CHECK: &str = "cgroups";

const CGROUP_ROOT: &str = "/sys/fs/cgroup";

pub(super) fn check(kind: DelegateKind) -> Finding {
    match mountinfo::read_own() {
        Ok(mounts) => judge(CgroupLayout::from_mounts(&mounts), kind),
        Err(error) => Finding::from_error(CHECK, &error),
    }
}

/// The versions of the cgroup file systems below `/sys/fs/cgroup`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CgroupLayout {
    None,
    V1,
    Hybrid,
    V2,
}

impl CgroupLayout {
    fn from_mounts(mounts: &[Mount]) -> Self {
        // The last of several mounts on one path is on top, and hides the mounts below it.
        let top = mounts
            .iter()
            .rfind(|it| it.mount_point == Path::new(CGROUP_ROOT));
        let is_visible = |it: &&Mount| {
            it.mount_point.starts_with(CGROUP_ROOT)
                && top.is_none_or(|top| it.id == top.id || it.parent == top.id)
        };
        let visible = || mounts.iter().filter(is_visible);
        let has_v1 = visible().any(|mount| mount.fstype == "cgroup");
        let has_v2 = visible().any(|mount| mount.fstype == "cgroup2");
        match (has_v1, has_v2) {
            (false, false) => Self::None,
            (true, false) => Self::V1,
            (true, true) => Self::Hybrid,
            (false, true) => Self::V2,
        }
    }
}

fn judge(layout: CgroupLayout, kind: DelegateKind) -> Finding {
    match (layout, kind) {
        (CgroupLayout::V2, _) => Finding::pass(CHECK, "v2"),
        (CgroupLayout::V1, _) => Finding::pass(CHECK, "v1"),
        (CgroupLayout::Hybrid, DelegateKind::Runc | DelegateKind::Youki) => {
            Finding::pass(CHECK, "v1, with v2 beside it (hybrid)")
        }
        (CgroupLayout::Hybrid, DelegateKind::Crun) => Finding::fail(
            CHECK,
            "v1, with v2 beside it (hybrid), which crun refuses: no container starts",
            "boot with systemd.unified_cgroup_hierarchy=1, or set `delegate` to runc in runcrust's configuration",
        ),
        (CgroupLayout::None, _) => Finding::fail(
            CHECK,
            format!(
                "none are mounted below {}",
                Path::new(CGROUP_ROOT).display()
            ),
            "run `mount -t cgroup2 none /sys/fs/cgroup`, as systemd does at boot",
        ),
    }
}

#[cfg(test)]
mod tests {
    use crust_state::check::CheckVerdict;

    use super::*;

    /// Returns the layout of these mounts: id, parent's id, mount point and file system type.
    fn layout(mounts: &[(u32, u32, &str, &str)]) -> CgroupLayout {
        let line = |(id, parent, mount_point, fstype): &_| {
            format!("{id} {parent} 0:3 / {mount_point} rw - {fstype} none rw\n")
        };
        let lines: Vec<String> = mounts.iter().map(line).collect();
        CgroupLayout::from_mounts(&mountinfo::parse(lines.concat().as_bytes()).unwrap())
    }

    #[test]
    fn layouts_are_recognised_by_their_mounts() {
        const CGROUP_ROOT: &str = super::CGROUP_ROOT;
        let (cpu, unified) = ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified");
        for (mounts, expected) in [
            (
                &[(1, 1, "/", "ext4"), (2, 1, CGROUP_ROOT, "tmpfs")][..],
                CgroupLayout::None,
            ),
            (&[(1, 1, CGROUP_ROOT, "cgroup2")], CgroupLayout::V2),
            (&[(1, 1, cpu, "cgroup")], CgroupLayout::V1),
            (
                &[(1, 9, CGROUP_ROOT, "tmpfs"), (2, 1, cpu, "cgroup")],
                CgroupLayout::V1,
            ),
            (
                &[
                    (1, 9, CGROUP_ROOT, "tmpfs"),
                    (2, 1, cpu, "cgroup"),
                    (3, 1, unified, "cgroup2"),
                ],
                CgroupLayout::Hybrid,
            ),
            (
                &[
                    (1, 9, CGROUP_ROOT, "tmpfs"),
                    (2, 1, cpu, "cgroup"),
                    (3, 1, CGROUP_ROOT, "cgroup2"),
                ],
                CgroupLayout::V2,
            ),
            (&[(1, 1, "/srv/cgroup", "cgroup2")], CgroupLayout::None),
        ] {
            assert_eq!(layout(mounts), expected, "{mounts:?}");
        }
    }

    #[test]
    fn the_hybrid_layout_fails_only_for_crun() {
        for (layout, kind, expected) in [
            (CgroupLayout::Hybrid, DelegateKind::Crun, CheckVerdict::Fail),
            (CgroupLayout::Hybrid, DelegateKind::Runc, CheckVerdict::Pass),
            (CgroupLayout::V1, DelegateKind::Crun, CheckVerdict::Pass),
            (CgroupLayout::V2, DelegateKind::Crun, CheckVerdict::Pass),
            (CgroupLayout::None, DelegateKind::Runc, CheckVerdict::Fail),
        ] {
            assert_eq!(judge(layout, kind).verdict, expected, "{layout:?}");
        }
    }
}
