//! Errors of planning a create.

use crust_state::state_directory::StateError;

use crate::matching::{MatchError, StagedListError};
use crate::oci::DocumentError;
use crate::role::RoleError;

/// The reason why a create is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("mount {destination}: {source}")]
    Match {
        destination: String,
        source: MatchError,
    },
    #[error(
        "timeout: only {done} of the container's {all} mounts were looked up before the create's deadline; \
         hint: retry when the node is less busy, or give the container fewer mounts"
    )]
    LookupTimeout { done: usize, all: usize },
    #[error(transparent)]
    StagedList(#[from] StagedListError),
    #[error("sandbox {id}: {source}")]
    Sandbox { id: String, source: StateError },
    #[error(
        "volume {volume}: there is no record of the pod's sandbox {sandbox}: nothing was staged for the pod when the \
         sandbox was created, or the record was lost; hint: recreate the pod, or set sandbox = \"always\" in \
         runcrust's configuration"
    )]
    NoSandboxRecord { volume: String, sandbox: String },
    #[error(
        "volume {volume}: there is no record of the pod's sandbox {sandbox}: the pod's volumes weren't looked for, \
         because {root} isn't among kubelet_dirs; hint: add {root} to kubelet_dirs in runcrust's configuration, and \
         recreate the pod"
    )]
    UnlistedKubeletDir {
        volume: String,
        sandbox: String,
        root: String,
    },
    #[error(
        "volume {volume}: its target path belongs to pod {owner}, but sandbox {sandbox} was created for \
         pod {pod}; hint: use a volume of this pod; if the source was written by hand, correct it"
    )]
    OtherPod {
        volume: String,
        owner: String,
        sandbox: String,
        pod: String,
    },
    #[error(
        "volume {volume}: the config joins namespace {path}, but sandbox {sandbox} is process {pid}; hint: join \
         only namespaces of the pod's own sandbox; if that sandbox was replaced in the meantime, recreate the pod"
    )]
    OtherNamespace {
        volume: String,
        path: String,
        sandbox: String,
        pid: i32,
    },
    #[error("volume {volume}: {source}")]
    Role { volume: String, source: RoleError },
    #[error(
        "volume {volume}: mount {other} is at or below {destination}, and with mount_mode = \
         \"hook\" the volume would hide it; hint: set mount_mode = \"bind\" in runcrust's \
         configuration"
    )]
    HiddenMount {
        volume: String,
        destination: String,
        other: String,
    },
    #[error(
        "volume {volume}: {destination} is below {shared}, a mount that the container shares with \
         the host (mountPropagation Bidirectional, or rootfsPropagation): the volume would be \
         mounted on the host too; hint: mount the volume at a path that isn't below {shared}"
    )]
    SharedMount {
        volume: String,
        destination: String,
        shared: String,
    },
    #[error("volume {volume}: {source}")]
    Document {
        volume: String,
        source: DocumentError,
    },
    #[error(
        "{subject}: config.json is ambiguous: a key of the mount, or the list of mounts itself, occurs twice, and runc \
         and crun may use different ones; hint: write each key only once"
    )]
    AmbiguousConfig { subject: String },
    #[error("volume {volume}: {reason}")]
    Unsupported {
        volume: String,
        reason: &'static str,
    },
}

impl PlanError {
    pub(super) fn document(volume: &str, source: DocumentError) -> Self {
        Self::Document {
            volume: volume.to_owned(),
            source,
        }
    }
}
