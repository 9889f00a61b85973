//! Plans a create from the config, the node and the records, before anything is done. A plan is a value, which is
//! printed by `explain` and tested without root.

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
pub(crate) use fast_path::{CREATED_BEFORE, ConfigReading};
pub(crate) use input::{Lookups, PlanInput, Records};
pub(crate) use mounts::planned;
pub(crate) use types::{ContainerPlan, MountedIn, Plan, PlannedMount, SandboxPlan, VolumeOwner};

/// Plans a create.
pub(crate) fn plan(
    mut input: PlanInput<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Plan, PlanError> {
    let mounts = mounts::matched(&mut input, config, records)?;
    let Some(first) = mounts.first() else {
        // What a config without volumes says of its pod is between it and the delegate.
        return match &input.role {
            Ok(Role::Sandbox {
                pod_uid: Some(pod_uid),
            }) => sandbox(pod_uid, &input, config, records),
            _ => Ok(Plan::PassOn),
        };
    };
    let volume = first.found.volume.volume_name();
    let unsupported = |what| {
        let volume = volume.clone();
        PlanError::Unsupported { volume, what }
    };
    let way = config.mount_mode;
    checks::has_mounts_of_its_own(input.namespaces).map_err(unsupported)?;
    propagation::check(&input, &mounts, records)?;
    if way == MountMode::Hook {
        checks::nothing_is_hidden(input.mounts, &mounts)?;
        checks::hook_can_mount(input.namespaces, input.restores).map_err(unsupported)?;
    }
    let ids = input.ids(&volume)?;
    let label = input::label(input.details, records);
    let label = label.map_err(|source| PlanError::document(&volume, source))?;
    let role = input.role.map_err(|source| PlanError::Role {
        volume: volume.clone(),
        source,
    })?;
    let (record, owner) = match role {
        Role::Sandbox { .. } => {
            return Err(unsupported(
                "it is mounted in a sandbox's own config, and sandboxes only hold volumes for \
                 containers",
            ));
        }
        Role::Standalone => (None, VolumeOwner::default()),
        Role::AppContainer {
            sandbox_id,
            pod_uid,
        } => {
            let record = records.sandbox(&sandbox_id)?;
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
                checks::namespaces(&volume, input.namespaces, record)?;
            }
            for mount in &mounts {
                checks::pod(&mount.found.volume, &sandbox_id, &uid)?;
            }
            let owner = VolumeOwner {
                pod_uid: Some(uid),
                sandbox: Some(sandbox_id),
            };
            (record, owner)
        }
    };
    let mounted_in = match (way, record) {
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

/// Returns the error for a volume of a pod whose sandbox isn't on record: a sandbox's create looks for
/// volumes below `kubelet_dirs` alone.
fn no_sandbox_record(mount: &PlannedMount, sandbox: String, config: &Config) -> PlanError {
    let spellings = [Some(&mount.found.volume), mount.found.resolved.as_ref()];
    let roots = spellings.into_iter().flatten();
    let mut roots = roots.filter_map(TargetPath::kubelet_dir);
    let volume = mount.found.volume.volume_name();
    match roots.next() {
        Some(root) if !config.kubelet_dirs.iter().any(|it| it == root) => {
            let root = root.display().to_string();
            PlanError::OtherKubelet {
                volume,
                sandbox,
                root,
            }
        }
        _ => PlanError::NoSandboxRecord { volume, sandbox },
    }
}

/// Refuses a config whose volumes only a reading has that isn't ours: what passes on is what the
/// delegate reads.
pub(crate) fn passes_on(
    look: ConfigReading<'_, '_>,
    config: &Config,
    records: &impl Records,
) -> Result<(), PlanError> {
    match look.named_by_a_mount(config, records, &mut Lookups::default()) {
        Some(who) => Err(PlanError::OtherReading { who }),
        None => Ok(()),
    }
}

fn sandbox(
    pod_uid: &str,
    input: &PlanInput<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Plan, PlanError> {
    let mut volumes = records.staged_for_pod(pod_uid)?;
    let label = |volume: &str| {
        let label = input::label(input.details, records);
        label.map_err(|source| PlanError::document(volume, source))
    };
    let Some(first) = volumes.first().map(TargetPath::volume_name) else {
        let holds = !input.restores && checks::has_mounts_of_its_own(input.namespaces).is_ok();
        if config.sandbox == SandboxMode::Auto || !holds {
            return Ok(Plan::PassOn);
        }
        return Ok(Plan::Sandbox(SandboxPlan {
            pod_uid: pod_uid.to_owned(),
            place: SANDBOX_CRUST_DIR,
            volumes,
            label: label(pod_uid)?,
        }));
    };
    let refused = if input.restores {
        Some(
            "a sandbox can't be restored with deferred volumes in it; hint: let the pod be made anew",
        )
    } else if input.joins_a_process() {
        Some("a sandbox that joins another process's namespaces isn't the pod's own")
    } else {
        checks::has_mounts_of_its_own(input.namespaces).err()
    };
    if let Some(what) = refused {
        return Err(PlanError::Unsupported {
            volume: first,
            what,
        });
    }
    let label = label(&first)?;
    if config.mount_mode == MountMode::Hook {
        // The containers mount them; the sandbox's record says whose they may have.
        volumes.clear();
    }
    Ok(Plan::Sandbox(SandboxPlan {
        pod_uid: pod_uid.to_owned(),
        place: SANDBOX_CRUST_DIR,
        volumes,
        label,
    }))
}

#[cfg(test)]
mod tests;
