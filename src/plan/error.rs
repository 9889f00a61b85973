//! The errors of a create that is refused.

use crust_state::state_directory::StateError;

use crate::matching::{MatchError, PodError};
use crate::oci::DocumentError;
use crate::role::RoleError;

/// The reason why a container isn't created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    #[error("mount {destination}: {source}")]
    Match {
        destination: String,
        source: MatchError,
    },
    #[error(
        "only {done} of the container's {all} mounts were looked up when the time for a create was over; \
         hint: give the container fewer mounts, or create it again when the node is less busy"
    )]
    TooSlow { done: usize, all: usize },
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error("sandbox {id}: {source}")]
    Sandbox { id: String, source: StateError },
    #[error(
        "volume {volume}: there is no record of the pod's sandbox {sandbox}: nothing was staged for \
         its pod when it was made, or the record was lost; hint: let the pod be made anew, or set sandbox = \"always\" \
         in runcrust's configuration"
    )]
    NoSandboxRecord { volume: String, sandbox: String },
    #[error(
        "volume {volume}: there is no record of the pod's sandbox {sandbox}: its volumes weren't looked \
         for, since {root} isn't among kubelet_dirs; hint: add it to kubelet_dirs in runcrust's \
         configuration, and let the pod be made anew"
    )]
    OtherKubelet {
        volume: String,
        sandbox: String,
        root: String,
    },
    #[error(
        "volume {volume}: its target path is of pod {owner}, and sandbox {sandbox} was made for \
         pod {pod}; hint: a pod can only have its own volumes"
    )]
    OtherPod {
        volume: String,
        owner: String,
        sandbox: String,
        pod: String,
    },
    #[error(
        "volume {volume}: the config joins namespace {path}, and sandbox {sandbox} is process \
         {pid}; hint: a pod's containers join its own sandbox; was that made anew meanwhile?"
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
        "volume {volume}: mount {other} is at or below {destination}, where with mount_mode = \
         \"hook\" the volume would hide it; hint: set mount_mode = \"bind\" in runcrust's \
         configuration"
    )]
    Hidden {
        volume: String,
        destination: String,
        other: String,
    },
    #[error(
        "volume {volume}: {destination} is below {shared}, a mount that the container shares with \
         the host (mountPropagation Bidirectional, or rootfsPropagation): the volume would be \
         mounted on the host too; hint: mount the volume elsewhere"
    )]
    Shared {
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
        "{who}: config.json names it where delegates differ in what they read: under a key of a \
         mount, or of the list of mounts, that stands twice; hint: give each key once"
    )]
    OtherReading { who: String },
    #[error("volume {volume}: {what}")]
    Unsupported { volume: String, what: &'static str },
}

impl PlanError {
    pub(super) fn document(volume: &str, source: DocumentError) -> Self {
        Self::Document {
            volume: volume.to_owned(),
            source,
        }
    }
}
