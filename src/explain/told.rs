//! The explanation, as a value; its JSON form is that of `crust explain --json`.

use std::collections::BTreeMap;

use crust_blockfs::ids::{IdRange, Ids};
use crust_state::bundle::{AddedElement, BundleRecord, RemovedMount, ReplacedSource};
use crust_state::config::MountMode;
use crust_state::record::User;
use crust_volume::sandbox::CRUST;
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
    #[serde(flatten)]
    pub(crate) kind: Kind,
    /// Annotations that the role was derived from.
    pub(crate) annotations: BTreeMap<&'static str, String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Kind {
    Sandbox {
        pod_uid: Option<String>,
    },
    Container {
        sandbox: String,
        pod_uid: Option<String>,
    },
    Standalone,
    /// The annotations contradict each other.
    Unknown {
        error: String,
    },
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
    #[serde(flatten)]
    pub(crate) by: ByTold,
    /// The source with its links resolved, where that is what matched.
    pub(crate) resolved: Option<String>,
    /// Empty for all of the volume.
    pub(crate) subpath: String,
    pub(crate) read_only: bool,
    /// The mount has id mappings of its own, which are the delegate's to make.
    pub(crate) maps_ids: bool,
}

/// What of the source led to it.
#[derive(Debug, Serialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub(crate) enum ByTold {
    Exact,
    Parent { prefix: String },
    SubpathBind,
    Bind,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum PlanTold {
    PassOn,
    Sandbox {
        pod_uid: String,
        /// Where the volumes are mounted in it.
        place: &'static str,
    },
    Container {
        #[serde(flatten)]
        place: Place,
        /// Whose the volumes are meanwhile; without one, the container's, or the pod's that their
        /// target paths name.
        pod_uid: Option<String>,
        ids: Option<IdsTold>,
    },
}

/// Where the volumes of a container are mounted.
#[derive(Debug, Serialize)]
#[serde(tag = "mounted_in", rename_all = "kebab-case")]
pub(crate) enum Place {
    /// Once, in the pod's sandbox.
    Sandbox {
        sandbox: String,
        /// Its first process.
        process: i32,
    },
    /// For this container, by the create. The pod may have a sandbox that is no container.
    Container { sandbox: Option<String> },
    /// In this container, by a hook of its.
    Hook { sandbox: Option<String> },
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
    pub(crate) layout: Layout,
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
    /// `None` where there is a problem.
    pub(crate) access: Option<AccessTold>,
    /// Who lives and has it.
    #[serde(serialize_with = "users::objects")]
    pub(crate) users: Vec<User>,
}

/// Where it was staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    Crust,
    Kata,
}

/// How the pod comes to have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AccessTold {
    First,
    Joins,
    Mounted,
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
        let kind = match role {
            Ok(Role::Sandbox { pod_uid }) => Kind::Sandbox { pod_uid },
            Ok(Role::Member {
                sandbox_id,
                pod_uid,
            }) => Kind::Container {
                sandbox: sandbox_id,
                pod_uid,
            },
            Ok(Role::Standalone) => Kind::Standalone,
            Err(error) => Kind::Unknown {
                error: error.to_string(),
            },
        };
        Self { kind, annotations }
    }
}

impl MatchTold {
    pub(super) fn new(found: &Match, read_only: bool, maps_ids: bool) -> Self {
        Self {
            volume: found.volume.volume_name(),
            target_path: shown(found.volume.as_ref()),
            by: match &found.by {
                By::Exact => ByTold::Exact,
                By::Parent(parent) => ByTold::Parent {
                    prefix: parent.to_string(),
                },
                By::SubpathBind => ByTold::SubpathBind,
                By::Bind => ByTold::Bind,
            },
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
        }
    }

    pub(super) fn of_container(plan: &ContainerPlan) -> Self {
        let (place, pod_uid) = match &plan.pod {
            Pod::Sandbox(record) => {
                let place = Place::Sandbox {
                    sandbox: record.id.clone(),
                    process: record.process.pid,
                };
                (place, Some(record.pod_uid.clone()))
            }
            Pod::Own { uid, sandbox } => {
                let sandbox = sandbox.clone();
                let place = match plan.way {
                    MountMode::Bind => Place::Container { sandbox },
                    MountMode::Hook => Place::Hook { sandbox },
                };
                (place, uid.clone())
            }
        };
        Self::Container {
            place,
            pod_uid,
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
