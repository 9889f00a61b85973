//! What root may do, and a step of ours needn't be able to (capabilities(7)).
//!
//! runcrust becomes the delegate, which is to have the capability sets that it would have had
//! without runcrust: so of them only the *effective* one is lowered, and raised again. It decides
//! what this thread may do now and nothing of what the delegate may: execve(2) makes that of the
//! permitted, inheritable, bounding and ambient sets and the securebits, and none of these can
//! be had back once it is gone. Whoever executes nothing gives up all of them.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

/// A step that is taken with root's help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A create in runcrust: planned, mounted, and its config rewritten.
    Create,
    /// The hook that mounts volumes in a new sandbox.
    Sandbox,
    /// The hook that mounts volumes in a container (`mount_mode = "hook"`).
    Mount,
    /// The hook that records a new container, and unmounts what came out of it.
    Publish,
    /// The hooks that forget a container or a sandbox.
    Release,
}

impl Operation {
    /// Returns the capabilities that the operation needs; docs/privileges.md says what for.
    pub(crate) const fn needs(self) -> &'static [Capability] {
        use Capability::{
            CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_SETFCAP,
            CAP_SETGID, CAP_SETUID, CAP_SYS_ADMIN, CAP_SYS_CHROOT, CAP_SYS_PTRACE,
            CAP_SYS_RESOURCE,
        };
        match self {
            Self::Create => &[
                CAP_SYS_ADMIN,
                CAP_SYS_CHROOT,
                CAP_SYS_PTRACE,
                CAP_DAC_OVERRIDE,
                CAP_CHOWN,
                CAP_FOWNER,
                CAP_FSETID,
                CAP_SYS_RESOURCE,
                CAP_SETUID,
                CAP_SETGID,
                CAP_SETFCAP,
            ],
            Self::Sandbox => &[
                CAP_SYS_ADMIN,
                CAP_SYS_CHROOT,
                CAP_SYS_PTRACE,
                CAP_DAC_READ_SEARCH,
                CAP_CHOWN,
                CAP_FOWNER,
                CAP_FSETID,
                CAP_SYS_RESOURCE,
            ],
            Self::Mount => &[
                CAP_SYS_ADMIN,
                CAP_DAC_OVERRIDE,
                CAP_CHOWN,
                CAP_FOWNER,
                CAP_FSETID,
                CAP_SYS_RESOURCE,
            ],
            Self::Publish => &[CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH],
            Self::Release => &[CAP_DAC_READ_SEARCH],
        }
    }
}

/// The kernel doesn't let this process give up what it has.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}; hint: does a seccomp filter of the caller's forbid it?")]
pub struct PrivilegesError {
    what: &'static str,
    source: CapsError,
}

pub(crate) fn failed(what: &'static str) -> impl FnOnce(CapsError) -> PrivilegesError {
    move |source| PrivilegesError { what, source }
}

/// Does a step while this thread can do what that needs and nothing else. Afterwards it can do what
/// it could before.
pub fn with_lowered<T>(step: Operation, work: impl FnOnce() -> T) -> Result<T, PrivilegesError> {
    let before = effective()?;
    let Some(needed) = needed(step, &before) else {
        return Ok(work());
    };
    caps::set(None, CapSet::Effective, &needed).map_err(failed("capset(effective)"))?;
    let done = work();
    caps::set(None, CapSet::Effective, &before).map_err(failed("capset(effective)"))?;
    Ok(done)
}

/// Gives up for good what a step doesn't need; for a process that executes nothing.
pub fn drop_all_but(step: Operation) -> Result<(), PrivilegesError> {
    let before = effective()?;
    let Some(needed) = needed(step, &before) else {
        return Ok(());
    };
    if before.contains(&Capability::CAP_SETPCAP) {
        // Were anything executed all the same: as root it would have all of this set again.
        for other in caps::all().difference(&needed) {
            let dropped = caps::drop(None, CapSet::Bounding, *other);
            // An older kernel refuses to drop what it doesn't know, and doesn't have it in the set either.
            let is_left = || caps::has_cap(None, CapSet::Bounding, *other).unwrap_or(false);
            if let Err(error) = dropped
                && is_left()
            {
                return Err(failed("prctl(CAPBSET_DROP)")(error));
            }
        }
    }
    caps::clear(None, CapSet::Ambient).map_err(failed("prctl(CAP_AMBIENT_CLEAR_ALL)"))?;
    caps::clear(None, CapSet::Inheritable).map_err(failed("capset(inheritable)"))?;
    caps::set(None, CapSet::Effective, &needed).map_err(failed("capset(effective)"))?;
    caps::set(None, CapSet::Permitted, &needed).map_err(failed("capset(permitted)"))
}

/// Returns the effective capabilities of this thread.
pub(crate) fn effective() -> Result<CapsHashSet, PrivilegesError> {
    caps::read(None, CapSet::Effective).map_err(failed("capget"))
}

/// Returns the capabilities of a set that are kept; `None` if all are.
fn needed(step: Operation, before: &CapsHashSet) -> Option<CapsHashSet> {
    let needs = step.needs();
    let sight = Capability::CAP_SYS_PTRACE;
    // Processes that can do more than this one are out of its sight, sandboxes too: without the
    // capability to look at them nevertheless it has to stay as able as they are.
    let sees = before.contains(&sight) || !needs.contains(&sight);
    let needs = needs.iter().copied();
    sees.then(|| needs.filter(|it| before.contains(it)).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crust_state::{Process, ProcessState};
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

    use super::*;
    use crust_blockfs::sys::unshare_mount_namespace;

    const STEPS: [(&str, Operation); 5] = [
        ("create", Operation::Create),
        ("sandbox", Operation::Sandbox),
        ("mount", Operation::Mount),
        ("publish", Operation::Publish),
        ("release", Operation::Release),
    ];

    #[test]
    fn what_each_step_needs_is_documented() {
        let document = include_str!("../../../docs/privileges.md");
        let (_, table) = document.split_once("\n| capability |").unwrap();
        let (heading, rows) = table.split_once('\n').unwrap();
        assert!(heading.starts_with(" create | sandbox | mount | publish | release | for |"));
        let rows = rows.lines().skip(1).map_while(|row| {
            let mut cells = row.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.trim_end_matches('`');
            Some((name, cells.map(|cell| cell == "yes").collect::<Vec<_>>()))
        });
        let rows: Vec<_> = rows.collect();
        for (column, (name, step)) in STEPS.into_iter().enumerate() {
            let documented = rows.iter().filter(|(_, needed)| needed[column]);
            let documented = documented.map(|(name, _)| format!("CAP_{name}").parse().unwrap());
            let documented: CapsHashSet = documented.collect();
            assert_eq!(documented, step.needs().iter().copied().collect(), "{name}");
        }
    }

    #[test]
    fn what_a_caller_lacks_is_not_asked_for() {
        use Capability::{CAP_CHOWN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_SYS_PTRACE};

        let set = |list: &[Capability]| list.iter().copied().collect::<CapsHashSet>();
        let able = set(&[CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_CHOWN, CAP_NET_RAW]);
        let kept = set(&[CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_CHOWN]);
        assert_eq!(needed(Operation::Create, &able), Some(kept));
        assert_eq!(
            needed(Operation::Mount, &able),
            Some(set(&[CAP_SYS_ADMIN, CAP_CHOWN]))
        );
        for step in [Operation::Create, Operation::Publish] {
            assert_eq!(needed(step, &set(&[CAP_SYS_ADMIN, CAP_NET_RAW])), None);
        }
        assert_eq!(
            needed(Operation::Release, &set(&[CAP_NET_RAW])),
            Some(set(&[]))
        );
    }

    #[test]
    fn what_was_lowered_is_back_afterwards() {
        let now = || effective().unwrap();
        let before = now();
        let kept = needed(Operation::Release, &before).unwrap();
        assert!(kept.len() < before.len(), "{before:?}");
        let within = with_lowered(Operation::Release, || {
            caps::read(None, CapSet::Permitted).map(|permitted| (now(), permitted))
        });
        let (effective, permitted) = within.unwrap().unwrap();
        assert_eq!(effective, kept);
        assert_eq!(permitted, caps::read(None, CapSet::Permitted).unwrap());
        assert_eq!(now(), before);
    }

    /// As nodes are hardened, with a group for those who may see it all that root isn't in. Of this
    /// thread: since Linux 5.8 each mount of `/proc` has its own options.
    fn hide_processes() {
        unshare_mount_namespace().unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        let options = c"hidepid=2,gid=65534";
        mount("proc", "/proc", "proc", MountFlags::empty(), options).unwrap();
    }

    #[test]
    fn whom_a_step_cannot_see_it_does_not_take_for_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::from_pid(child.id().cast_signed()).unwrap();
        let hidden = std::thread::spawn(move || {
            hide_processes();
            let look = || STEPS.map(|(_, step)| with_lowered(step, || process.state()).unwrap());
            let alive = look();
            child.kill().unwrap();
            child.wait().unwrap();
            (alive, look())
        });
        let (alive, dead) = hidden.join().unwrap();
        for ((name, step), life) in STEPS.into_iter().zip(alive) {
            let sees = step.needs().contains(&Capability::CAP_SYS_PTRACE);
            let is_right = match &life {
                ProcessState::Alive => sees,
                ProcessState::Unknown(why) => !sees && why.contains("hidepid="),
                ProcessState::Ended(_) => false,
            };
            assert!(is_right, "{name}: {life:?}");
        }
        for life in dead {
            assert!(matches!(life, ProcessState::Ended(_)), "{life:?}");
        }
    }
}
