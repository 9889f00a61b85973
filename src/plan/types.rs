//! The types of a plan. Serialised, a plan is what `crust explain --json` prints (docs/protocol.md, "explain").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crust_blockfs::user_namespace::UserNamespace;
use crust_state::TargetPath;
use crust_state::config::MountMode;
use crust_state::sandbox::SandboxRecord;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::matching::{Match, MatchedBy};

/// The plan of a create.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// No volume is concerned: the delegate gets the bundle as it is.
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
    /// The directory of the sandbox where its volumes are mounted.
    pub(crate) place: &'static str,
    /// The volumes that are staged for the pod now. Empty if the containers mount them.
    pub(crate) volumes: Vec<TargetPath>,
    /// The SELinux label that the volumes' files are to have.
    pub(crate) label: Option<String>,
}

/// A container with volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContainerPlan {
    pub(crate) mounted_in: MountedIn,
    /// The ids that its mounts show, where it has a user namespace.
    pub(crate) ids: Option<UserNamespace>,
    /// The SELinux label that its volumes' files are to have.
    pub(crate) label: Option<String>,
    /// `crust explain` prints each beside the config's mount that it is.
    pub(crate) mounts: Vec<PlannedMount>,
}

/// The place where a container's volumes are mounted, and for which pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MountedIn {
    /// In the pod's sandbox, by the sandbox's own record, not what annotations say of it.
    Sandbox(SandboxRecord),
    /// In the create's mount namespace, for the container alone: there is no sandbox process.
    Container(VolumeOwner),
    /// In the container, by a hook (`mount_mode = "hook"`).
    Hook(VolumeOwner),
}

/// The owner of volumes that a container mounts for itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeOwner {
    /// The pod; unknown if the caller has none.
    pub(crate) pod_uid: Option<String>,
    /// The sandbox that the pod has nevertheless.
    pub(crate) sandbox: Option<String>,
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

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(None)?;
        match self {
            Self::PassOn => keys.serialize_entry("kind", "pass-on")?,
            Self::Sandbox(plan) => {
                keys.serialize_entry("kind", "sandbox")?;
                keys.serialize_entry("pod_uid", &plan.pod_uid)?;
                keys.serialize_entry("place", plan.place)?;
            }
            Self::Container(plan) => {
                keys.serialize_entry("kind", "container")?;
                plan.mounted_in.serialize_into(&mut keys)?;
                keys.serialize_entry("ids", &plan.ids)?;
            }
        }
        keys.end()
    }
}

impl MountedIn {
    fn serialize_into<M: SerializeMap>(&self, keys: &mut M) -> Result<(), M::Error> {
        let (name, owner) = match self {
            Self::Sandbox(record) => {
                keys.serialize_entry("mounted_in", "sandbox")?;
                keys.serialize_entry("sandbox", &record.id)?;
                keys.serialize_entry("process", &record.process.pid)?;
                return keys.serialize_entry("pod_uid", &record.pod_uid);
            }
            Self::Container(owner) => ("container", owner),
            Self::Hook(owner) => ("hook", owner),
        };
        keys.serialize_entry("mounted_in", name)?;
        keys.serialize_entry("sandbox", &owner.sandbox)?;
        keys.serialize_entry("pod_uid", &owner.pod_uid)
    }
}

impl Serialize for PlannedMount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let found = &self.found;
        let (by, prefix) = match &found.by {
            MatchedBy::Exact => ("exact", None),
            MatchedBy::Parent { prefix } => ("parent", Some(prefix)),
            MatchedBy::SubpathBind => ("subpath-bind", None),
            MatchedBy::Bind => ("bind", None),
        };
        let mut keys = serializer.serialize_map(None)?;
        keys.serialize_entry("volume", &found.volume.volume_name())?;
        keys.serialize_entry("target_path", &as_text(found.volume.as_path()))?;
        keys.serialize_entry("by", by)?;
        if let Some(prefix) = prefix {
            keys.serialize_entry("prefix", &as_text(prefix.as_path()))?;
        }
        let resolved = found.resolved.as_ref().map(|it| as_text(it.as_path()));
        keys.serialize_entry("resolved", &resolved)?;
        keys.serialize_entry("subpath", &as_text(&found.subpath))?;
        keys.serialize_entry("read_only", &self.read_only)?;
        keys.serialize_entry("maps_ids", &self.maps_ids)?;
        keys.end()
    }
}

/// Returns a path as it is printed: what isn't UTF-8 is replaced.
fn as_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl ContainerPlan {
    /// Returns how its volumes are mounted.
    pub(crate) fn way(&self) -> MountMode {
        match self.mounted_in {
            MountedIn::Sandbox(_) | MountedIn::Container(_) => MountMode::Bind,
            MountedIn::Hook(_) => MountMode::Hook,
        }
    }

    /// The label that its volumes are mounted with: a container that asks for none takes its
    /// sandbox's.
    pub(crate) fn label(&self) -> Option<&str> {
        let sandboxes = match &self.mounted_in {
            MountedIn::Sandbox(record) => record.mount_label.as_deref(),
            MountedIn::Container(_) | MountedIn::Hook(_) => None,
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

impl MountedIn {
    /// Returns the pod that a volume belongs to as long as container `id` has it. A container without a pod
    /// stands for the pod that the target path names, or else for itself.
    pub(crate) fn pod_uid(&self, volume: &TargetPath, id: &str) -> String {
        let known = match self {
            Self::Sandbox(record) => Some(&record.pod_uid),
            Self::Container(owner) | Self::Hook(owner) => owner.pod_uid.as_ref(),
        };
        let named = || Some(volume.pod_uid()?.to_string_lossy().into_owned());
        let uid = known.cloned().or_else(named);
        uid.unwrap_or_else(|| id.to_owned())
    }

    /// Returns the sandbox of container `id`; itself if there is none.
    pub(crate) fn sandbox<'a>(&'a self, id: &'a str) -> &'a str {
        match self {
            Self::Sandbox(record) => &record.id,
            Self::Container(owner) | Self::Hook(owner) => owner.sandbox.as_deref().unwrap_or(id),
        }
    }
}
