//! Checks of a config with volumes: whose volumes and namespaces it uses, what its mounts would hide, and whether it
//! can have volumes at all.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use crust_state::TargetPath;
use crust_state::sandbox::SandboxRecord;

use super::error::PlanError;
use super::types::PlannedMount;
use crate::oci::{Mount, Namespace};

/// Annotations can be set by others, and must open neither another pod's volume …
pub(super) fn pod(volume: &TargetPath, sandbox: &str, pod_uid: &str) -> Result<(), PlanError> {
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

/// … nor another pod's namespaces. The pid namespace may be that of another container of the pod
/// (an ephemeral container's target), so it says nothing.
pub(super) fn namespaces(
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

/// With `mount_mode = "hook"` volumes are mounted after everything that the delegate mounts, in the
/// order of their list: one that would hide another mount, or that the order would put wrong, is
/// refused. Links in the container's tree are the hook's to see.
pub(super) fn nothing_is_hidden(
    mounts: &[Mount<'_>],
    planned: &[PlannedMount],
) -> Result<(), PlanError> {
    let places: Vec<PathBuf> = mounts
        .iter()
        .map(|mount| in_order(Path::new(&*mount.destination)))
        .collect();
    let mut volumes: HashMap<&Path, &PlannedMount> = HashMap::new();
    for volume in planned {
        // Of two in one place the later one is found to hide the earlier.
        volumes.entry(&places[volume.index]).or_insert(volume);
    }
    let own: HashSet<usize> = planned.iter().map(|planned| planned.index).collect();
    for (other, place) in mounts.iter().zip(&places) {
        for above in place.ancestors() {
            let Some(volume) = volumes.get(above).filter(|it| it.index != other.index) else {
                continue;
            };
            let comes_later = own.contains(&other.index) && other.index > volume.index;
            if !comes_later || above == place {
                return Err(PlanError::Hidden {
                    volume: volume.found.volume.volume_name(),
                    destination: volume.destination.display().to_string(),
                    other: other.destination.to_string(),
                });
            }
        }
    }
    Ok(())
}

/// Whether what is mounted for a container is for it alone; if not, why.
pub(super) fn has_mounts_of_its_own(namespaces: &[Namespace<'_>]) -> Result<(), &'static str> {
    let joined = |it: &&Namespace<'_>| it.path.as_deref().is_some_and(|path| !path.is_empty());
    let mut kinds = namespaces.iter().filter(|it| it.kind == "mount");
    match kinds.next() {
        Some(namespace) if !joined(&namespace) => Ok(()),
        _ => Err(
            "without a mount namespace of its own a container's mounts would be the host's; hint: \
             give it one",
        ),
    }
}

/// Whether a hook in the container can mount its volumes; if not, why.
pub(super) fn hook_can_mount(
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
            "in a time namespace a hook can't tell who lives; hint: set mount_mode = \"bind\" in \
             runcrust's configuration",
        );
    }
    Ok(())
}

/// A destination without what says nothing: delegates take `..` at the root for the root.
fn in_order(destination: &Path) -> PathBuf {
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
