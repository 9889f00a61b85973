//! Lowers this process's capabilities to those that an operation needs (capabilities(7)).
//!
//! runcrust execs the delegate, which must have the same capability sets as without runcrust. Therefore only the
//! effective set is lowered, and restored afterwards. It limits what this thread may do now, but not what the delegate
//! may do: execve(2) computes the delegate's sets from the permitted, inheritable, bounding and ambient sets and the
//! securebits, which can't be raised again once they are lowered. A process that executes nothing lowers all of them.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};

/// An operation that needs capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The create in runcrust, which plans and mounts the volumes and rewrites the config.
    Create,
    /// The hook that mounts volumes in a new sandbox.
    Sandbox,
    /// The hook that mounts volumes in a container (`mount_mode = "hook"`).
    Mount,
    /// The hook that records a new container and unmounts copies of its volumes on the host.
    Publish,
    /// The hooks that release a container or a sandbox.
    Release,
    /// The process that holds the mount of a share, once it has left the other mounts.
    Hold,
}

impl Operation {
    /// Returns the capabilities that the operation needs. docs/privileges.md lists the reasons.
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
            Self::Hold => &[],
        }
    }
}

/// An error of reading or lowering the capabilities of this process.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}; hint: check whether a seccomp filter of the caller forbids this call")]
pub struct PrivilegesError {
    call: &'static str,
    source: CapsError,
}

pub(crate) fn failed(call: &'static str) -> impl FnOnce(CapsError) -> PrivilegesError {
    move |source| PrivilegesError { call, source }
}

/// Runs `work` while this thread's effective set has only the capabilities that the operation needs. Restores the
/// effective set afterwards.
pub fn with_lowered<T>(
    operation: Operation,
    work: impl FnOnce() -> T,
) -> Result<T, PrivilegesError> {
    let before = effective()?;
    let Some(needed) = needed(operation, &before) else {
        return Ok(work());
    };
    caps::set(None, CapSet::Effective, &needed).map_err(failed("capset(effective)"))?;
    let result = work();
    caps::set(None, CapSet::Effective, &before).map_err(failed("capset(effective)"))?;
    Ok(result)
}

/// Drops all capabilities that the operation doesn't need, for good. For a process that executes no other program.
pub fn drop_all_but(operation: Operation) -> Result<(), PrivilegesError> {
    let before = effective()?;
    let Some(needed) = needed(operation, &before) else {
        return Ok(());
    };
    if before.contains(&Capability::CAP_SETPCAP) {
        // A program that root executes gets the whole bounding set, so the bounding set is lowered too, in case this
        // process executes a program after all.
        for other in caps::all().difference(&needed) {
            let dropped = caps::drop(None, CapSet::Bounding, *other);
            // An older kernel refuses to drop a capability that it doesn't know. Such a capability isn't in the set.
            let is_in_set = || caps::has_cap(None, CapSet::Bounding, *other).unwrap_or(false);
            if let Err(error) = dropped
                && is_in_set()
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

/// Returns the capabilities of `before` that the operation needs; `None` if no capability may be dropped.
///
/// A process can't access processes that have capabilities it lacks, such as sandboxes, unless it has `CAP_SYS_PTRACE`
/// (ptrace(2), "Ptrace access mode checking"). If the operation needs that capability and the process doesn't have it,
/// it must keep all the others.
fn needed(operation: Operation, before: &CapsHashSet) -> Option<CapsHashSet> {
    let needs = operation.needs();
    let ptrace = Capability::CAP_SYS_PTRACE;
    let may_drop = before.contains(&ptrace) || !needs.contains(&ptrace);
    let needs = needs.iter().copied();
    may_drop.then(|| needs.filter(|it| before.contains(it)).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crust_state::{Process, ProcessState};
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

    use super::*;
    use crust_blockfs::sys::unshare_mount_namespace;

    const OPERATIONS: [(&str, Operation); 6] = [
        ("create", Operation::Create),
        ("sandbox", Operation::Sandbox),
        ("mount", Operation::Mount),
        ("publish", Operation::Publish),
        ("release", Operation::Release),
        ("hold", Operation::Hold),
    ];

    #[test]
    fn the_capabilities_of_each_operation_are_documented() {
        let document = include_str!("../../../docs/privileges.md");
        let (_, table) = document.split_once("\n| capability |").unwrap();
        let (heading, rows) = table.split_once('\n').unwrap();
        assert!(
            heading.starts_with(" create | sandbox | mount | publish | release | hold | for |")
        );
        let rows = rows.lines().skip(1).map_while(|row| {
            let mut cells = row.strip_prefix("| `")?.split('|').map(str::trim);
            let name = cells.next()?.trim_end_matches('`');
            Some((name, cells.map(|cell| cell == "yes").collect::<Vec<_>>()))
        });
        let rows: Vec<_> = rows.collect();
        for (column, (name, operation)) in OPERATIONS.into_iter().enumerate() {
            let documented = rows.iter().filter(|(_, needed)| needed[column]);
            let documented = documented.map(|(name, _)| format!("CAP_{name}").parse().unwrap());
            let documented: CapsHashSet = documented.collect();
            assert_eq!(
                documented,
                operation.needs().iter().copied().collect(),
                "{name}"
            );
        }
    }

    #[test]
    fn only_capabilities_of_the_caller_are_kept() {
        use Capability::{CAP_CHOWN, CAP_NET_RAW, CAP_SYS_ADMIN, CAP_SYS_PTRACE};

        let set = |list: &[Capability]| list.iter().copied().collect::<CapsHashSet>();
        let available = set(&[CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_CHOWN, CAP_NET_RAW]);
        let kept = set(&[CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_CHOWN]);
        assert_eq!(needed(Operation::Create, &available), Some(kept));
        assert_eq!(
            needed(Operation::Mount, &available),
            Some(set(&[CAP_SYS_ADMIN, CAP_CHOWN]))
        );
        for operation in [Operation::Create, Operation::Publish] {
            assert_eq!(needed(operation, &set(&[CAP_SYS_ADMIN, CAP_NET_RAW])), None);
        }
        assert_eq!(
            needed(Operation::Release, &set(&[CAP_NET_RAW])),
            Some(set(&[]))
        );
    }

    #[test]
    fn the_effective_set_is_restored_afterwards() {
        let now = || effective().unwrap();
        let before = now();
        let kept = needed(Operation::Release, &before).unwrap();
        assert!(kept.len() < before.len(), "{before:?}");
        let lowered = with_lowered(Operation::Release, || {
            caps::read(None, CapSet::Permitted).map(|permitted| (now(), permitted))
        });
        let (effective, permitted) = lowered.unwrap().unwrap();
        assert_eq!(effective, kept);
        assert_eq!(permitted, caps::read(None, CapSet::Permitted).unwrap());
        assert_eq!(now(), before);
    }

    /// Mounts `/proc` with `hidepid=2` for this thread, as hardened nodes do, with a `gid=` that root doesn't have.
    /// Each mount of `/proc` has its own options since Linux 5.8.
    fn hide_processes() {
        unshare_mount_namespace().unwrap();
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        let options = c"hidepid=2,gid=65534";
        mount("proc", "/proc", "proc", MountFlags::empty(), options).unwrap();
    }

    #[test]
    fn a_hidden_process_is_unknown_and_not_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::from_pid(child.id().cast_signed()).unwrap();
        let hidden = std::thread::spawn(move || {
            hide_processes();
            let process_state = || {
                OPERATIONS
                    .map(|(_, operation)| with_lowered(operation, || process.state()).unwrap())
            };
            let alive = process_state();
            child.kill().unwrap();
            child.wait().unwrap();
            (alive, process_state())
        });
        let (alive, dead) = hidden.join().unwrap();
        for ((name, operation), process_state) in OPERATIONS.into_iter().zip(alive) {
            let sees_hidden = operation.needs().contains(&Capability::CAP_SYS_PTRACE);
            let is_expected = match &process_state {
                ProcessState::Alive => sees_hidden,
                ProcessState::Unknown(reason) => !sees_hidden && reason.contains("hidepid="),
                ProcessState::Ended(_) => false,
            };
            assert!(is_expected, "{name}: {process_state:?}");
        }
        for process_state in dead {
            assert!(
                matches!(process_state, ProcessState::Ended(_)),
                "{process_state:?}"
            );
        }
    }
}
