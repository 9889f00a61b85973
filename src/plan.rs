//! Plans a create from the config, the node and the records, before anything is changed. A plan is a value: `explain`
//! prints it, and tests need no root.

mod checks;
mod error;
mod fast_path;
mod input;
mod mounts;
mod propagation;
#[cfg(feature = "fuzzing")]
pub(crate) mod properties;
mod types;

use crust_state::config::{MountMode, SandboxMode};
use crust_state::{Config, TargetPath};
use crust_volume::sandbox::SANDBOX_CRUST_DIR;

use crate::role::Role;

pub(crate) use error::PlanError;
pub(crate) use fast_path::{ConfigReading, RECREATED_BUNDLE};
pub(crate) use input::{PlanInput, PlanLookup, SourceLookups};
pub(crate) use mounts::plan_mount;
pub(crate) use types::{ContainerPlan, MountedIn, Plan, PlannedMount, SandboxPlan, VolumeOwner};

pub(crate) fn plan(
    mut input: PlanInput<'_>,
    config: &Config,
    node: &impl PlanLookup,
) -> Result<Plan, PlanError> {
    let mounts = mounts::plan_mounts(&mut input, config, node)?;
    let Some(first) = mounts.first() else {
        // Without a volume, an invalid role in the config is left to the delegate.
        return match &input.role {
            Ok(Role::Sandbox {
                pod_uid: Some(pod_uid),
            }) => sandbox(pod_uid, &input, config, node),
            _ => Ok(Plan::PassThrough),
        };
    };
    let volume = first.found.volume.volume_name();
    let unsupported = |reason| {
        let volume = volume.clone();
        PlanError::Unsupported { volume, reason }
    };
    let mount_mode = config.mount_mode;
    checks::check_mount_namespace(input.namespaces).map_err(unsupported)?;
    propagation::check(&input, &mounts, node)?;
    if mount_mode == MountMode::Hook {
        checks::check_hidden_mounts(input.mounts, &mounts)?;
        checks::check_hook_support(input.namespaces, input.restores).map_err(unsupported)?;
    }
    let ids = input.ids(&volume)?;
    let label = input::label(input.details, node);
    let label = label.map_err(|source| PlanError::document(&volume, source))?;
    let role = input.role.map_err(|source| PlanError::Role {
        volume: volume.clone(),
        source,
    })?;
    let (record, owner) = match role {
        Role::Sandbox { .. } => {
            return Err(unsupported(
                "the sandbox's own config has a mount of it, but a sandbox only holds volumes for the pod's containers",
            ));
        }
        Role::Standalone => (None, VolumeOwner::default()),
        Role::AppContainer {
            sandbox_id,
            pod_uid,
        } => {
            let record = node.sandbox(&sandbox_id)?;
            let uid = match (&record, pod_uid) {
                (Some(record), Some(uid)) if uid != record.pod_uid => {
                    return Err(PlanError::OtherPod {
                        volume,
                        owner: uid,
                        sandbox: sandbox_id,
                        pod: record.pod_uid.clone(),
                    });
                }
                (Some(record), _) => record.pod_uid.clone(),
                (None, Some(uid)) => uid,
                (None, None) => {
                    return Err(no_sandbox_record(first, sandbox_id, config));
                }
            };
            if let Some(record) = &record {
                checks::check_namespaces(&volume, input.namespaces, record)?;
            }
            for mount in &mounts {
                checks::check_pod(&mount.found.volume, &sandbox_id, &uid)?;
            }
            let owner = VolumeOwner {
                pod_uid: Some(uid),
                sandbox: Some(sandbox_id),
            };
            (record, owner)
        }
    };
    let mounted_in = match (mount_mode, record) {
        (MountMode::Bind, Some(record)) => MountedIn::Sandbox(record),
        (MountMode::Bind, None) => MountedIn::Container(owner),
        (MountMode::Hook, _) => MountedIn::Hook(owner),
    };
    Ok(Plan::Container(ContainerPlan {
        mounted_in,
        ids,
        label,
        mounts,
    }))
}

/// Returns the error for a volume of a pod whose sandbox has no record. The create of a sandbox looks for volumes only
/// below `kubelet_dirs`. If the volume is below another kubelet directory, the error names that directory.
fn no_sandbox_record(mount: &PlannedMount, sandbox: String, config: &Config) -> PlanError {
    let spellings = [Some(&mount.found.volume), mount.found.resolved.as_ref()];
    let roots = spellings.into_iter().flatten();
    let mut roots = roots.filter_map(TargetPath::kubelet_dir);
    let volume = mount.found.volume.volume_name();
    match roots.next() {
        Some(root) if !config.kubelet_dirs.iter().any(|it| it == root) => {
            let root = root.display().to_string();
            PlanError::UnlistedKubeletDir {
                volume,
                sandbox,
                root,
            }
        }
        _ => PlanError::NoSandboxRecord { volume, sandbox },
    }
}

/// Refuses a config in which a delegate could read a mount of a volume that the plan didn't see. The delegate gets the
/// config as its caller wrote it, and may read a repeated key differently.
pub(crate) fn check_pass_through(
    reading: ConfigReading<'_, '_>,
    config: &Config,
    node: &impl PlanLookup,
) -> Result<(), PlanError> {
    match reading.first_volume(config, node, &mut SourceLookups::default()) {
        Some(subject) => Err(PlanError::AmbiguousConfig { subject }),
        None => Ok(()),
    }
}

fn sandbox(
    pod_uid: &str,
    input: &PlanInput<'_>,
    config: &Config,
    node: &impl PlanLookup,
) -> Result<Plan, PlanError> {
    let mut volumes = node.staged_for_pod(pod_uid)?;
    let label = |volume: &str| {
        let label = input::label(input.details, node);
        label.map_err(|source| PlanError::document(volume, source))
    };
    let Some(first) = volumes.first().map(TargetPath::volume_name) else {
        let can_hold_volumes =
            !input.restores && checks::check_mount_namespace(input.namespaces).is_ok();
        if config.sandbox == SandboxMode::Auto || !can_hold_volumes {
            return Ok(Plan::PassThrough);
        }
        return Ok(Plan::Sandbox(SandboxPlan {
            pod_uid: pod_uid.to_owned(),
            directory: SANDBOX_CRUST_DIR,
            volumes,
            label: label(pod_uid)?,
        }));
    };
    let obstacle = if input.restores {
        Some("a sandbox can't be restored with deferred volumes in it; hint: recreate the pod")
    } else if input.joins_process_namespace() {
        Some("a sandbox that joins another process's namespaces isn't the pod's own sandbox")
    } else {
        checks::check_mount_namespace(input.namespaces).err()
    };
    if let Some(reason) = obstacle {
        return Err(PlanError::Unsupported {
            volume: first,
            reason,
        });
    }
    let label = label(&first)?;
    if config.mount_mode == MountMode::Hook {
        // The containers mount the volumes. The sandbox's record says which pod's volumes they may have.
        volumes.clear();
    }
    Ok(Plan::Sandbox(SandboxPlan {
        pod_uid: pod_uid.to_owned(),
        directory: SANDBOX_CRUST_DIR,
        volumes,
        label,
    }))
}

#[cfg(test)]
mod tests;
