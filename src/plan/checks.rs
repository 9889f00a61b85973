//! Checks of a config with volumes: whether the volumes and namespaces are the pod's own, whether a volume would hide
//! another mount, and whether the container can have volumes at all.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use crust_state::TargetPath;
use crust_state::sandbox::SandboxRecord;

use super::error::PlanError;
use super::types::PlannedMount;
use crate::oci::{Mount, Namespace};

/// Checks that a volume belongs to the sandbox's pod. Users can set annotations, so these must not give access to
/// another pod's volume.
pub(super) fn check_pod(
    volume: &TargetPath,
    sandbox: &str,
    pod_uid: &str,
) -> Result<(), PlanError> {
    match volume.pod_uid() {
        Some(owner) if owner != pod_uid => Err(PlanError::OtherPod {
            volume: volume.volume_name(),
            owner: owner.to_string_lossy().into_owned(),
            sandbox: sandbox.to_owned(),
            pod: pod_uid.to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Checks that the namespaces that the container joins are its sandbox's, not another pod's. The pid namespace isn't
/// checked: it may be the pid namespace of another container of the pod (an ephemeral container's target).
pub(super) fn check_namespaces(
    volume: &str,
    namespaces: &[Namespace<'_>],
    sandbox: &SandboxRecord,
) -> Result<(), PlanError> {
    for namespace in namespaces
        .iter()
        .filter(|namespace| namespace.kind != "pid")
    {
        let Some(path) = namespace.path.as_deref() else {
            continue;
        };
        let pid = path
            .strip_prefix("/proc/")
            .and_then(|rest| rest.split_once("/ns/"));
        if pid.is_some_and(|(pid, _)| pid != sandbox.process.pid.to_string()) {
            return Err(PlanError::OtherNamespace {
                volume: volume.to_owned(),
                path: path.to_owned(),
                sandbox: sandbox.id.clone(),
                pid: sandbox.process.pid,
            });
        }
    }
    Ok(())
}

/// Refuses a volume that would hide another mount if a hook mounted it. With `mount_mode = "hook"` the volumes are
/// mounted after everything that the delegate mounts, in the order of the config. The hook checks links in the
/// container's file system.
pub(super) fn check_hidden_mounts(
    mounts: &[Mount<'_>],
    planned: &[PlannedMount],
) -> Result<(), PlanError> {
    let destinations: Vec<PathBuf> = mounts
        .iter()
        .map(|mount| normalize(Path::new(&*mount.destination)))
        .collect();
    let mut volumes: HashMap<&Path, &PlannedMount> = HashMap::new();
    for volume in planned {
        // If two volumes have the same destination, the earlier one is kept, and the check below finds that the later
        // one hides it.
        volumes.entry(&destinations[volume.index]).or_insert(volume);
    }
    let planned_indexes: HashSet<usize> = planned.iter().map(|planned| planned.index).collect();
    for (other, destination) in mounts.iter().zip(&destinations) {
        for above in destination.ancestors() {
            let Some(volume) = volumes.get(above).filter(|it| it.index != other.index) else {
                continue;
            };
            let comes_later = planned_indexes.contains(&other.index) && other.index > volume.index;
            if !comes_later || above == destination {
                return Err(PlanError::HiddenMount {
                    volume: volume.found.volume.volume_name(),
                    destination: volume.destination.display().to_string(),
                    other: other.destination.to_string(),
                });
            }
        }
    }
    Ok(())
}

/// Checks that the container has a mount namespace of its own. Returns the reason if not.
pub(super) fn check_mount_namespace(namespaces: &[Namespace<'_>]) -> Result<(), &'static str> {
    let joins = |it: &&Namespace<'_>| it.path.as_deref().is_some_and(|path| !path.is_empty());
    let mut kinds = namespaces.iter().filter(|it| it.kind == "mount");
    match kinds.next() {
        Some(namespace) if !joins(&namespace) => Ok(()),
        _ => Err(
            "without a mount namespace of its own a container's mounts would be the host's; hint: add an entry of \
             type \"mount\" without a path to linux.namespaces in config.json",
        ),
    }
}

/// Checks that a hook in the container can mount its volumes. Returns the reason if not.
pub(super) fn check_hook_support(
    namespaces: &[Namespace<'_>],
    restores: bool,
) -> Result<(), &'static str> {
    let has = |kind: &str| namespaces.iter().any(|it| it.kind == kind);
    if restores {
        return Err(
            "no hook runs in a container that is restored; hint: set mount_mode = \"bind\" in \
             runcrust's configuration",
        );
    }
    if has("user") {
        return Err(
            "in a user namespace a hook can't mount a device; hint: set mount_mode = \"bind\" in \
             runcrust's configuration",
        );
    }
    if has("time") {
        return Err(
            "in a time namespace a hook can't determine which processes are alive; hint: set mount_mode = \"bind\" in \
             runcrust's configuration",
        );
    }
    Ok(())
}

/// Resolves `.` and `..` in a destination textually. `..` at the root is the root, as in the delegates.
fn normalize(destination: &Path) -> PathBuf {
    let mut path = PathBuf::from("/");
    for component in destination.components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => _ = path.pop(),
            _ => {}
        }
    }
    path
}
