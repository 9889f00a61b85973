//! What this host allows: by asking its kernel, not by a list.

use std::borrow::Cow;

use caps::{Capability, CapsHashSet};
use crust_state::check::Finding;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use crate::privileges::{self, PrivilegesError, Step};
use crust_blockfs::errno::Name;
use crust_blockfs::fstypes;

/// The kernel doesn't say.
#[derive(Debug, thiserror::Error)]
pub enum CapabilitiesError {
    /// Which file systems it has.
    #[error("{call}: {}; hint: only root on the node can ask", Name(*errno))]
    FileSystem {
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// What this process may do.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
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
                return Err(CapabilitiesError::FileSystem { call, errno });
            }
        }
    }
    Ok(known)
}

/// Whether one of the file systems can grow while it is mounted, by this process.
pub fn can_grow(names: &[String]) -> Result<bool, CapabilitiesError> {
    let uses_reserves = fstypes::can_use_reserves().map_err(privileges::failed("capget"))?;
    let mut known = names.iter().filter_map(|fstype| fstypes::find(fstype));
    Ok(known.any(|known| known.can_grow(uses_reserves)))
}

const WHAT: &str = "capabilities";

/// Whether this process has the capabilities that volumes take: those of a create, which has the most.
#[must_use]
pub fn check() -> Finding {
    privileges::effective().map_or_else(|error| Finding::failed(WHAT, &error), |has| judge(&has))
}

/// Returns what can't be done without a capability; `None`: no volume is mounted.
fn lost(capability: Capability) -> Option<Cow<'static, str>> {
    let lost = match capability {
        Capability::CAP_SYS_PTRACE => "sandboxes that don't run as root can't be entered",
        Capability::CAP_DAC_OVERRIDE
        | Capability::CAP_CHOWN
        | Capability::CAP_FOWNER
        | Capability::CAP_FSETID => "fsGroup can't be applied",
        Capability::CAP_SYS_RESOURCE => {
            return Some(format!("{} can't grow", fstypes::growing_by_reserves()).into());
        }
        Capability::CAP_SETUID | Capability::CAP_SETGID | Capability::CAP_SETFCAP => {
            "pods with a user namespace of their own have no volumes"
        }
        _ => return None,
    };
    Some(lost.into())
}

fn judge(effective: &CapsHashSet) -> Finding {
    let needs = Step::Create.needs().iter().copied();
    let missing: Vec<Capability> = needs.filter(|need| !effective.contains(need)).collect();
    let names = |missing: &mut dyn Iterator<Item = &Capability>| {
        let names: Vec<String> = missing.map(ToString::to_string).collect();
        names.join(", ")
    };
    let fix = "in a pod `privileged: true`, in a unit CapabilityBoundingSet=";
    let fatal = names(&mut missing.iter().filter(|need| lost(**need).is_none()));
    if !fatal.is_empty() {
        return Finding::fail(WHAT, format!("without {fatal} no volume is mounted"), fix);
    }
    let mut lost: Vec<_> = missing.iter().filter_map(|need| lost(*need)).collect();
    lost.dedup();
    if lost.is_empty() {
        return Finding::pass(WHAT, "they suffice");
    }
    let (names, lost) = (names(&mut missing.iter()), lost.join(", "));
    Finding::warn(WHAT, format!("without {names} {lost}"), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_with_what_it_takes_away() {
        use Capability::{
            CAP_CHOWN, CAP_FSETID, CAP_NET_ADMIN, CAP_SETFCAP, CAP_SYS_ADMIN, CAP_SYS_CHROOT,
            CAP_SYS_RESOURCE,
        };
        use crust_state::check::Verdict;
        for (missing, verdict, words) in [
            (&[][..], Verdict::Pass, "they suffice"),
            (
                &[CAP_SYS_ADMIN, CAP_CHOWN],
                Verdict::Fail,
                "without CAP_SYS_ADMIN no volume is mounted",
            ),
            (
                &[CAP_SYS_ADMIN, CAP_SYS_CHROOT],
                Verdict::Fail,
                "without CAP_SYS_ADMIN, CAP_SYS_CHROOT no",
            ),
            (
                &[CAP_SYS_RESOURCE],
                Verdict::Warn,
                "without CAP_SYS_RESOURCE ext4 and ext3 can't grow",
            ),
            (
                &[CAP_CHOWN, CAP_FSETID],
                Verdict::Warn,
                "without CAP_CHOWN, CAP_FSETID fsGroup can't be applied",
            ),
            (
                &[CAP_SETFCAP],
                Verdict::Warn,
                "without CAP_SETFCAP pods with a user namespace",
            ),
            (&[CAP_NET_ADMIN], Verdict::Pass, "they suffice"),
        ] {
            let mut effective = caps::all();
            effective.retain(|it| !missing.contains(it));
            let finding = judge(&effective);
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
