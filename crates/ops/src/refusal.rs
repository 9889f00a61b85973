//! Why a call isn't carried out.

use std::time::Duration;

use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::state_directory::StateError;
use crust_volume::VolumeError;

use crate::cli::CliError;

/// A call that isn't carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// A field of the request.
    #[error("{field}: {reason}")]
    Field {
        /// Its name in the .proto file.
        field: &'static str,
        /// Why it can't be used.
        reason: String,
    },
    /// The volume's own.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The runtime's, or about it.
    #[error("volume {volume}: {source}")]
    Cli {
        /// The volume.
        volume: String,
        /// Why.
        source: CliError,
    },
    /// About the runtime, and no volume.
    #[error("{0}")]
    Runtime(#[from] CliError),
    /// The node isn't as it should be.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An earlier call has the volume.
    #[error(
        "volume {volume}: an earlier call for it is still running after {} s; hint: retry later; if it \
         stays so, its device hangs: `ps -eo pid,stat,wchan,args` on the node shows what waits for it in state D",
        after.as_secs()
    )]
    Held {
        /// The volume.
        volume: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// A thread of this call waits in the kernel.
    #[error(
        "the call is still running after {} s; hint: retry later; if it stays so, a device of the node \
         hangs, and `ps -eo pid,stat,wchan,args` shows what waits for it in state D", after.as_secs()
    )]
    Hangs {
        /// The limit.
        after: Duration,
    },
    /// Nothing is staged at the target path.
    #[error(
        "volume {0}: nothing is staged at its target path; hint: the CSI driver has to publish it first (RuntimeStageVolume)"
    )]
    NotStaged(String),
    /// No runtime has it mounted.
    #[error(
        "volume {0}: it isn't mounted yet: no container of its pod has started, or all have ended; hint: \
         retry once the pod runs; its events say what it waits for"
    )]
    NotInUse(String),
    /// No volume of a sandbox is on a device.
    #[error(
        "sandbox {sandbox}: it has no volume from {device}; hint: RuntimePublishVolume comes first"
    )]
    NoSuchVolume {
        /// The sandbox.
        sandbox: String,
        /// The device.
        device: String,
    },
}

impl Refusal {
    /// A field that can't be used.
    pub(crate) fn field(field: &'static str, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        Self::Field { field, reason }
    }

    /// Of a volume's runtime.
    pub(crate) fn cli(volume: String) -> impl FnOnce(CliError) -> Self {
        move |mut source| {
            // The runtime's own sentences name it already.
            let start = format!("volume {volume}: ");
            if let CliError::Refused { message, .. } = &mut source
                && let Some(rest) = message.strip_prefix(&start)
            {
                *message = rest.to_owned();
            }
            Self::Cli { volume, source }
        }
    }
}

/// The node isn't as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    /// The runtime's own records.
    #[error(transparent)]
    State(#[from] StateError),
    /// A directory of the runtime's.
    #[error(transparent)]
    File(#[from] FileError),
    /// A staged volume.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A thread of our own.
    #[error("crust_ops: {0}")]
    Thread(#[from] tokio::task::JoinError),
}
