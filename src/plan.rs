//! What a create comes to: decided from the config, the node and the records, before anything is
//! done. A value, printable and tested without root.

mod checks;
mod error;
mod mounts;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crust_mount::ids::{IdRange, Ids};
use crust_state::config::{MountMode, SandboxMode};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, TargetPath};

use crate::matching::{Match, Node};
use crate::oci::{Document, DocumentError, IdMapping, Mount, Namespace};
use crate::role::{Role, RoleError};

pub(crate) use error::PlanError;

/// What a create comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing of ours: the delegate gets the bundle as it is.
    PassOn,
    /// A sandbox that will hold volumes.
    Sandbox(SandboxPlan),
    /// A container with volumes.
    Container(ContainerPlan),
}

/// A sandbox that will hold volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SandboxPlan {
    pub(crate) pod_uid: String,
    /// Those that are staged for the pod now, where the sandbox mounts them.
    pub(crate) volumes: Vec<TargetPath>,
    /// It gets the devices too: only without a user namespace can the delegate make them.
    pub(crate) devices: bool,
}

/// A container with volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContainerPlan {
    pub(crate) pod: Pod,
    pub(crate) way: MountMode,
    /// The ids that its mounts show, where it has a user namespace.
    pub(crate) ids: Option<Ids>,
    pub(crate) mounts: Vec<PlannedMount>,
}

/// Where a container's volumes are mounted, and who it is to them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pod {
    /// In the pod's sandbox, by the sandbox's own record, not what annotations say of it.
    Sandbox(SandboxRecord),
    /// For the container alone: there is no sandbox process, or a hook mounts in each container.
    Own {
        /// The pod; unknown where the caller has none.
        uid: Option<String>,
        /// The sandbox that the pod has nevertheless.
        sandbox: Option<String>,
    },
}

/// A mount that will be of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlannedMount {
    /// Its place in the config's list, which it keeps: destinations aren't unique.
    pub(crate) index: usize,
    pub(crate) destination: PathBuf,
    /// Its source as it was given.
    pub(crate) source: String,
    pub(crate) found: Match,
    /// Its options end up read-only.
    pub(crate) read_only: bool,
    /// The delegate maps its ids.
    pub(crate) maps_ids: bool,
    pub(crate) options: Vec<String>,
}

impl ContainerPlan {
    /// Each volume once.
    pub(crate) fn volumes(&self) -> Vec<&TargetPath> {
        let volumes = self.mounts.iter().map(|mount| &mount.found.volume);
        let mut volumes: Vec<&TargetPath> = volumes.collect();
        volumes.sort();
        volumes.dedup();
        volumes
    }

    /// Its volumes, for an error that isn't of one of them.
    pub(crate) fn names(&self) -> String {
        names(self.volumes())
    }

    /// The mounts of a volume.
    pub(crate) fn mounts_of(&self, volume: &TargetPath) -> Vec<&PlannedMount> {
        let mounts = self.mounts.iter();
        mounts
            .filter(|mount| mount.found.volume == *volume)
            .collect()
    }
}

impl SandboxPlan {
    /// Its volumes, for an error that isn't of one of them.
    pub(crate) fn names(&self) -> String {
        names(&self.volumes)
    }
}

fn names<'a>(volumes: impl IntoIterator<Item = &'a TargetPath>) -> String {
    let names: Vec<_> = volumes.into_iter().map(TargetPath::volume_name).collect();
    match names.as_slice() {
        [] => "a sandbox for volumes".to_owned(),
        names => format!("volume {}", names.join(", ")),
    }
}

impl Pod {
    /// Whom a volume belongs to as long as container `id` has it. A container without a pod
    /// stands for the pod that the target path names, or else for itself.
    pub(crate) fn uid(&self, volume: &TargetPath, id: &str) -> String {
        match self {
            Self::Sandbox(record) => record.pod_uid.clone(),
            Self::Own { uid: Some(uid), .. } => uid.clone(),
            Self::Own { uid: None, .. } => {
                let named = volume
                    .pod_uid()
                    .map(|uid| uid.to_string_lossy().into_owned());
                named.unwrap_or_else(|| id.to_owned())
            }
        }
    }

    /// The sandbox of container `id`; itself where there is none.
    pub(crate) fn sandbox<'a>(&'a self, id: &'a str) -> &'a str {
        match self {
            Self::Sandbox(record) => &record.id,
            Self::Own { sandbox, .. } => sandbox.as_deref().unwrap_or(id),
        }
    }
}

/// What planning asks beside the mounts.
pub(crate) trait Records: Node {
    /// The volumes that are staged for a pod.
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError>;
    /// The record of a sandbox.
    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError>;
}

/// What of a config matters to volumes alone.
pub(crate) trait Details {
    /// Of users and of groups.
    fn id_mappings(&self) -> Result<[Vec<IdMapping>; 2], DocumentError>;
    /// `linux.rootfsPropagation`.
    fn root_propagation(&self) -> Result<Option<Cow<'_, str>>, DocumentError>;
}

impl Details for Document<'_> {
    fn id_mappings(&self) -> Result<[Vec<IdMapping>; 2], DocumentError> {
        Ok([self.uid_mappings()?, self.gid_mappings()?])
    }

    fn root_propagation(&self) -> Result<Option<Cow<'_, str>>, DocumentError> {
        self.root_propagation()
    }
}

/// What of a config matters.
pub(crate) struct Facts<'a> {
    pub(crate) role: Result<Role, RoleError>,
    /// The bundle's directory.
    pub(crate) bundle: &'a Path,
    pub(crate) mounts: &'a [Mount<'a>],
    pub(crate) namespaces: &'a [Namespace<'a>],
    /// Asked only where a volume is mounted.
    pub(crate) details: &'a dyn Details,
    /// `restore` instead of `create` or `run`.
    pub(crate) restores: bool,
}

impl Facts<'_> {
    fn user_namespace(&self) -> Option<&Namespace<'_>> {
        let mut namespaces = self.namespaces.iter();
        namespaces.find(|namespace| namespace.kind == "user")
    }

    fn joins_a_process(&self) -> bool {
        let mut joined = self.namespaces.iter().filter_map(|it| it.path.as_deref());
        joined.any(|path| path.starts_with("/proc/"))
    }

    /// The ids that the container's mounts are to show, where it has a user namespace.
    fn ids(&self, volume: &str) -> Result<Option<Ids>, PlanError> {
        let Some(namespace) = self.user_namespace() else {
            return Ok(None);
        };
        if let Some(path) = namespace.path.as_deref().filter(|path| !path.is_empty()) {
            return Ok(Some(Ids::Joined(Path::new(path).into())));
        }
        let mappings = self.details.id_mappings();
        let mappings = mappings.map_err(|source| PlanError::document(volume, source))?;
        let [users, groups] = mappings.map(|mappings| ranges(&mappings));
        if users.is_empty() || groups.is_empty() {
            return Err(PlanError::Unsupported {
                volume: volume.to_owned(),
                what: "the container has a user namespace without id mappings; hint: \
                       linux.uidMappings and linux.gidMappings say what its ids are on the host",
            });
        }
        Ok(Some(Ids::New { users, groups }))
    }
}

fn ranges(mappings: &[IdMapping]) -> Vec<IdRange> {
    let range = |mapping: &IdMapping| IdRange {
        container: mapping.container,
        host: mapping.host,
        size: mapping.size,
    };
    mappings.iter().map(range).collect()
}

/// Plans a create.
pub(crate) fn plan(
    facts: Facts<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Plan, PlanError> {
    let mounts = mounts::matched(&facts, config, records)?;
    let Some(first) = mounts.first() else {
        // What a config without volumes says of its pod is between it and the delegate.
        return match &facts.role {
            Ok(Role::Sandbox {
                pod_uid: Some(pod_uid),
            }) => sandbox(pod_uid, &facts, config, records),
            _ => Ok(Plan::PassOn),
        };
    };
    let volume = first.found.volume.volume_name();
    let unsupported = |what| {
        let volume = volume.clone();
        PlanError::Unsupported { volume, what }
    };
    let way = config.mount_mode;
    checks::has_mounts_of_its_own(facts.namespaces).map_err(unsupported)?;
    checks::nothing_propagates(&facts, &mounts)?;
    if way == MountMode::Hook {
        checks::nothing_is_hidden(facts.mounts, &mounts)?;
        checks::hook_can_mount(facts.namespaces, facts.restores).map_err(unsupported)?;
    }
    let ids = facts.ids(&volume)?;
    let role = facts.role.map_err(|source| PlanError::Role {
        volume: volume.clone(),
        source,
    })?;
    let pod = match role {
        Role::Sandbox { .. } => {
            return Err(unsupported(
                "it is mounted in a sandbox's own config, and sandboxes only hold volumes for \
                 containers",
            ));
        }
        Role::Standalone => Pod::Own {
            uid: None,
            sandbox: None,
        },
        Role::Member {
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
                    return Err(PlanError::NoSandboxRecord {
                        volume,
                        sandbox: sandbox_id,
                    });
                }
            };
            if let Some(record) = &record {
                checks::namespaces(&volume, facts.namespaces, record)?;
            }
            for mount in &mounts {
                checks::pod(&mount.found.volume, &sandbox_id, &uid)?;
            }
            match (record, way) {
                (Some(record), MountMode::Bind) => Pod::Sandbox(record),
                _ => Pod::Own {
                    uid: Some(uid),
                    sandbox: Some(sandbox_id),
                },
            }
        }
    };
    Ok(Plan::Container(ContainerPlan {
        pod,
        way,
        ids,
        mounts,
    }))
}

fn sandbox(
    pod_uid: &str,
    facts: &Facts<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Plan, PlanError> {
    let mut volumes = records.staged_for_pod(pod_uid)?;
    let Some(first) = volumes.first().map(TargetPath::volume_name) else {
        let holds = !facts.restores && checks::has_mounts_of_its_own(facts.namespaces).is_ok();
        if config.sandbox == SandboxMode::Auto || !holds {
            return Ok(Plan::PassOn);
        }
        return Ok(Plan::Sandbox(SandboxPlan {
            pod_uid: pod_uid.to_owned(),
            volumes,
            devices: false,
        }));
    };
    let refused = if facts.restores {
        Some(
            "a sandbox can't be restored with deferred volumes in it; hint: let the pod be made anew",
        )
    } else if facts.joins_a_process() {
        Some("a sandbox that joins another process's namespaces isn't the pod's own")
    } else {
        checks::has_mounts_of_its_own(facts.namespaces).err()
    };
    if let Some(what) = refused {
        return Err(PlanError::Unsupported {
            volume: first,
            what,
        });
    }
    if config.mount_mode == MountMode::Hook {
        // The containers mount them; the sandbox's record says whose they may have.
        volumes.clear();
    }
    Ok(Plan::Sandbox(SandboxPlan {
        pod_uid: pod_uid.to_owned(),
        volumes,
        devices: facts.user_namespace().is_none(),
    }))
}

#[cfg(test)]
mod tests;
