//! A plan, as a value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crust_blockfs::ids::Ids;
use crust_state::TargetPath;
use crust_state::config::MountMode;
use crust_state::sandbox::SandboxRecord;

use crate::matching::Match;

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
    /// The SELinux label that the volumes' files are to have.
    pub(crate) label: Option<String>,
}

/// A container with volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContainerPlan {
    pub(crate) pod: Pod,
    pub(crate) way: MountMode,
    /// The ids that its mounts show, where it has a user namespace.
    pub(crate) ids: Option<Ids>,
    /// The SELinux label that its volumes' files are to have.
    pub(crate) label: Option<String>,
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
    /// The label that its volumes are mounted with: a container that asks for none takes its
    /// sandbox's.
    pub(crate) fn label(&self) -> Option<&str> {
        let sandboxes = match &self.pod {
            Pod::Sandbox(record) => record.mount_label.as_deref(),
            Pod::Own { .. } => None,
        };
        self.label.as_deref().or(sandboxes)
    }

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

    /// The mounts of each volume.
    pub(crate) fn by_volume(&self) -> BTreeMap<&TargetPath, Vec<&PlannedMount>> {
        let mut volumes: BTreeMap<&TargetPath, Vec<&PlannedMount>> = BTreeMap::new();
        for mount in &self.mounts {
            volumes.entry(&mount.found.volume).or_default().push(mount);
        }
        volumes
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
