//! What a create comes to: decided from the config, the node and the records, before anything is
//! done. A value, printable and tested without root.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crust_state::config::SandboxMode;
use crust_state::crust::EntryError;
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::StateError;
use crust_state::{Config, TargetPath};

use crate::matching::{Match, MatchError, Node, match_source};
use crate::oci::{Mount, Namespace};
use crate::role::{Role, RoleError};

/// What a create comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Nothing of ours: the delegate gets the bundle as it is.
    PassOn,
    /// A sandbox that will hold volumes.
    Sandbox(SandboxPlan),
    /// A pod's container with volumes.
    Member(MemberPlan),
}

/// A sandbox that will hold volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SandboxPlan {
    pub(crate) pod_uid: String,
    /// Those that are staged for the pod now.
    pub(crate) volumes: Vec<TargetPath>,
}

/// A pod's container with volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemberPlan {
    /// The sandbox's own record, not what annotations say of it.
    pub(crate) sandbox: SandboxRecord,
    pub(crate) mounts: Vec<PlannedMount>,
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
}

/// What planning asks beside the mounts.
pub(crate) trait Records: Node {
    /// The volumes that are staged for a pod.
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError>;
    /// The record of a sandbox.
    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError>;
}

/// Why a container isn't created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("mount {destination}: {source}")]
    Match {
        destination: String,
        source: MatchError,
    },
    #[error("volume {volume}: {source}")]
    Staged { volume: String, source: EntryError },
    #[error("getdents64 {}: {source}", directory.display())]
    Listing {
        directory: PathBuf,
        source: std::io::Error,
    },
    #[error("sandbox {id}: {source}")]
    Sandbox { id: String, source: StateError },
    #[error(
        "volume {volume}: there is no record of the pod's sandbox {sandbox}: nothing was staged for \
         its pod when it was made, or the record was lost; hint: let the pod be made anew, or set sandbox = \"always\" \
         in runcrust's configuration"
    )]
    NoSandboxRecord { volume: String, sandbox: String },
    #[error(
        "volume {volume}: its target path is of pod {owner}, and sandbox {sandbox} was made for \
         pod {pod}"
    )]
    OtherPod {
        volume: String,
        owner: String,
        sandbox: String,
        pod: String,
    },
    #[error(
        "volume {volume}: the config joins namespace {path}, and sandbox {sandbox} is process \
         {pid}"
    )]
    OtherNamespace {
        volume: String,
        path: String,
        sandbox: String,
        pid: i32,
    },
    #[error("volume {volume}: {source}")]
    Role { volume: String, source: RoleError },
    #[error("volume {volume}: {what}")]
    Unsupported { volume: String, what: &'static str },
}

/// What of a config matters.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) role: Result<Role, RoleError>,
    /// The bundle's directory.
    pub(crate) bundle: &'a Path,
    pub(crate) mounts: &'a [Mount<'a>],
    pub(crate) namespaces: &'a [Namespace<'a>],
    /// `restore` instead of `create` or `run`.
    pub(crate) restores: bool,
}

const NO_USER_NAMESPACE: &str = "deferred volumes in a user namespace aren't supported by this \
     version; hint: leave hostUsers unset";

impl Facts<'_> {
    fn in_user_namespace(&self) -> bool {
        self.namespaces
            .iter()
            .any(|namespace| namespace.kind == "user")
    }

    fn joins_a_process(&self) -> bool {
        let mut joined = self.namespaces.iter().filter_map(|it| it.path.as_deref());
        joined.any(|path| path.starts_with("/proc/"))
    }
}

/// Plans a create.
pub(crate) fn plan(
    facts: Facts<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Plan, PlanError> {
    let mounts = matched(&facts, config, records)?;
    let Some(first) = mounts.first() else {
        // What a config without volumes says of its pod is between it and the delegate.
        return match &facts.role {
            Ok(Role::Sandbox {
                pod_uid: Some(pod_uid),
            }) => sandbox(pod_uid, &facts, config, records),
            _ => Ok(Plan::PassOn),
        };
    };
    let volume = || first.found.volume.volume_name();
    let unsupported = |what| {
        Err(PlanError::Unsupported {
            volume: volume(),
            what,
        })
    };
    let in_user_namespace = facts.in_user_namespace();
    let role = facts.role.map_err(|source| PlanError::Role {
        volume: volume(),
        source,
    })?;
    let Role::Member { sandbox_id } = &role else {
        return unsupported(
            "a deferred volume needs a pod's sandbox to be mounted in, and this container isn't in \
             one; hint: bundles without a sandbox aren't supported by this version",
        );
    };
    if facts.restores {
        return unsupported("restoring a container with deferred volumes isn't supported");
    }
    if in_user_namespace {
        return unsupported(NO_USER_NAMESPACE);
    }
    let Some(sandbox) = records.sandbox(sandbox_id)? else {
        return Err(PlanError::NoSandboxRecord {
            volume: volume(),
            sandbox: sandbox_id.clone(),
        });
    };
    check_namespaces(&volume(), facts.namespaces, &sandbox)?;
    for mount in &mounts {
        check_pod(&mount.found.volume, &sandbox)?;
    }
    Ok(Plan::Member(MemberPlan { sandbox, mounts }))
}

fn matched(
    facts: &Facts<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Vec<PlannedMount>, PlanError> {
    let mut mounts = Vec::new();
    for mount in facts.mounts {
        let Some(given) = &mount.source else {
            continue;
        };
        // The delegate takes a relative bind source from the bundle.
        let source = if is_bind(mount) && !given.starts_with('/') {
            let path = facts.bundle.join(&**given);
            Cow::Owned(path.to_string_lossy().into_owned())
        } else {
            Cow::Borrowed(&**given)
        };
        let found = match_source(&source, config, records).map_err(|source| PlanError::Match {
            destination: mount.destination.to_string(),
            source,
        })?;
        let Some(found) = found else { continue };
        if !is_bind(mount) {
            let (volume, what) = (found.volume.volume_name(), "its mount isn't a bind mount");
            return Err(PlanError::Unsupported { volume, what });
        }
        mounts.push(PlannedMount {
            index: mount.index,
            destination: PathBuf::from(&*mount.destination),
            source: given.to_string(),
            found,
            read_only: is_read_only(mount),
        });
    }
    Ok(mounts)
}

/// The delegate binds a mount by its options, whatever its type (runtime-spec, "Mounts").
fn is_bind(mount: &Mount<'_>) -> bool {
    mount.kind.as_deref() == Some("bind")
        || mount
            .options
            .iter()
            .any(|option| option == "bind" || option == "rbind")
}

/// Of options that contradict each other the last one counts.
fn is_read_only(mount: &Mount<'_>) -> bool {
    let mut options = mount.options.iter().rev();
    let last = options.find(|option| matches!(&***option, "ro" | "rro" | "rw" | "rrw"));
    last.is_some_and(|option| option.ends_with("ro"))
}

fn sandbox(
    pod_uid: &str,
    facts: &Facts<'_>,
    config: &Config,
    records: &impl Records,
) -> Result<Plan, PlanError> {
    let volumes = records.staged_for_pod(pod_uid)?;
    let Some(first) = volumes.first().map(TargetPath::volume_name) else {
        if config.sandbox == SandboxMode::Auto || facts.restores {
            return Ok(Plan::PassOn);
        }
        let pod_uid = pod_uid.to_owned();
        return Ok(Plan::Sandbox(SandboxPlan { pod_uid, volumes }));
    };
    let refused = if facts.restores {
        Some("restoring a sandbox with deferred volumes isn't supported")
    } else if facts.in_user_namespace() {
        Some(NO_USER_NAMESPACE)
    } else if facts.joins_a_process() {
        Some("a sandbox that joins another process's namespaces isn't the pod's own")
    } else {
        None
    };
    match refused {
        Some(what) => Err(PlanError::Unsupported {
            volume: first,
            what,
        }),
        None => Ok(Plan::Sandbox(SandboxPlan {
            pod_uid: pod_uid.to_owned(),
            volumes,
        })),
    }
}

/// Annotations can be set by others, and must open neither another pod's volume …
fn check_pod(volume: &TargetPath, sandbox: &SandboxRecord) -> Result<(), PlanError> {
    match volume.pod_uid() {
        Some(owner) if owner != sandbox.pod_uid.as_str() => Err(PlanError::OtherPod {
            volume: volume.volume_name(),
            owner: owner.to_string_lossy().into_owned(),
            sandbox: sandbox.id.clone(),
            pod: sandbox.pod_uid.clone(),
        }),
        _ => Ok(()),
    }
}

/// … nor another pod's namespaces. The pid namespace may be that of another container of the pod
/// (an ephemeral container's target), so it says nothing.
fn check_namespaces(
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

#[cfg(test)]
mod tests;
