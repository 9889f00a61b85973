//! The explanation, as a value; its JSON form is that of `crust explain --json`.

use std::collections::BTreeMap;

use crust_mount::ids::{IdRange, Ids};
use crust_mount::sandbox::CRUST;
use crust_state::bundle::{AddedElement, BundleRecord, RemovedMount, ReplacedSource};
use crust_state::config::MountMode;
use crust_state::record::User;
use serde::Serialize;

use super::shown;
use crate::matching::{By, Match};
use crate::plan::{ContainerPlan, Pod, SandboxPlan};
use crate::role::{Role, RoleError};
use crate::users;

/// What a create would come to.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Explanation {
    /// The file that was read.
    pub(crate) config: String,
    /// An earlier create of the bundle rewrote it; all else is of what it was before.
    pub(crate) rewritten: bool,
    /// `None`, as everything below, where a create is refused before it comes to that.
    pub(crate) role: Option<RoleTold>,
    pub(crate) mounts: Vec<MountTold>,
    pub(crate) plan: Option<PlanTold>,
    pub(crate) volumes: Vec<VolumeTold>,
    /// What a create is refused with: its error is the first.
    pub(crate) refusals: Vec<String>,
    pub(crate) rewrite: Option<RewriteTold>,
    /// What of the config would change, with a line for each value.
    pub(crate) diff: String,
}

/// What the container is to its pod.
#[derive(Debug, Serialize)]
pub(crate) struct RoleTold {
    pub(crate) kind: Kind,
    pub(crate) pod_uid: Option<String>,
    pub(crate) sandbox: Option<String>,
    /// What tells so.
    pub(crate) annotations: BTreeMap<&'static str, String>,
    /// Why nothing does.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Sandbox,
    Container,
    Standalone,
    Unknown,
}

/// One of the config's mounts.
#[derive(Debug, Serialize)]
pub(crate) struct MountTold {
    pub(crate) index: usize,
    pub(crate) destination: String,
    pub(crate) source: Option<String>,
    #[serde(rename = "match")]
    pub(crate) found: Option<MatchTold>,
    /// Why it may be that it doesn't match.
    pub(crate) note: Option<String>,
    pub(crate) error: Option<String>,
}

/// The volume that a mount is of.
#[derive(Debug, Serialize)]
pub(crate) struct MatchTold {
    pub(crate) volume: String,
    pub(crate) target_path: String,
    /// `exact`, `parent` or `subpath-bind`.
    pub(crate) by: &'static str,
    /// The parent.
    pub(crate) prefix: Option<String>,
    /// The source with its links resolved, where that is what matched.
    pub(crate) resolved: Option<String>,
    /// Empty for all of the volume.
    pub(crate) subpath: String,
    pub(crate) read_only: bool,
    /// The mount has id mappings of its own, which are the delegate's to make.
    pub(crate) maps_ids: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum PlanTold {
    PassOn,
    Sandbox {
        pod_uid: String,
        /// Where the volumes are mounted in it.
        place: &'static str,
        /// It gets the devices, too.
        devices: bool,
    },
    Container {
        /// `sandbox`: once, in the pod's. `container`: for this one, by the create. `hook`: in it, by
        /// a hook of its.
        mounted_in: &'static str,
        pod_uid: Option<String>,
        sandbox: Option<String>,
        /// The sandbox's first process.
        process: Option<i32>,
        ids: Option<IdsTold>,
    },
}

/// Whose ids the files' owners are shown as.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdsTold {
    /// Those of a user namespace.
    Joins(String),
    /// Those of one that the delegate makes: ranges of (first id, the one on the host, how many).
    New {
        users: Vec<(u32, u32, u32)>,
        groups: Vec<(u32, u32, u32)>,
    },
}

/// A volume of the container, or of the pod that the sandbox is of.
#[derive(Debug, Serialize)]
pub(crate) struct VolumeTold {
    pub(crate) volume: String,
    pub(crate) target_path: String,
    #[serde(flatten)]
    pub(crate) staged: Option<StagedTold>,
    /// Why it can't be had.
    pub(crate) problem: Option<String>,
}

/// What was staged, as it would be mounted.
#[derive(Debug, Serialize)]
pub(crate) struct StagedTold {
    /// `crust` or `kata`.
    pub(crate) layout: &'static str,
    pub(crate) device: String,
    /// Major and minor.
    pub(crate) device_number: String,
    pub(crate) fstype: String,
    /// The superblock's.
    pub(crate) options: Vec<String>,
    pub(crate) read_only: bool,
    pub(crate) fs_group: Option<u32>,
    pub(crate) fs_group_change_policy: Option<&'static str>,
    pub(crate) access_mode: Option<&'static str>,
    /// The container gets the raw device as well.
    pub(crate) device_node: bool,
    /// `first`, `joins` or `mounted`.
    pub(crate) access: Option<&'static str>,
    /// Who lives and has it.
    #[serde(serialize_with = "users::objects")]
    pub(crate) users: Vec<User>,
}

/// What a record would keep of the rewrite (`<state_dir>/bundles/<digest>.json`).
#[derive(Debug, Serialize)]
pub(crate) struct RewriteTold {
    sources: Vec<ReplacedSource>,
    added: Vec<AddedElement>,
    removed: Vec<RemovedMount>,
}

impl From<BundleRecord> for RewriteTold {
    fn from(record: BundleRecord) -> Self {
        Self {
            sources: record.sources,
            added: record.added,
            removed: record.removed,
        }
    }
}

impl RoleTold {
    pub(super) fn new(
        role: Result<Role, RoleError>,
        annotations: BTreeMap<&'static str, String>,
    ) -> Self {
        let error = role.as_ref().err().map(ToString::to_string);
        let (kind, pod_uid, sandbox) = match role {
            Ok(Role::Sandbox { pod_uid }) => (Kind::Sandbox, pod_uid, None),
            Ok(Role::Member {
                sandbox_id,
                pod_uid,
            }) => (Kind::Container, pod_uid, Some(sandbox_id)),
            Ok(Role::Standalone) => (Kind::Standalone, None, None),
            Err(_) => (Kind::Unknown, None, None),
        };
        Self {
            kind,
            pod_uid,
            sandbox,
            annotations,
            error,
        }
    }
}

impl MatchTold {
    pub(super) fn new(found: &Match, read_only: bool, maps_ids: bool) -> Self {
        let (by, prefix) = match &found.by {
            By::Exact => ("exact", None),
            By::Parent(parent) => ("parent", Some(parent.to_string())),
            By::SubpathBind => ("subpath-bind", None),
        };
        Self {
            volume: found.volume.volume_name(),
            target_path: found.volume.to_string(),
            by,
            prefix,
            resolved: found.resolved.as_ref().map(ToString::to_string),
            subpath: shown(&found.subpath),
            read_only,
            maps_ids,
        }
    }
}

impl PlanTold {
    pub(super) fn of_sandbox(plan: &SandboxPlan) -> Self {
        Self::Sandbox {
            pod_uid: plan.pod_uid.clone(),
            place: CRUST,
            devices: plan.devices,
        }
    }

    pub(super) fn of_container(plan: &ContainerPlan) -> Self {
        let (mounted_in, pod_uid, sandbox, process) = match &plan.pod {
            Pod::Sandbox(record) => (
                "sandbox",
                Some(record.pod_uid.clone()),
                Some(record.id.clone()),
                Some(record.process.pid),
            ),
            Pod::Own { uid, sandbox } => {
                let by_hook = plan.way == MountMode::Hook;
                let place = if by_hook { "hook" } else { "container" };
                (place, uid.clone(), sandbox.clone(), None)
            }
        };
        Self::Container {
            mounted_in,
            pod_uid,
            sandbox,
            process,
            ids: plan.ids.as_ref().map(IdsTold::from),
        }
    }
}

impl From<&Ids> for IdsTold {
    fn from(ids: &Ids) -> Self {
        let ranges = |ranges: &[IdRange]| {
            let range = |it: &IdRange| (it.container, it.host, it.size);
            ranges.iter().map(range).collect()
        };
        match ids {
            Ids::Joined(path) => Self::Joins(shown(path)),
            Ids::New { users, groups } => Self::New {
                users: ranges(users),
                groups: ranges(groups),
            },
        }
    }
}
