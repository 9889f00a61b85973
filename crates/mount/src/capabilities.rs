//! What this host allows: by asking its kernel, not by a list.

use crust_state::check::Finding;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};
use rustix::thread::{CapabilitySet, capabilities};

use crate::errno::Name;

/// The kernel doesn't say.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}; hint: only root on the node can ask", Name(*errno))]
pub struct CapabilitiesError {
    /// The call, with its arguments.
    pub call: String,
    /// The kernel's answer.
    pub errno: Errno,
}

/// Those of the file systems that the running kernel can mount; a module is loaded for it.
pub fn mountable(fstypes: &[String]) -> Result<Vec<String>, CapabilitiesError> {
    let mut known = Vec::new();
    for fstype in fstypes {
        match fsopen(fstype.as_str(), FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_) => known.push(fstype.clone()),
            Err(Errno::NODEV) => {}
            Err(errno) => {
                let call = format!("fsopen({fstype:?})");
                return Err(CapabilitiesError { call, errno });
            }
        }
    }
    Ok(known)
}

/// Whether one of the file systems can grow while it is mounted, by this process.
pub fn can_grow(fstypes: &[String]) -> Result<bool, CapabilitiesError> {
    let has_resource = own()?.contains(CapabilitySet::SYS_RESOURCE);
    Ok(fstypes.iter().any(|fstype| grows(fstype, has_resource)))
}

fn own() -> Result<CapabilitySet, CapabilitiesError> {
    let own = capabilities(None).map_err(|errno| CapabilitiesError {
        call: "capget".to_owned(),
        errno,
    })?;
    Ok(own.effective)
}

/// What a capability is needed for.
struct Need {
    capability: CapabilitySet,
    name: &'static str,
    /// What doesn't work without it; `None`: no volume is mounted.
    lost: Option<&'static str>,
}

/// The runtime is a child of the daemon's when it publishes, and enters a sandbox's mount namespace.
const NEEDS: [Need; 8] = [
    need(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN", None),
    need(CapabilitySet::SYS_CHROOT, "CAP_SYS_CHROOT", None),
    need(CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE", Some(PTRACE)),
    need(
        CapabilitySet::DAC_OVERRIDE,
        "CAP_DAC_OVERRIDE",
        Some(FS_GROUP),
    ),
    need(CapabilitySet::CHOWN, "CAP_CHOWN", Some(FS_GROUP)),
    need(CapabilitySet::FOWNER, "CAP_FOWNER", Some(FS_GROUP)),
    need(CapabilitySet::FSETID, "CAP_FSETID", Some(FS_GROUP)),
    need(
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        Some(GROWTH),
    ),
];

const PTRACE: &str = "sandboxes that don't run as root can't be entered";
const FS_GROUP: &str = "fsGroup can't be applied";
const GROWTH: &str = "ext4 can't grow";

const fn need(capability: CapabilitySet, name: &'static str, lost: Option<&'static str>) -> Need {
    Need {
        capability,
        name,
        lost,
    }
}

const WHAT: &str = "capabilities";

/// Whether this process has the capabilities that volumes take.
#[must_use]
pub fn check() -> Finding {
    own().map_or_else(|error| Finding::failed(WHAT, &error), judge)
}

fn judge(effective: CapabilitySet) -> Finding {
    let missing: Vec<&Need> = NEEDS
        .iter()
        .filter(|need| !effective.contains(need.capability))
        .collect();
    let names = |needs: &mut dyn Iterator<Item = &&Need>| {
        let names: Vec<&str> = needs.map(|need| need.name).collect();
        names.join(", ")
    };
    let fix = "in a pod `privileged: true`, in a unit CapabilityBoundingSet=";
    let fatal = names(&mut missing.iter().filter(|need| need.lost.is_none()));
    if !fatal.is_empty() {
        return Finding::fail(WHAT, format!("without {fatal} no volume is mounted"), fix);
    }
    let mut lost: Vec<&str> = missing.iter().filter_map(|need| need.lost).collect();
    lost.dedup();
    if lost.is_empty() {
        return Finding::pass(WHAT, "they suffice");
    }
    let (names, lost) = (names(&mut missing.iter()), lost.join(", "));
    Finding::warn(WHAT, format!("without {names} {lost}"), fix)
}

/// ext4 asks for `CAP_SYS_RESOURCE`, the others for what a mount takes anyhow.
fn grows(fstype: &str, has_resource: bool) -> bool {
    match fstype {
        "xfs" | "btrfs" => true,
        "ext2" | "ext3" | "ext4" => has_resource,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_alone_needs_a_capability_of_its_own() {
        assert!(grows("xfs", false) && grows("btrfs", false));
        assert!(!grows("ext4", false) && grows("ext4", true));
        assert!(!grows("vfat", true));
    }

    #[test]
    fn what_is_missing_is_told_with_what_it_takes_away() {
        use crust_state::check::Verdict;
        let without = |missing: CapabilitySet| judge(CapabilitySet::all() - missing);
        for (missing, verdict, words) in [
            (CapabilitySet::empty(), Verdict::Pass, "they suffice"),
            (
                CapabilitySet::SYS_ADMIN | CapabilitySet::CHOWN,
                Verdict::Fail,
                "without CAP_SYS_ADMIN no volume is mounted",
            ),
            (
                CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT,
                Verdict::Fail,
                "without CAP_SYS_ADMIN, CAP_SYS_CHROOT no",
            ),
            (
                CapabilitySet::SYS_RESOURCE,
                Verdict::Warn,
                "without CAP_SYS_RESOURCE ext4 can't grow",
            ),
            (
                CapabilitySet::CHOWN | CapabilitySet::FSETID,
                Verdict::Warn,
                "without CAP_CHOWN, CAP_FSETID fsGroup can't be applied",
            ),
            (CapabilitySet::NET_ADMIN, Verdict::Pass, "they suffice"),
        ] {
            let finding = without(missing);
            assert_eq!(finding.verdict, verdict, "{finding}");
            assert!(finding.found.starts_with(words), "{finding}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_know_is_left_out() {
        let asked = ["tmpfs", "no-such-fs"].map(str::to_owned);
        assert_eq!(mountable(&asked).unwrap(), ["tmpfs"]);
    }
}
