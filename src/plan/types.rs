//! The types of a plan. `crust explain --json` prints a serialised plan (docs/protocol.md, "explain").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crust_blockfs::user_namespace::UserNamespace;
use crust_state::TargetPath;
use crust_state::config::MountMode;
use crust_state::sandbox::SandboxRecord;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::matching::{Match, MatchedBy};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// No volume is concerned: the delegate gets the bundle unchanged.
    PassThrough,
    /// A sandbox that will hold volumes.
    Sandbox(SandboxPlan),
    Container(ContainerPlan),
}

/// A sandbox that will hold volumes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SandboxPlan {
    pub(crate) pod_uid: String,
    /// The directory in the sandbox where its volumes are mounted.
    pub(crate) directory: &'static str,
    /// The volumes that are staged for the pod now. Empty if the containers mount them.
    pub(crate) volumes: Vec<TargetPath>,
    /// SELinux label for the volumes' files.
    pub(crate) label: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ContainerPlan {
    pub(crate) mounted_in: MountedIn,
    /// The user namespace whose id mappings the mounts of volumes use; `None` if the container has no user namespace.
    pub(crate) ids: Option<UserNamespace>,
    /// SELinux label for the volumes' files, from the container's own config. See [`label`](Self::label()).
    pub(crate) label: Option<String>,
    pub(crate) mounts: Vec<PlannedMount>,
}

/// The mount namespace in which a container's volumes are mounted, and the pod that they are mounted for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MountedIn {
    /// The pod's sandbox, as its record describes it. Annotations don't count.
    Sandbox(SandboxRecord),
    /// The transient namespace, for this container alone: there is no sandbox process.
    Container(VolumeOwner),
    /// The container itself, where a hook mounts them (`mount_mode = "hook"`).
    Hook(VolumeOwner),
}

/// The owner of volumes that a container mounts for itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeOwner {
    /// UID of the pod; `None` if the config names none.
    pub(crate) pod_uid: Option<String>,
    /// Id of the pod's sandbox, if it has one although the volumes aren't mounted there.
    pub(crate) sandbox: Option<String>,
}

/// A mount of the config that shows a volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlannedMount {
    /// Index in the config's list of mounts. It identifies the mount, since destinations aren't unique.
    pub(crate) index: usize,
    pub(crate) destination: PathBuf,
    /// The source as the config has it.
    pub(crate) source: String,
    pub(crate) found: Match,
    pub(crate) read_only: bool,
    /// Whether the delegate maps the mount's ids.
    pub(crate) maps_ids: bool,
    pub(crate) options: Vec<String>,
}

impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(None)?;
        match self {
            Self::PassThrough => keys.serialize_entry("kind", "pass-on")?,
            Self::Sandbox(plan) => {
                keys.serialize_entry("kind", "sandbox")?;
                keys.serialize_entry("pod_uid", &plan.pod_uid)?;
                keys.serialize_entry("place", plan.directory)?;
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

/// Returns a path as text, with bytes that aren't UTF-8 replaced.
fn as_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl ContainerPlan {
    pub(crate) fn mount_mode(&self) -> MountMode {
        match self.mounted_in {
            MountedIn::Sandbox(_) | MountedIn::Container(_) => MountMode::Bind,
            MountedIn::Hook(_) => MountMode::Hook,
        }
    }

    /// Returns the SELinux label that the container's volumes are mounted with. A container without a label of its own
    /// gets the label of its sandbox.
    pub(crate) fn label(&self) -> Option<&str> {
        let sandbox_label = match &self.mounted_in {
            MountedIn::Sandbox(record) => record.mount_label.as_deref(),
            MountedIn::Container(_) | MountedIn::Hook(_) => None,
        };
        self.label.as_deref().or(sandbox_label)
    }

    /// Returns the target paths of the container's volumes, each once.
    pub(crate) fn volumes(&self) -> Vec<&TargetPath> {
        let volumes = self.mounts.iter().map(|mount| &mount.found.volume);
        let mut volumes: Vec<&TargetPath> = volumes.collect();
        volumes.sort();
        volumes.dedup();
        volumes
    }

    /// Returns the container's volumes as the subject of an error that concerns all of them.
    pub(crate) fn subject(&self) -> String {
        volumes_subject(self.volumes())
    }

    pub(crate) fn by_volume(&self) -> BTreeMap<&TargetPath, Vec<&PlannedMount>> {
        let mut volumes: BTreeMap<&TargetPath, Vec<&PlannedMount>> = BTreeMap::new();
        for mount in &self.mounts {
            volumes.entry(&mount.found.volume).or_default().push(mount);
        }
        volumes
    }
}

impl SandboxPlan {
    /// Returns the sandbox's volumes as the subject of an error that concerns all of them.
    pub(crate) fn subject(&self) -> String {
        volumes_subject(&self.volumes)
    }
}

fn volumes_subject<'a>(volumes: impl IntoIterator<Item = &'a TargetPath>) -> String {
    let names: Vec<_> = volumes.into_iter().map(TargetPath::volume_name).collect();
    match names.as_slice() {
        [] => "a sandbox for volumes".to_owned(),
        names => format!("volume {}", names.join(", ")),
    }
}

impl MountedIn {
    /// Returns the UID of the pod that owns the volume while container `id` uses it. Without a pod, returns
    /// the UID in the target path, or else the container's id.
    pub(crate) fn pod_uid(&self, volume: &TargetPath, id: &str) -> String {
        let known = match self {
            Self::Sandbox(record) => Some(&record.pod_uid),
            Self::Container(owner) | Self::Hook(owner) => owner.pod_uid.as_ref(),
        };
        let named = || Some(volume.pod_uid()?.to_string_lossy().into_owned());
        let uid = known.cloned().or_else(named);
        uid.unwrap_or_else(|| id.to_owned())
    }

    /// Returns the id of the sandbox of container `id`, or `id` itself if the container has no sandbox.
    pub(crate) fn sandbox<'a>(&'a self, id: &'a str) -> &'a str {
        match self {
            Self::Sandbox(record) => &record.id,
            Self::Container(owner) | Self::Hook(owner) => owner.sandbox.as_deref().unwrap_or(id),
        }
    }
}
